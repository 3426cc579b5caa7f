"""An answer gets the content that the next turn's prompt has in its place, where that can be, and nowhere else."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import read

BLOCK = 512


def row(session: str, prompt: int, output: int, ids: list[int]) -> dict[str, object]:
    return {"session_id": session, "input_length": prompt, "output_length": output, "hash_ids": ids}


def answers(tmp_path: Path, *rows: dict[str, object], link: bool = True) -> list[list[int]]:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": i, **r}) + "\n" for i, r in enumerate(rows)), encoding="utf-8")
    requests = read(path, options=ReadOptions(link_outputs=link))
    if requests.output_offset is None or requests.output_units is None:
        return []
    return [requests.output_units[requests.output_offset[i] : requests.output_offset[i + 1]].tolist()
            for i in range(len(requests))]  # fmt: skip


def test_an_answer_is_the_whole_blocks_between_its_prompt_and_the_next(tmp_path: Path) -> None:
    # 1,100 + 1,000 = 2,100 tokens: blocks 2 and 3 end at 2,048 and hold answer; block 4 also holds the next question.
    first = row("a", 1100, 1000, [0, 1, 2])
    other = row("b", 1100, 1000, [0, 1, 2])
    assert answers(tmp_path, first, other, row("a", 2600, 9, [0, 1, 3, 4, 5, 6])) == [[3, 4], [], []]
    assert answers(tmp_path, first, row("a", 2600, 9, [0, 1, 3, 4, 5, 6]), link=False) == []


@pytest.mark.parametrize(
    "following",
    [
        row("a", 2099, 9, [0, 1, 3, 4, 5]),  # a token too short to hold prompt and answer
        row("a", 2600, 9, [0, 9, 3, 4, 5, 6]),  # begins otherwise
        row("b", 2600, 9, [0, 1, 3, 4, 5, 6]),  # another session
        row("a", 2600, 9, []),  # no ids
    ],
)
def test_no_link_where_the_next_turn_cannot_hold_the_answer(tmp_path: Path, following: dict[str, object]) -> None:
    assert answers(tmp_path, row("a", 1100, 1000, [0, 1, 2]), following) == []


def test_the_note_says_how_many_and_strict_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = (row("a", 512, 512, [0]), row("a", 1024, 9, [0, 1]))
    path.write_text("".join(json.dumps({"timestamp": i, **r}) + "\n" for i, r in enumerate(rows)), encoding="utf-8")
    assert any("1 of 2 answers" in note and "--no-link-outputs" in note for note in read(path).notes)
    with pytest.raises(TraceError, match="--no-link-outputs"):
        read(path, options=ReadOptions(strict=True))
    assert len(read(path, options=ReadOptions(strict=True, link_outputs=False))) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(1, 1200), min_size=2, max_size=2)), max_size=8))
def test_a_conversation_that_only_grows_has_every_answer_linked(
    tmp_path: Path, turns: list[tuple[int, list[int]]]
) -> None:
    # Session s at token t holds content "s:t": the id of a full block names session and block; short ones are unique.
    length, rows, spans = [0, 0], [], []
    for k, (session, (question, answer)) in enumerate(turns):
        prompt = length[session] + question
        tail = [f"tail {k}"] if prompt % BLOCK else []
        ids = [f"{session}:{b}" for b in range(prompt // BLOCK)] + tail
        rows.append(row(str(session), prompt, answer, ids))  # type: ignore[arg-type]
        length[session] = prompt + answer
        spans.append((session, prompt // BLOCK, (prompt + answer) // BLOCK))
    if not rows:
        return
    found = answers(tmp_path, *rows)
    last = {session: k for k, (session, _) in enumerate(turns)}
    wanted = [0 if k == last[s] else end - start for k, (s, start, end) in enumerate(spans)]
    assert [len(a) for a in found] == (wanted if any(wanted) else [])
