"""What `kvtier figures` does: published measurements beside what the simulator says, and by how much they differ."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import console
from experiments.published import (
    capacity,
    compute,
    copies,
    cost_models,
    handover,
    network,
    routing,
    scheduling,
    storage,
)
from experiments.published.figure import Figure, Group
from experiments.xfer import printed

SECTIONS: Mapping[str, Callable[[], list[Group]]] = {
    "B": copies.groups,
    "C": lambda: [*network.groups(), *handover.groups()],
    "D": lambda: [*compute.groups(), *cost_models.groups()],
    "E": routing.groups,
    "F": storage.groups,
    "G": capacity.groups,
    "Q": scheduling.groups,
}


def figures(section: str | None = None) -> list[Group]:
    """All groups but E, which is simulated for a minute, or those of one section.

    B copies, C network, D compute, E routing, F storage, G capacity, Q questions.
    """
    if section is not None and section not in SECTIONS:
        raise ValueError(f"--section {section} is not known; known: {', '.join(SECTIONS)}")
    chosen = {name: make for name, make in SECTIONS.items() if section == name or (section is None and name != "E")}
    return [group for make in chosen.values() for group in make()]


def off(groups: list[Group]) -> list[Figure]:
    """The figures outside their tolerance."""
    return [figure for group in groups for figure in group.figures if figure.verdict == "off"]


def show(groups: list[Group], json: str | None) -> None:
    """One table a row of measurements, then the count; with `--json FILE` the rows go there, with `-` to stdout."""
    if json is not None:
        console.write_json([row(group, figure) for group in groups for figure in group.figures], json)
    if json == "-":
        return
    out = Console(soft_wrap=True, highlight=False)
    for group in groups:
        console.heading(f"{group.row}  {group.title}")
        out.print(f"source: {group.source}", markup=False)
        printed(_table(group))
        if group.note:
            out.print(f"note: {group.note}", markup=False)
    console.say("\n" + summary(groups))
    if json is not None:
        console.say(json)


def markdown(groups: list[Group]) -> str:
    """The same as Markdown, for docs/figures.md."""
    parts = []
    for group in groups:
        lines = [f"### {group.row}: {group.title}", "", f"Source: {group.source}.", ""]
        lines += ["| | published | ours | deviation | tolerance | verdict | fixes |", "|---|--:|--:|--:|--:|---|---|"]
        lines += [f"| {' | '.join((figure.what, *_cells(figure)))} |" for figure in group.figures]
        parts.append("\n".join([*lines, *(["", group.note] if group.note else [])]))
    return "\n\n".join([*parts, summary(groups) + "."])


def row(group: Group, figure: Figure) -> dict[str, Any]:
    """One figure as plain data."""
    derived = {"deviation": figure.deviation, "verdict": figure.verdict, "source": group.source}
    return {**asdict(figure), **derived}


def summary(groups: list[Group]) -> str:
    """How many figures are within their tolerance, and of how many that says something."""
    all_of = [figure for group in groups for figure in group.figures]
    judged = [figure for figure in all_of if figure.tolerance is not None]
    within = [figure for figure in judged if figure.verdict == "ok"]
    fixing = [figure for figure in judged if figure.fixes]
    return (
        f"{len(within)} of {len(judged)} figures within tolerance; {len(fixing)} of these a parameter was read from"
        f" (last column); {len(all_of) - len(judged)} more for their shape only"
    )


def _table(group: Group) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for title in ("published", "ours", "deviation", "tolerance"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("fixes", no_wrap=True)
    for figure in group.figures:
        table.add_row(figure.what, *_cells(figure))
    return table


def _cells(figure: Figure) -> tuple[str, ...]:
    """Published, ours, deviation, tolerance, verdict, fixes."""
    unit = f" {figure.unit}" if figure.unit else ""
    published = ("<= " if figure.at_most else "") + console.number(figure.published) + unit
    tolerance = "-" if figure.tolerance is None else f"{figure.tolerance:.1%}" if figure.tolerance else "exact"
    verdict = "shape only" if figure.verdict == "shape" else figure.verdict
    return (
        published,
        console.number(_rounded(figure.ours)),
        f"{_whole_zero(figure.deviation):+.1%}",
        "bound" if figure.at_most else tolerance,
        verdict,
        figure.fixes,
    )


def _whole_zero(deviation: float) -> float:
    """Below half a tenth of a percent is none, whichever way the last bit went."""
    return 0.0 if abs(deviation) < 0.0005 else deviation


def _rounded(value: float) -> float:
    """Four digits below 1,000; binary noise away from whole numbers."""
    return float(f"{value:.6g}")
