"""One engine on real memory: the simulator's decisions again, and every byte where the policy believes it to be."""

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.engines import engine_of
from experiments.lockstep import Recording, record, replay
from experiments.ready import Ready, ready, whole
from experiments.run import run
from experiments.spec import Spec
from experiments.trace import Trace
from experiments.validate import Options, validate
from hw.cpu import CpuDevice
from hw.disk import SlotFile
from hw.errors import SlotFileGoneError, SlotFileShortError, StorageFaultError, classify
from hw.memory import GPU, HOST, Layout
from hw.stamps import WrongBytesError
from hw.worker import Check, Worker
from kvcache.commands import SansIOEngine
from kvcache.request import Requests
from kvcache.tables import LEVEL, NEXT, REFS, SLOT, T_FREE, T_SIZE, W_FIRST

SMALL: dict[str, Any] = {
    "kv_cache_config": {"tokens_per_block": 16, "dtype": "fp8"},
    "parallel": {"tensor_parallel_size": 8},
    "capacity": {"gpu_blocks": 90, "host_blocks": 200},
    "scheduler": {"max_batch_size": 8, "max_num_tokens": 1024},
    "too_long": "drop",
}


@pytest.fixture(scope="module")
def chat() -> Requests:
    """90 requests in 6 conversations of 15 turns: each turn repeats the prompt of the one before and adds to it."""
    prompts = [[100 * c + unit for unit in range(8 + 2 * turn)] for turn in range(15) for c in range(6)]
    tokens = [16 * len(units) - (i % 3) * 5 for i, units in enumerate(prompts)]
    offset = np.cumsum([0, *(len(units) for units in prompts)]).astype(np.int64)
    arrival_s = np.arange(len(prompts)) * 0.05
    output = np.array([3 + i % 20 for i in range(len(prompts))], np.int32)
    units = np.concatenate([np.array(units, np.int32) for units in prompts])
    return Requests("chat", 16, arrival_s, np.array(tokens, np.int32), output, offset, units)


def made(requests: Requests, **changes: Any) -> tuple[Ready, Recording, Layout]:
    spec = Spec.model_validate({**SMALL, **changes})
    work = ready(spec, requests, timing=True)
    return work, record(work), Layout(work.plan.pools, work.plan.copy_bytes, work.plan.settings.tokens_per_block)


CASES: dict[str, dict[str, Any]] = {
    "two tiers": {},
    "no host pool": {"capacity": {"gpu_blocks": 90, "host_blocks": 0}},
    "cascade to disk": {
        "profile": "cascade",
        "kv_cache_config": {"tokens_per_block": 16, "dtype": "fp8"},
        "capacity": {"gpu_blocks": 90, "host_blocks": 60, "disk_blocks": 200},
    },
    "values and scales": {"kv_cache_config": {"tokens_per_block": 16, "dtype": "nvfp4"}},
    "full and sliding window": {
        "kv_cache_config": {"tokens_per_block": 16, "dtype": "fp8", "max_attention_window": [64, 131072]},
        "capacity": {"gpu_blocks": 90, "host_blocks": 100},
    },
    "the rule of 2025": {"profile": "trtllm-2025"},
}


@pytest.mark.parametrize("check", ["each", "end"])
@pytest.mark.parametrize("case", CASES)
def test_decisions_are_the_simulators_and_no_byte_is_wrong(
    chat: Requests, case: str, check: Check, tmp_path: Path
) -> None:
    work, recording, layout = made(chat, **CASES[case])
    with closing(CpuDevice(layout, tmp_path)) as device:
        result = replay(work, recording, device, check=check)
    assert result.difference is None
    assert result.decisions == recording.calls[-1].decisions
    assert result.moves == recording.copies
    assert result.moves > 0 or case == "no host pool"
    assert result.checks >= 0.9 * result.moves
    assert result.hits_checked > 0
    kinds = {int(kind) for call in recording.calls for kind in call.commands.copies[:, 0]}
    assert {"cascade to disk": {0, 1, 2, 3}}.get(case, set()) <= kinds  # blocks come back from the disk too
    assert list(tmp_path.iterdir()) == []


def test_recording_takes_the_time_that_the_run_reports(chat: Requests) -> None:
    _, recording, _ = made(chat)
    row = run(Spec.model_validate(SMALL), chat)
    finish = float(recording.engine.outcome.finish_s.max())
    assert finish == pytest.approx(row["makespan_s"], rel=1e-9)
    assert row["offload_blocks"] == sum((call.commands.copies[:, 0] == 0).sum() for call in recording.calls)


def test_a_copy_that_never_happened_is_noticed_and_named(chat: Requests) -> None:
    """A device that loses the 40th offload: the engine believes in a block whose bytes are not there."""
    work, recording, layout = made(chat)

    class Forgetful(CpuDevice):
        runs = 0

        def run(self, programs: Any) -> Any:
            for program in programs.values():
                for row in program[program[:, 0] == 0]:
                    self.runs += 1
                    if self.runs == 40:
                        program[(program == row).all(axis=1), 5] = 8  # a word instead of the block
            return super().run(programs)

    said = r"slot \d+ .*key node \d+ version \d+"
    with closing(Forgetful(layout)) as device, pytest.raises(WrongBytesError, match=said):
        replay(work, recording, device)


