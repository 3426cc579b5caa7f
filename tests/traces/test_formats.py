"""Each format is recognised by its content, and its one or two rows come out as a person would read them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvcache.request import Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import FORMATS, opened, read

FORMAT_FILES = Path(__file__).parent / "formats"
Write = Callable[..., Path]

# file: block tokens, arrivals, prompts, outputs, units, sessions
EXPECTED = {
    "agentic_mooncake.jsonl": (512, [0, 0.125], [1024, 512], [50, 9], [0, 1, 2], [0, 1]),
    "aibrix_workload.jsonl": (1, [0], [5], [22], [0, 1, 2, 3, 4], [-1]),
    "azure_2023.csv": (1, [0, 0.052], [4808, 3180], [10, 8], [], [-1, -1]),
    "azure_2024.csv": (1, [0, 0.99007], [2162, 2399], [5, 6], [], [-1, -1]),
    "azure_lmm_2025.csv": (1, [0, 5.55], [770, 949], [491, 126], [], [-1, -1]),
    "bailian_16.jsonl": (16, [0, 61.114], [40, 70], [12, 7], [0, 1, 2, 0, 1, 3, 4, 5], [0, 0]),
    "burstgpt_v1.csv": (1, [0, 40], [100, 80], [18, 0], [], [-1, -1]),
    "burstgpt_v2.csv": (1, [0, 40], [100, 80], [18, 0], [], [0, -1]),
    "kvcache_simulator.jsonl": (64, [0], [150], [0], [0, 1, 2], [-1]),
    "llmservingsim_agentic.jsonl": (1, [0, 0.127348767], [1472, 1582], [133, 125], [], [0, 0]),
    "llmservingsim_flat.jsonl": (1, [0], [4], [2], [5, 6, 7, 8], [-1]),
    "mooncake.jsonl": (512, [0, 3], [1100, 1500], [20, 5], [0, 1, 2, 0, 1, 3], [-1, -1]),
    "mooncake_sessions.jsonl": (512, [0, 2], [1100, 1500], [20, 5], [0, 1, 2, 0, 1, 3], [0, 0]),
    "tair_optimizer.jsonl": (16, [0], [32], [0], [0, 1], [-1]),
    "tair_optimizer_2026.jsonl": (16, [0, 1.2500005], [40, 32], [0, 0], [0, 1, 0, 2], [-1, -1]),
    "text_log.jsonl": (1, [0, 2], [2, 3], [0, 1], [0, 4, 0, 1, 2], [0, 0]),
    "trtllm_kv_events.json": (1, [0], [1], [0], [1], [-1]),
    "vidur_splitwise.csv": (1, [0, 4.314579], [374, 396], [44, 109], [], [-1, -1]),
}
NAMES = {
    "agentic_mooncake.jsonl": "agentic-mooncake",
    "aibrix_workload.jsonl": "aibrix",
    "bailian_16.jsonl": "bailian",
    "kvcache_simulator.jsonl": "kvcache-simulator",
    "llmservingsim_agentic.jsonl": "llmservingsim-sessions",
    "llmservingsim_flat.jsonl": "llmservingsim",
    "openai_batch.jsonl": "text-log",
    "sharegpt.json": "sharegpt",
    "tair_optimizer.jsonl": "tair",
    "tair_optimizer_2026.jsonl": "tair",
    "text_log.jsonl": "text-log",
    "trtllm_kv_events.json": "trtllm-kv-events",
    "vidur_splitwise.csv": "vidur",
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(*rows: object, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return to_file


def columns(workload: Requests) -> tuple[object, ...]:
    return (
        workload.unit_tokens,
        workload.arrival_s.tolist(),
        workload.prompt_tokens.tolist(),
        workload.output_tokens.tolist(),
        workload.units.tolist(),
        workload.session.tolist(),
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_format_sample_is_recognised_and_read(name: str) -> None:
    assert columns(read(FORMAT_FILES / name)) == EXPECTED[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_format_is_found_out_by_content(name: str) -> None:
    assert opened(FORMAT_FILES / name).format == NAMES[name]


def test_sharegpt_turns_grow_by_answer_and_question() -> None:
    # Bytes by fours: "Name a colour." 4 pieces, "Blue." 2, "Another." 2, "Red." 1; a mark before each message.
    workload = read(FORMAT_FILES / "sharegpt.json")
    assert columns(workload)[:4] == (1, [0, 0], [6, 12], [2, 1])
    first, second = (workload.prompt_units(i).tolist() for i in range(2))
    assert workload.output_units is not None
    assert workload.output_units.tolist()[:2] == second[6:8]
    assert second[:6] == first
    assert any("--tokenizer FILE" in note for note in workload.notes)


def test_servegen_windows_become_arrivals_at_their_rate_and_need_lengths() -> None:
    file = FORMAT_FILES / "servegen_trace.csv"
    with pytest.raises(TraceError, match="give --default-prompt N and --default-output N"):
        read(file)
    workload = read(file, options=ReadOptions(default_prompt=9, default_output=3))
    # 600 s at 1.33 a second, as bursty as the window says (a coefficient of variation of 8.6), then 600 s of nothing.
    assert 250 < len(workload) < 2500
    assert workload.arrival_s[-1] < 600
    assert set(workload.prompt_tokens.tolist()) == {9}
    gaps = np.diff(workload.arrival_s)
    assert gaps.std() > 2 * gaps.mean()
    again = read(file, options=ReadOptions(default_prompt=9, default_output=3))
    assert again.arrival_s.tolist() == workload.arrival_s.tolist()


@pytest.mark.parametrize(
    "line", ["0,2e4,1,Gamma,1,1", "0,1,1,Pareto,1,1", "0,1,1,Weibull,0.001,1", "0,1,1,Gamma,1", "x,1,1,Gamma,1,1"]
)
def test_a_servegen_window_that_cannot_be_meant_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text(f"0,0,0,,0,0\n{line}\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"trace.csv:2: "):
        read(path, options=ReadOptions(default_prompt=9, default_output=3))


def test_openai_batch_lengths_come_from_text_and_max_tokens() -> None:
    # "Be brief." is 3 pieces of 4 bytes, "Hi" 1; one mark a message and one for the answer to come.
    workload = read(FORMAT_FILES / "openai_batch.jsonl")
    assert columns(workload)[:4] == (1, [0], [7], [16])
    assert any("max_tokens" in note and "--default-output" in note for note in workload.notes)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(TraceError, match=", ".join(FORMATS)):
        read("mooncake_conversation", format="mooncaek")


def test_named_format_overrides_what_the_content_looks_like(write: Write) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 2, "input_length": 5, "output_length": 1, "hash_ids": [0]}
    later = row | {"chat_id": 2, "timestamp": 5}
    path = write(row, later)
    assert columns(read(path))[:2] == (16, [0, 3])
    assert columns(read(path, format="mooncake"))[:2] == (512, [0, 0.003])


def test_own_token_rows_keep_token_ids_tenants_and_generated_content(write: Write) -> None:
    workload = read(
        write(
            {"timestamp": 10, "input_token_ids": [7, 8], "output_token_ids": [9], "tenant": "b", "session_id": "x"},
            {"timestamp": 20, "input_token_ids": [7, 8, 9, 1], "output_length": 5, "tenant": "a"},
        )
    )
    assert columns(workload) == (1, [0, 0.01], [2, 4], [1, 5], [7, 8, 7, 8, 9, 1], [0, -1])
    assert workload.output_units is not None
    assert workload.output_offset is not None
    assert workload.output_units.tolist() == [9]
    assert workload.output_offset.tolist() == [0, 1, 1]  # the second answer's content is not known
    assert workload.labels["tenant"].names == ("b", "a")
    assert workload.labels["tenant"].codes.tolist() == [0, 1]


def test_a_private_gzip_of_many_members_is_read_to_the_end(tmp_path: Path) -> None:
    row = b'{"timestamp": %d, "input_length": 512, "output_length": 1, "hash_ids": [%d]}\n'
    path = tmp_path / "shard"
    path.write_bytes(b"".join(gzip.compress(row % (i, i)) for i in range(3)))
    assert len(read(path)) == 3


def test_block_size_of_the_rows_wins_over_the_default_and_the_option_over_both(write: Write) -> None:
    path = write({"timestamp": 0, "input_length": 60, "output_length": 1, "hash_ids": [1, 2], "block_size": 32})
    assert read(path).unit_tokens == 32
    assert read(path, options=ReadOptions(trace_block_size=40)).unit_tokens == 40


def test_only_power_of_two_that_fits_is_used_with_a_note_and_refused_when_strict(write: Write) -> None:
    # 3 ids for 40 tokens: 14 to 19, or 11 to 13 with the tail left out; 16 is the only power of two.
    path = write({"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]})
    workload = read(path)
    assert workload.unit_tokens == 16
    assert "16 is the only power of two" in workload.notes[0]
    assert "--trace-block-size overrides" in workload.notes[0]
    with pytest.raises(TraceError, match="--strict refuses this"):
        read(path, options=ReadOptions(strict=True))


def test_rows_that_do_not_fit_the_block_size_can_be_skipped(write: Write) -> None:
    good = {"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2], "session_id": "s"}
    workload = read(
        write(good | {"hash_ids": [4, 5, 6], "timestamp": 0}, good, good | {"hash_ids": [1, 3]}),
        options=ReadOptions(skip_bad_lines=True, trace_block_size=512),
    )
    assert columns(workload) == (512, [0, 0], [600, 600], [1, 1], [3, 4, 3, 5], [0, 0])
    assert "1 lines skipped" in workload.notes[0]


def test_all_hash_ids_must_begin_with_the_prompts_and_fit_the_total(write: Write) -> None:
    row = {"timestamp": 0, "input_length": 1024, "output_length": 600, "hash_ids": [1, 2], "all_hash_ids": [1, 2, 3, 4]}
    workload = read(write(row))
    assert workload.output_units is not None
    assert workload.output_units.tolist() == [2, 3]  # ids 3 and 4
    with pytest.raises(TraceError, match=r"all_hash_ids has 2 ids for 1624 tokens; .* make it 3 or 4"):
        read(write(row | {"all_hash_ids": [1, 2]}))
    with pytest.raises(TraceError, match="does not begin with hash_ids"):
        read(write(row | {"all_hash_ids": [9, 2, 3, 4]}))


def test_a_conversation_is_one_session_whatever_the_order_of_its_chats(write: Write) -> None:
    def chat(number: int, parent: int, second: int) -> dict[str, object]:
        return {"chat_id": number, "parent_chat_id": parent, "timestamp": second, "input_length": 5,
                "output_length": 1, "hash_ids": [0]}  # fmt: skip

    # 3 continues 2 continues 1; 8 and 9 name each other; 5 stands alone.
    rows = (chat(3, 2, 0), chat(5, -1, 1), chat(2, 1, 2), chat(8, 9, 3), chat(1, -1, 4), chat(9, 8, 5))
    assert read(write(*rows)).session.tolist() == [0, 1, 0, 2, 0, 2]


def test_a_pretty_printed_session_object_is_one_trace(write: Write) -> None:
    session = {"id": "s", "block_size": 64, "hash_id_scope": "local",
               "requests": [{"t": 9.0, "type": "n", "in": 130, "out": 4, "hash_ids": [5, 6]},
                            {"t": 1.0, "type": "subagent", "agent_id": "a",
                             "requests": [{"t": 2.0, "type": "n", "in": 64, "out": 1, "hash_ids": [5]}]}]}  # fmt: skip
    workload = read(write(json.dumps(session, indent=1)))
    # The sub-agent's request comes 1 s + 2 s after the session began, 6 s before the other one; id 5 is the same block.
    assert columns(workload) == (64, [0, 6], [64, 130], [1, 4], [0, 0, 1], [0, 1])


def test_ids_local_to_a_session_are_not_shared_between_sessions(write: Write) -> None:
    session = {"block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}
    assert read(write(session, session)).units.tolist() == [0, 1]
    shared = session | {"hash_id_scope": "global"}
    assert read(write(shared, shared)).units.tolist() == [0, 0]


def test_a_fault_inside_a_session_names_the_request(write: Write) -> None:
    session = {"block_size": 64, "requests": [{"t": 0, "in": -3, "out": 1, "hash_ids": [1]}]}
    with pytest.raises(TraceError, match=r"trace.jsonl:1: requests\[0\]: in is -3"):
        read(write(session))


@pytest.mark.parametrize("name", ["azure_2023.csv", "llmservingsim_flat.jsonl"])
def test_a_block_size_is_refused_where_there_are_no_hash_ids(name: str) -> None:
    with pytest.raises(TraceError, match="--trace-block-size does not apply"):
        read(FORMAT_FILES / name, options=ReadOptions(trace_block_size=16))


class TestThinkTimes:
    """From the end of the turn before to this one, in seconds; NaN where the trace does not say."""

    def test_a_delay_is_one_whether_or_not_the_row_has_a_time(self, write: Write) -> None:
        row = {"input_length": 5, "output_length": 1, "hash_ids": [0], "session_id": "x"}
        path = write(row | {"timestamp": 0}, row | {"delay": 1500}, row | {"timestamp": 9000, "delay": 250})
        assert read(path).think_s.tolist()[1:] == [1.5, 0.25]
        assert np.isnan(read(path).think_s[0])

    def test_recorded_durations_give_them(self) -> None:
        # Claude Code: sent at 0 s, answered after 15.87 s; next turn sent at 51 s (recorded, rounded, as "think_time" 35)
        thought = read("claude_code_weka_a")
        first = thought.take(np.flatnonzero(thought.session == 0)).think_s
        assert np.isnan(first[0])
        assert first[1:3].tolist() == pytest.approx([51 - 15.87, 72 - 51 - 7.98])
        assert (first[1:] >= 0).all()
        # Dynamo: received at ...080006 ms, took 22503.473 ms, and so on
        agent = read("dynamo_pi_request_trace")
        known = agent.think_s[~np.isnan(agent.think_s)]
        assert len(known) == len(agent) - len(np.unique(agent.session))
        assert (known >= 0).all()

    def test_a_trace_without_them_has_none(self) -> None:
        assert np.isnan(read("mooncake_arxiv_first1000").think_s).all()
