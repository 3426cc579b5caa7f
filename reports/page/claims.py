"""The page and the table of the essays' claims: what was claimed, our verdict, what the runs show, how to repeat it.

It reads findings as `kvtier claims run --json` writes them and decides nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.columns import column, place_name
from reports.files import written
from reports.page.sections import Section, facts, listing, plain
from reports.page.write import write_page
from reports.plots import shown

Finding = Mapping[str, Any]
SIDES = ("base", "other", "change", "holds")


def write_html(findings: Sequence[Finding], path: Path, made_by: str) -> Path:
    """One page with every claim."""
    return write_page(path, TITLE, lead(findings), sections(findings), made_by)


TITLE = "What is claimed about TensorRT-LLM's KV cache, and what holds"


def lead(findings: Sequence[Finding]) -> str:
    """How many claims ended how."""
    counts = Counter(str(one["verdict"]) for one in findings)
    return f"{len(findings)} claims: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}."


def sections(findings: Sequence[Finding]) -> list[Section]:
    """The overview, then a section for each claim that runs decide, then a table of the others."""
    columns = [plain(name, number=False) for name in ("claim", "verdict", "what was found")]
    rows = [[one["says"], one["verdict"], one["found"]] for one in findings if one["pairs"]]
    words = [plain(name, number=False) for name in ("statement", "verdict", "why", "where")]
    others = [[one["says"], one["verdict"], one["because"], where(one)] for one in findings if not one["pairs"]]
    return [
        *([listing("Claims that runs decide", columns, rows)] if rows else []),
        *(part for one in findings if one["pairs"] for part in claim(one)),
        *([listing("Statements that no run decides", words, others)] if others else []),
    ]


def claim(one: Finding) -> list[Section]:
    """One claim: words, and the change in every setting."""
    title = f"{one['name'].replace('_', ' ')}: {one['verdict']}"
    words = [f"Claim ({one['source']}): {one['says']}", f"Found: {one['found']}.", str(one["because"])]
    if where(one):
        words.append(f"See {where(one)}.")
    changes = [
        {"name": setting(pair), "change": pair["change"], "holds": pair["holds"]}
        for pair in one["pairs"]
        if pair["change"] is not None
    ]
    drawn = {"kind": "changes", "title": title, "lines": words, "rows": changes, "axis": axis(one)}
    return [drawn, facts("", [("to repeat it", command(one))])]


def where(one: Finding) -> str:
    """The place in the sources, and our tests and pages."""
    return "; ".join([*([one["place"]] if one["place"] else []), *one["see"]])


def axis(one: Finding) -> str:
    """What the bars show."""
    compare = one["compare"]
    figure = " / ".join(column(part).label for part in str(compare["figure"]).split("/"))
    if compare["key"] is None:
        return f"{figure} against {column(str(compare['against'])).label} (%)"
    key, other = column(str(compare["key"])), compare["other"]
    sides = shown(compare["base"]) if isinstance(other, list) else f"{shown(other)} against {shown(compare['base'])}"
    against = "against " if isinstance(other, list) else ""
    return f"change of {figure} (%), {against}{key.short or key.label} {sides}"


def setting(pair: Mapping[str, Any]) -> str:
    """The swept keys of a pair other than the compared one, in words."""
    parts = []
    for name, value in pair.items():
        if name not in SIDES:
            label = column(name).short or column(name).label
            named = name in {"trace", "hardware", "model", "load"}
            parts.append(place_name(name, str(value)) if named else f"{label} {shown(value)}")
    return ", ".join(parts) or "all"


def command(one: Finding) -> str:
    """The one line that repeats it."""
    return f"kvtier claims run {one['name']}"


def write_markdown(findings: Sequence[Finding], path: Path) -> Path:
    """The tables as a page of the documentation."""
    head = [
        f"# {TITLE}",
        "",
        "Two essays about TensorRT-LLM's KV cache gave rise to this project. Every statement of theirs stands here. What a",
        "simulator can decide is a file in `experiments/claims`: the claim, what to run, what would confirm it. Two runs that",
        "differ in the compared setting alone are a pair; the claim holds in all pairs (confirmed), in some (under conditions)",
        "or in none (contradicted by model), and the other settings of the sweep show where. `kvtier claims run NAME` repeats",
        "one, `kvtier claims draw NAME -o FILE.png` draws where it holds. What no run decides was read against TensorRT-LLM's",
        "sources or documents, or is said to be out of reach. The best of it, with pictures: [findings.md](findings.md).",
        "",
        lead(findings),
        "",
        "## Claims that runs decide",
        "",
        "| claim | verdict | what was found | why |",
        "| --- | --- | --- | --- |",
    ]
    decided = [one for one in findings if one["pairs"]]
    others = [one for one in findings if not one["pairs"]]
    rows = [f"| {_named(one)} | {one['verdict']} | {one['found']} | {_reasons(one)} |" for one in decided]
    table = [
        "",
        "## Statements that no run decides",
        "",
        "| statement | verdict | why | where |",
        "| --- | --- | --- | --- |",
    ]
    said = [f"| {_named(one)} | {one['verdict']} | {one['because']} | {_places(one)} |" for one in others]
    with written(path) as temporary:
        text = "\n".join([*head, *rows, *table, *said, *_by_part(findings)])
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def _named(one: Finding) -> str:
    return f"{one['says']} (`{one['name']}`)"


def _reasons(one: Finding) -> str:
    return f"{one['because']} Source: {_places(one)}" if one["place"] else str(one["because"])


def _places(one: Finding) -> str:
    return ", ".join([*([str(one["place"])] if one["place"] else []), *(f"`{place}`" for place in one["see"])])


def _by_part(findings: Sequence[Finding]) -> list[str]:
    """Which claims come from which part of which essay."""
    parts: dict[str, list[str]] = {}
    for one in findings:
        for source in str(one["source"]).split("; "):
            essay, _, chapters = source.partition(", ")
            for chapter in chapters.split(" and "):
                parts.setdefault(f"{essay}, {chapter}", []).append(f"`{one['name']}`")
    rows = [f"| {part} | {', '.join(names)} |" for part, names in sorted(parts.items())]
    return ["", "## By part of the essays", "", "| part | claims |", "| --- | --- |", *rows]
