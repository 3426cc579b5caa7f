"""Every case holds, or is unsupported for a reason written here; and the runner itself can tell a difference."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.conform import ACCEPTED_DOUBTS, LEVELS, Result, conform, read_cases, run_case
from experiments.conformance.manager import ManagerAdapter
from experiments.conformance.values import CaseError, agrees, tokens

HERE = Path(__file__).parent
CASES = read_cases([HERE / "cases", HERE / "own"])
V2_MANAGER = "manager_version 2: only the V1 manager is modelled"
UNSUPPORTED = {
    "probe_v2/duplicates_collide_then_diverge": V2_MANAGER,
    "probe_v2/null_when_next_block_partial": V2_MANAGER,
    "stats/generation_alloc_request_metrics_v2": V2_MANAGER,
    "stats/partial_leaf_private_copy_v2": V2_MANAGER,
    "stats/partial_reuse_classification_v2": V2_MANAGER,
    "stats/partial_reuse_off_v2": V2_MANAGER,
    "tree_v2/clear_mixed_roots": "op scoped_add_chain",
}


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_case_holds_or_is_unsupported_by_name(name: str, case: dict[str, Any]) -> None:
    result = run_case(name, case)
    if name in UNSUPPORTED:
        assert (result.status, result.reason) == ("unsupported", UNSUPPORTED[name])
    else:
        assert result.status == "pass", result.line()


def test_all_levels_have_cases_and_every_exception_still_exists() -> None:
    assert {case["level"] for _, case in CASES} == set(LEVELS)
    assert set(UNSUPPORTED) | set(ACCEPTED_DOUBTS) <= {name for name, _ in CASES}


class TestRunnerCanFail:
    """A runner that always says pass would be worth nothing."""

    config: ClassVar = {"tokens_per_block": 4, "primary_blocks": 4}
    add: ClassVar = {"op": "add_sequence", "request_id": 0, "tokens": {"range": [0, 9]}}

    def run(self, *steps: dict[str, Any], level: str = "manager", **keys: Any) -> Result:
        return run_case("a/b", {"level": level, "config": self.config, "steps": list(steps), **keys})

    def expecting(self, **expect: Any) -> Result:
        return self.run({**self.add, "expect": expect})

    @pytest.mark.parametrize(
        ("expect", "got"),
        [
            ({"num_free_blocks": 2}, 1),
            ({"num_free_blocks": {"gt": 1}}, 1),
            ({"num_free_blocks": {"4": 1}}, "no window of 4 tokens; windows: 16"),
            ({"block_ids": [0, 1]}, [0, 1, 2]),
            ({"block_ids": [0, None, {"ne": 2}]}, [0, 1, 2]),
            ({"context_current_position": 1}, 0),
            ({"requests": {"0": {"num_blocks": 2}}}, 3),
            ({"request_stats": {"missed_blocks": 2}}, 3),
            ({"same_block": [[{"request_id": 0, "index": 0}, {"request_id": 0, "index": 1}]]}, 0),
            ({"different_block": [[{"request_id": 0, "index": 0}, {"request_id": 0, "index": 0}]]}, 0),
            ({"queue_integrity": False}, True),
            ({"block_states": [{"block": 0, "primary": False}]}, True),
            ({"alloc_total_blocks_delta": 2}, 3),
            ({"copies": [{"from": 0}]}, []),
            ({"error": True}, "no error"),
        ],
    )
    def test_a_wrong_expectation_fails_with_what_was_got(self, expect: dict[str, Any], got: Any) -> None:
        result = self.expecting(**expect)
        assert (result.status, result.step, result.op) == ("fail", 0, "add_sequence")
        assert result.got == got

    def test_the_line_names_step_expectation_and_both_values(self) -> None:
        result = self.run({"op": "check"}, {**self.add, "expect": {"num_free_blocks": 2}})
        assert result.line() == "FAIL         a/b step 1 add_sequence: num_free_blocks: expected 2, got 1"

    def test_a_step_that_must_not_fail_but_does_is_a_failure(self) -> None:
        result = self.run({**self.add, "tokens": {"range": [0, 17]}})
        assert result.status == "fail"
        assert (result.what, result.expected) == ("error", False)
        assert "OutOfBlocksError: the GPU pool of 4 blocks" in result.got

    def test_a_refused_step_that_must_fail_passes(self) -> None:
        assert self.run({**self.add, "tokens": {"range": [0, 17]}, "expect": {"error": True}}).status == "pass"

    def test_a_crash_is_a_failure_even_where_an_error_is_expected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ManagerAdapter, "op_refresh", lambda _: {}["gone"])
        result = self.run({"op": "refresh", "expect": {"error": True}})
        assert (result.status, result.what) == ("fail", "the step")
        assert "KeyError: 'gone' (test_cases.py:" in result.got

    def test_a_doubtful_case_still_fails_and_says_why(self) -> None:
        result = self.run({**self.add, "expect": {"num_free_blocks": 2}}, doubt="block count derived")
        assert result.status == "fail"
        assert result.line().startswith("FAIL (doubt) a/b")
        assert result.line().endswith("[block count derived]")

    def test_a_doubt_with_a_written_reason_is_accepted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(ACCEPTED_DOUBTS, "a/b", "upstream counts otherwise")
        result = self.run({**self.add, "expect": {"num_free_blocks": 2}}, doubt="block count derived")
        assert (result.status, result.reason) == ("accepted", "upstream counts otherwise")

    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            ({"op": "fly"}, "op fly"),
            ({"op": "check", "height": 3}, "op check: got an unexpected keyword argument 'height'"),
            ({"op": "check", "expect": {"altitude": 3}}, "expectation altitude"),
            ({"op": "flush_events", "expect": {"events": [{"colour": 1}]}}, "event field colour"),
            ({**add, "colour": 1}, "request field colour"),
            ({**add, "expect": {"requests": {"0": {"colour": 1}}}}, "expectation requests.colour"),
            ({**add, "expect": {"request_stats": {"colour": 1}}}, "expectation request_stats.colour"),
        ],
    )
    def test_what_we_do_not_have_is_unsupported_by_name(self, step: dict[str, Any], reason: str) -> None:
        config = {**self.config, "event_buffer_max_size": 8}
        result = run_case("a/b", {"level": "manager", "config": config, "steps": [step]})
        assert (result.status, result.reason) == ("unsupported", reason)

    def test_an_unknown_level_or_key_is_unsupported(self) -> None:
        assert self.run(level="moon").reason == "level moon"
        assert self.run(colour=1).reason == "key colour"
        assert run_case("a/b", {"level": "policy", "config": {"colour": 1}, "steps": []}).reason == "config key colour"

    def test_two_windows_need_to_be_named(self) -> None:
        windows = [{"window_size": 8, "primary_blocks": 4}, {"window_size": 16, "primary_blocks": 4}]
        config: ClassVar = {"tokens_per_block": 4, "windows": windows, "max_sequence_length": 16}
        step = {**self.add, "expect": {"num_blocks": 3}}
        result = run_case("a/b", {"level": "manager", "config": config, "steps": [step]})
        assert result.reason == "num_blocks without a window, but there are several"


class TestValues:
    def test_token_lists_nest(self) -> None:
        assert tokens({"concat": [{"range": [0, 3]}, {"repeat": [7, 2]}, [1]]}) == [0, 1, 2, 7, 7, 1]

    @pytest.mark.parametrize("value", ["abc", {"range": [0, 3], "repeat": [1, 1]}, {"shuffle": [1]}, [1, "2"]])
    def test_anything_else_is_no_token_list(self, value: Any) -> None:
        with pytest.raises(CaseError, match="not a token list"):
            tokens(value)

    @pytest.mark.parametrize(
        ("expected", "got", "same"),
        [
            ({"ge": 2, "lt": 4}, 3, True),
            ({"ge": 2, "lt": 4}, 4, False),
            ({"not_in": [1, 2]}, 2, False),
            ({"ge": 0}, None, False),
            ({"ref": "x"}, 5, True),
            ({"ref": "x", "plus": 1}, 5, False),
            ({"a": 1}, {"a": 1, "b": 2}, True),
            ({"a": 1}, {"b": 2}, False),
            (2 / 3, 0.6666667, True),
            (True, 1, False),
            (1, True, False),
        ],
    )
    def test_agreement(self, expected: Any, got: Any, same: bool) -> None:
        assert agrees(expected, got, {"x": 5}) is same


class TestCommand:
    def run(self, *args: str) -> Any:
        return CliRunner().invoke(app, ["conform", *args])

    def write(self, path: Path, **changes: Any) -> str:
        case = {"level": "retention", "config": {}, "steps": [{"op": "check"}], **changes}
        path.write_text(json.dumps(case), encoding="utf-8")
        return str(path)

    def test_prints_a_line_a_case_and_a_summary_by_level(self, tmp_path: Path) -> None:
        self.write(tmp_path / "good.json")
        self.write(tmp_path / "later.json", steps=[{"op": "fly"}])
        result = self.run(str(tmp_path))
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            f"pass         {tmp_path.name}/good",
            f"unsupported  {tmp_path.name}/later: op fly",
            "",
            "retention      1 pass, 0 fail, 1 unsupported",
            "all            1 pass, 0 fail, 1 unsupported",
        ]

    def test_a_failure_is_exit_code_1(self, tmp_path: Path) -> None:
        wrong = [{"op": "make_retention", "retention": {}, "expect": {"error": True}}]
        result = self.run(self.write(tmp_path / "bad.json", steps=wrong))
        assert result.exit_code == 1
        assert "FAIL" in result.stdout

    def test_json_to_stdout_is_json_alone(self, tmp_path: Path) -> None:
        result = self.run(self.write(tmp_path / "good.json"), "--json", "-")
        assert json.loads(result.stdout) == {
            "cases": [{"name": f"{tmp_path.name}/good", "level": "retention", "status": "pass"}],
            "failures": 0,
            "unsupported": 0,
        }

    def test_level_picks_cases(self) -> None:
        assert {r.level for r in conform([HERE / "own"], "tree")} == {"tree"}
        assert self.run(str(HERE / "own"), "--level", "moon").exit_code == 2
        assert self.run(str(HERE / "own"), "--level", "retention").exit_code == 2

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "not JSON"),
            ("[]", "not a case: list instead of an object"),
            ('{"level": "tree"}', "not a case: no 'config'"),
            ('{"level": "tree", "config": {}, "steps": [{}]}', "steps must be a list of objects with an 'op'"),
        ],
    )
    def test_an_unreadable_file_is_one_line_and_exit_code_2(self, tmp_path: Path, text: str, complaint: str) -> None:
        path = tmp_path / "x.json"
        path.write_text(text, encoding="utf-8")
        result = self.run(str(path))
        assert result.exit_code == 2
        assert complaint in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_a_missing_file_or_an_empty_directory_is_exit_code_2(self, tmp_path: Path) -> None:
        assert self.run(str(tmp_path)).exit_code == 2
        assert self.run(str(tmp_path / "no.json")).exit_code == 2
