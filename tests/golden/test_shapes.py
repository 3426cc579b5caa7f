"""`--json` keeps its paths and types, and the page that documents them is the recorded one."""

import json

from tests.golden.shapes import PAGE, SHAPES, page, shapes


def test_no_path_of_any_commands_json_goes_or_changes_its_type() -> None:
    recorded = json.loads(SHAPES.read_text(encoding="utf-8"))
    now = shapes()
    assert now.keys() == recorded.keys()
    for name, paths in recorded.items():
        assert paths == {path: now[name].get(path) for path in paths}, f"kvtier {name} --json changed"


def test_page_shows_what_is_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(SHAPES.read_text(encoding="utf-8")))
