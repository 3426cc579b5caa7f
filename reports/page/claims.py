"""The page and the table of the essays' claims: what was claimed, our verdict, what the runs show, how to repeat it.

It reads findings as `kvtier claims run --json` writes them and decides nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.columns import column
from reports.files import written
from reports.page.sections import Section, facts, listing, plain, text
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
    """The overview, then a section a claim."""
    columns = [plain(name, number=False) for name in ("claim", "verdict", "what was found")]
    rows = [[one["says"], one["verdict"], one["found"]] for one in findings]
    return [listing("All claims", columns, rows), *(part for one in findings for part in claim(one))]


def claim(one: Finding) -> list[Section]:
    """One claim: words, and the change in every setting where runs decide it."""
    title = f"{one['name'].replace('_', ' ')}: {one['verdict']}"
    words = [f"Claim ({one['source']}): {one['says']}", f"Found: {one['found']}.".replace("..", ".")]
    if one["because"] != one["found"]:
        words.append(str(one["because"]))
    if not one["pairs"]:
        return [text(title, [*words, f"Shown by {', '.join(one['see'])}."] if one["see"] else words)]
    changes = [
        {"name": setting(pair), "change": pair["change"], "holds": pair["holds"]}
        for pair in one["pairs"]
        if pair["change"] is not None
    ]
    drawn = {"kind": "changes", "title": title, "lines": words, "rows": changes, "axis": axis(one)}
    return [drawn, facts("", [("to repeat it", command(one))])]


def axis(one: Finding) -> str:
    """What the bars show."""
    compare = one["compare"]
    figure = " / ".join(column(part).label for part in str(compare["figure"]).split("/"))
    key = column(str(compare["key"]))
    return (
        f"change of {figure} (%), {key.short or key.label} {shown(compare['other'])} against {shown(compare['base'])}"
    )


def setting(pair: Mapping[str, Any]) -> str:
    """The swept keys of a pair other than the compared one, in words."""
    parts = []
    for name, value in pair.items():
        if name not in SIDES:
            label = column(name).short or column(name).label
            parts.append(f"{label} {shown(value)}" if name not in {"trace", "hardware", "model"} else str(value))
    return ", ".join(parts) or "all"


def command(one: Finding) -> str:
    """The one line that repeats it."""
    return f"kvtier claims run {one['name']}"


def write_markdown(findings: Sequence[Finding], path: Path) -> Path:
    """The table as a page of the documentation."""
    head = [
        f"# {TITLE}",
        "",
        "Two essays about TensorRT-LLM's KV cache gave rise to this project. Every statement of theirs that a simulator or the",
        "sources can decide is a file in `experiments/claims`: the claim, what to run, what would confirm it. Two runs that",
        "differ in the compared setting alone are a pair; the claim holds in all of them (confirmed), in some (under conditions)",
        "or in none (contradicted by model), and the other settings of the sweep show where. `kvtier claims run NAME` repeats",
        "one.",
        "",
        lead(findings),
        "",
        "| claim | verdict | what was found | why |",
        "| --- | --- | --- | --- |",
    ]
    rows = [
        f"| {one['says']} (`{one['name']}`) | {one['verdict']} | {_found(one)} | {one['because']} |" for one in findings
    ]
    with written(path) as temporary:
        temporary.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    return path


def _found(one: Finding) -> str:
    """The runs' result, or where the rule is pinned."""
    if one["pairs"]:
        return str(one["found"])
    return ", ".join(f"`{place}`" for place in one["see"]) or "no run"
