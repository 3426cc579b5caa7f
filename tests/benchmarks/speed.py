"""How fast it is, in ratios of the same minute on the same machine: `python -m tests.benchmarks.speed`.

The yardstick is the plainest cache there is: one `OrderedDict` in least-recently-used order over the same touches, one
tier, no rules. It is measured three times. With ready-made keys, against our replay alone: 64-bit hashes, as a prefix
cache has them ("hashes"), or the dense numbers that kvtier's own interning yields, which dictionaries like best
("numbers"). And from the trace, making its keys as it goes ("trace"), against our interning and replay together.
"""

import subprocess
import sys
import sysconfig
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.pools import plan
from experiments.retention import columns
from experiments.run import run
from experiments.spec import Spec
from kvcache.engine import make_outcome
from kvcache.load import Load, longest_blocks, prepare
from kvcache.request import Requests
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import GEN_ALLOC, MISSED, REUSED
from traces.read import read

TRACE = "mooncake_conversation"
POOL_TOKENS = 3_000_000
RULES: dict[str, Any] = {
    "capacity": {"gpu_tokens": POOL_TOKENS, "host_tokens": POOL_TOKENS},
    "retention": [
        {"system_prompt": {"min_sessions": 2}, "priority": 100},
        {"turns": True, "priority": 50, "duration_s": 30},
        {"decode": True, "priority": 20, "duration_s": 10},
    ],
}


def spec_of(tokens_per_block: int, **more: Any) -> Spec:
    return Spec.model_validate({**RULES, "kv_cache_config": {"tokens_per_block": tokens_per_block}, **more})


def touches(load: Load, requests: Requests, tokens_per_block: int, *, hashes: bool) -> list[list[int]]:
    """Each request's blocks, prompt and generated, as plain integers: what both sides touch."""
    keys = load.keys.astype(np.uint64)
    if hashes:
        keys = keys * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(3)  # one to one, and in no order
    total = (requests.prompt_tokens.astype(np.int64) + requests.output_tokens) // tokens_per_block
    return [keys[at : at + n].tolist() for at, n in zip(load.key_offset[:-1].tolist(), total.tolist(), strict=True)]


