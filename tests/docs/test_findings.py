"""The page of findings: ten of them, each with a picture that is there and a command for a claim that runs decide."""

import re
from pathlib import Path

from experiments.claiming import claims

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "findings.md").read_text(encoding="utf-8")


def test_ten_findings_have_a_picture_and_the_command_that_draws_it() -> None:
    parts = PAGE.split("\n## ")[1:]
    assert [part.partition(".")[0] for part in parts] == [str(i) for i in range(1, 11)]
    drawn = {one.name for one in claims() if one.text.compare is not None}
    for part in parts:
        [picture] = re.findall(r"!\[.+\]\((pictures/[\w.-]+)\)", part)
        [name] = re.findall(r"\n    kvtier claims draw (\w+) .*-o picture\.png\n", part)
        assert picture == f"pictures/claim-{name}.png"
        assert name in drawn
        assert 5_000 < (DOCS / picture).stat().st_size < 60_000


def test_claims_that_the_page_names_exist() -> None:
    known = {one.name for one in claims()}
    named = set(re.findall(r"claim\s+`(\w+)`", PAGE))
    assert named <= known
    assert len(named) >= 5


def test_readme_leads_to_the_page() -> None:
    assert "docs/findings.md" in (DOCS.parent / "README.md").read_text(encoding="utf-8")