def accounted(state: Any) -> None:
    """Slots of each tier are a permutation; queued blocks have no references; free counts are those of the queues."""
    for w in range(len(state.window)):
        first, sizes = int(state.window[w, W_FIRST]), state.tier[w, :, T_SIZE]
        mine = state.blocks[first : first + int(sizes.sum())]
        queued = mine[:, NEXT] != -1
        assert not (queued & (mine[:, REFS] > 0)).any()
        for level, size in enumerate(sizes.tolist()):
            here = mine[:, LEVEL] == level
            assert sorted(mine[here, SLOT].tolist()) == list(range(size))
            assert int((here & queued).sum()) == int(state.tier[w, level, T_FREE])


@pytest.mark.parametrize("fault", ["EIO", "removed", "short"])
def test_a_disk_that_fails_in_the_middle_of_a_run_is_one_error_and_every_block_is_still_accounted_for(
    chat: Requests, tmp_path: Path, fault: str
) -> None:
    work, recording, layout = made(chat, **CASES["cascade to disk"])
    engine = SansIOEngine(engine_of(work, whole(work)))

    class Failing(SlotFile):
        reads = 0

        def read(self, slot: int, row: Any) -> None:
            type(self).reads += 1
            if fault == "EIO" and type(self).reads == 5:
                raise classify(OSError(errno.EIO, "I/O error"), "reading", str(self.path), slot * self.rows.stride)
            if fault == "short" and type(self).reads == 5:
                os.truncate(self.path, 0)
            if fault == "removed":
                self.path.unlink(missing_ok=True)
            super().read(slot, row)

    kinds = {"EIO": StorageFaultError, "removed": SlotFileGoneError, "short": SlotFileShortError}
    with closing(CpuDevice(layout, tmp_path, Failing)) as device:
        with pytest.raises(kinds[fault], match="lost: "):
            replay(work, recording, device, engine=engine)
        accounted(engine.engine.state)
        assert engine.engine.state.stats[0].sum() > 0
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_decides_otherwise_is_stopped_at_the_first_call_that_differs(chat: Requests) -> None:
    """Replayed with another threshold: the first call with an offload differs."""
    work, recording, layout = made(chat)
    other = replace(
        work, plan=replace(work.plan, settings=work.plan.settings._replace(secondary_offload_min_priority=90))
    )
    with closing(CpuDevice(layout)) as device:
        result = replay(other, recording, device)
    assert result.difference is not None
    first = next(i for i, call in enumerate(recording.calls) if (call.commands.copies[:, 0] == 0).any())
    assert result.difference.step == first
    said = "\n".join(result.difference.lines())
    assert "simulator  offload, window 0, slot" in said
    assert "hardware   0 copies" in said


def test_content_under_a_wrong_key_is_noticed(chat: Requests) -> None:
    """The bytes are right but belong to another key: found when a request starts with them."""
    work, recording, layout = made(chat)
    engine = SansIOEngine(engine_of(work, whole(work)))
    with closing(CpuDevice(layout)) as device:
        worker = Worker(engine, device)
        found, node = worker._check_found, worker._node

        def check_found() -> None:
            worker._node = lambda request, position: node(request, position) + 1  # type: ignore[method-assign]
            found()
            worker._node = node  # type: ignore[method-assign]

        worker._check_found = check_found  # type: ignore[method-assign]

        def serve() -> None:
            before = 0
            for call in recording.calls:
                for request in range(before, call.arrived):
                    engine.arrive(request)
                before = call.arrived
                worker.copies(engine.next_commands(call.now_s))
                worker.kernels()
                if call.commands.step is not None:
                    engine.finish(call.commands.step, call.finish_s)

        with pytest.raises(WrongBytesError, match="instead of key node"):
            serve()


def test_pools_have_the_sizes_of_the_simulator(chat: Requests) -> None:
    work, _, layout = made(chat)
    assert layout.bytes_of(GPU) == 90 * work.plan.block_bytes[0]
    assert layout.bytes_of(HOST) == 200 * work.plan.block_bytes[0]


def test_validate_compares_times_and_says_how_noisy_it_was() -> None:
    settings = [
        "tokens_per_block=64",
        "dtype=fp8",
        "parallel.tensor_parallel_size=8",
        "gpu_tokens=131072",
        "host_tokens=65536",
    ]
    trace = Trace("mooncake_arxiv_first1000", limit=20)
    result = validate(trace, None, settings, Options("cpu", mode="both", repeats=2))
    figures = result.figures
    assert figures["decisions_identical"]
    assert figures["corrupt"] == 0
    assert figures["verdict"] in {"within bounds", "outside bounds", "too noisy to judge"}
    assert set(figures["by_direction"]) <= {"offload", "onboard", "copy inside the GPU"}
    assert figures["all"]["blocks"] == figures["copies"] == figures["moves"] // 2
    assert sum(one["bytes"] for one in figures["by_direction"].values()) == figures["all"]["bytes"]
    assert figures["live"]["measured"]["hit tokens"] > 0
    assert any(line.startswith("verdict:") for line in result.lines)


def test_stamps_of_a_partial_copy_end_where_the_copy_ends(chat: Requests) -> None:
    _, _, layout = made(chat)
    from hw.stamps import Stamps

    stamps = Stamps(layout)
    a, b, c = (layout.place(0, GPU, slot) for slot in range(3))
    stamps.compute(a, 5)
    stamps.copy(a, b, 7)
    stamps.copy(b, c, 0)
    assert [int(stamps.tokens[p]) for p in (a, b, c)] == [0, 7, 7]
    assert stamps.seed(a) == stamps.seed(b) == stamps.seed(c)
    assert stamps.compute(a, 5) != stamps.seed(b)  # the same key computed again is another version
    assert np.all(stamps.tokens[3:] == -1)