def plain_lru(blocks: list[list[int]], capacity: int) -> int:
    """Hits of the yardstick."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    touch, evict = cache.move_to_end, cache.popitem
    for request in blocks:
        for block in request:
            if block in cache:
                touch(block)
                hits += 1
            else:
                if len(cache) >= capacity:
                    evict(last=False)
                cache[block] = None
    return hits


def plain_lru_from_trace(requests: Requests, tokens_per_block: int, capacity: int) -> int:
    """Hits of the yardstick that starts from the trace's own blocks: one key a piece of each, a new one a generated block."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits, private = 0, 0
    touch, evict = cache.move_to_end, cache.popitem
    pieces = requests.unit_tokens // tokens_per_block
    units = [requests.prompt_units(i).tolist() for i in range(len(requests))]
    for ids, prompt, output in zip(
        units, requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), strict=True
    ):
        total = (prompt + output) // tokens_per_block
        shared = prompt // tokens_per_block
        for i in range(total):
            if i < shared:
                block = ids[i // pieces] * pieces + i % pieces
            else:
                private -= 1
                block = private
            if block in cache:
                touch(block)
                hits += 1
            else:
                if len(cache) >= capacity:
                    evict(last=False)
                cache[block] = None
    return hits


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def replay(requests: Requests, spec: Spec) -> tuple[dict[str, float], Load]:
    """CPU seconds of one cache-only replay by its parts, how many blocks it touched, and its keys."""
    the_plan = plan(spec, int((requests.prompt_tokens.astype(np.int64) + requests.output_tokens).max()))
    positions, n = longest_blocks(requests, spec.kv_cache_config.tokens_per_block), len(requests)
    rules_s, retention = seconds(lambda: columns(requests, spec.retention))
    intern_s, (state, load) = seconds(lambda: prepare(requests, retention, the_plan.pools, the_plan.settings))
    q, m, out, scratch = (
        make_sequences(1, 1, positions),
        make_matches(1, positions),
        make_outcome(n),
        np.zeros((3, 1), int),
    )
    arrival_us = (requests.arrival_s * 1e6).astype(np.int64)
    replay_s, done = seconds(lambda: replay_serial(state, q, m, load, scratch, arrival_us, 0, n, out.reused))
    assert done == n
    touched = float(state.stats[0, [REUSED, MISSED, GEN_ALLOC]].sum())
    return {"rules": rules_s, "interning": intern_s, "replay": replay_s, "touches": touched}, load


def cache_only(requests: Requests, tokens_per_block: int, rounds: int = 3) -> dict[str, float]:
    """Both sides in turn, the best of `rounds`."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        row, load = replay(requests, spec_of(tokens_per_block))
        for kind in ("hashes", "numbers"):
            blocks = touches(load, requests, tokens_per_block, hashes=kind == "hashes")
            row[kind], _ = seconds(partial(plain_lru, blocks, POOL_TOKENS // tokens_per_block))
            del blocks
        del load
        row["trace"], _ = seconds(
            partial(plain_lru_from_trace, requests, tokens_per_block, POOL_TOKENS // tokens_per_block)
        )
        best = {name: min(value, best.get(name, value)) for name, value in row.items()}
    return best | {"ours": best["interning"] + best["replay"]}


def rows(requests: Requests) -> Iterator[str]:
    """The table, line by line as it is measured."""
    yield f"{TRACE}: {len(requests)} requests; GPU and host pools of {POOL_TOKENS:,} tokens each; CPU seconds"
    yield "tokens   blocks        OrderedDict LRU         kvtier, two tiers, all rules      kvtier is faster than"
    yield "a block  touched   hashes  numbers  trace      interning  replay    sum      hashes  numbers  trace"
    for tokens_per_block in (512, 128, 32, 16):
        b = cache_only(requests, tokens_per_block)
        yield (
            f"{tokens_per_block:6d}  {b['touches'] / 1e6:5.2f} M    {b['hashes']:6.3f}  {b['numbers']:6.3f}  {b['trace']:6.3f}"
            f"     {b['interning']:6.3f}   {b['replay']:6.3f}  {b['ours']:6.3f}"
            f"     {b['hashes'] / b['replay']:5.1f}x  {b['numbers'] / b['replay']:5.1f}x  {b['trace'] / b['ours']:5.1f}x"
        )
    for tokens_per_block in (512, 16):
        yield f"memory, cache-only replay at {tokens_per_block} tokens a block: {memory_gib(tokens_per_block):.2f} GiB"
    for name, spec in (
        ("4 workers, 32 tokens a block", spec_of(32, workload={"workers": 4})),
        ("1 worker, 10,000 blocks of 512", spec_of(512, capacity={"gpu_blocks": 10_000, "host_blocks": 10_000})),
    ):
        run(spec, requests.head(50))  # whatever has to be compiled
        took, row = seconds(partial(run, spec, requests))
        yield (
            f"timed, {name}: {took:.2f} CPU s for {row['makespan_s']:.0f} s simulated,"
            f" {row['makespan_s'] / took:.0f} x real time; {row['steps']:,} steps"
        )
    yield f"second start of kvtier: {second_start_s():.2f} s for 1000 requests, {second_start_s(True):.2f} s for help"


def memory_gib(tokens_per_block: int) -> float:
    """Highest resident size of a process that does the cache-only replay and nothing else."""
    code = (
        "from resource import RUSAGE_SELF, getrusage\n"
        "from tests.benchmarks.speed import TRACE, read, run, spec_of\n"
        f"run(spec_of({tokens_per_block}), read(TRACE), timing=False)\n"
        "print(getrusage(RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout) / 2**20


def second_start_s(help_only: bool = False) -> float:
    """Wall time of the command on the small trace, compiled code in place."""
    arguments = ["--help"] if help_only else ["mooncake_arxiv_first1000", "--no-timing", "--json", "-"]
    command = [str(Path(sysconfig.get_path("scripts")) / "kvtier"), "replay", *arguments]
    for _ in range(2):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begun


def main() -> None:
    for line in rows(read(TRACE)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
