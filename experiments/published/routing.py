"""Four workers behind a router: the capacity benchmark of llm-d's KV cache project (E1)."""

from dataclasses import dataclass

import numpy as np

from experiments.published.figure import Figure, Group
from kvcache.request import Requests

GROUPS, PROMPTS = 83, 3
SHARED, UNIQUE, OUTPUT = 8_000, 1_000, 1_000
POOL_TOKENS = 461_376
WORKERS = 4
UNIT = 8
WARM, WARM_PER_S = GROUPS * PROMPTS, 2.0
RATES = (3, 10)
STAGE_S = 40.0
ROUTERS = {"kv": "precise", "approximate": "approximate", "least_loaded": "load-only", "random": "random"}
"""Ours, and what it is called there."""
TTFT_S = {"kv": 0.193, "approximate": 1.549, "least_loaded": 41.1, "random": 42.0}
TTFT_AT_3_S = {"kv": 0.144, "approximate": 0.207, "least_loaded": 1.443, "random": 0.852}
OUTPUT_PER_S = {"kv": 5650, "approximate": 5096, "least_loaded": 3018, "random": 2895}
SOURCE = "llm-d-kv-cache, benchmarking/37-capacity"


def shared_prefixes(rate: float, seconds: float, seed: int) -> Requests:
    """83 groups of 3 prompts: 8,000 tokens of the group, 1,000 of the prompt. First each of the 249 once, for one token, to
    warm the caches; then requests for one of them at random."""
    rng = np.random.default_rng((seed, GROUPS))  # not the stream that a random router draws from
    n = round(rate * seconds)
    prompt = np.concatenate([rng.permutation(GROUPS * PROMPTS), rng.integers(0, GROUPS * PROMPTS, n)])
    own, common = UNIQUE // UNIT, SHARED // UNIT
    shared = (prompt // PROMPTS)[:, None] * common + np.arange(common)
    alone = GROUPS * common + prompt[:, None] * own + np.arange(own)
    units = np.concatenate([shared, alone], axis=1).astype(np.int32)
    return Requests(
        f"{GROUPS} groups of {PROMPTS} prompts, {rate}/s",
        UNIT,
        np.concatenate([np.arange(WARM) / WARM_PER_S, WARM / WARM_PER_S + np.cumsum(rng.exponential(1 / rate, n))]),
        np.full(WARM + n, SHARED + UNIQUE, np.int32),
        np.where(np.arange(WARM + n) < WARM, 1, OUTPUT).astype(np.int32),
        np.arange(WARM + n + 1, dtype=np.int64) * units.shape[1],
        units.ravel(),
    )


def needed_tokens() -> int:
    """Shared prompt tokens that a worker which sees every group would have to hold."""
    return GROUPS * SHARED


@dataclass(frozen=True)
class Stage:
    """One router at one rate."""

    ttft_s: float
    output_tokens_per_s: float
    hit_rate: float


def stage(router: str, rate: float, seconds: float = STAGE_S, seed: int = 0, *more: str) -> Stage:
    """Simulate it: Llama-3.1-70B, four workers of four H100 each; the warm-up is not counted."""
    from experiments.load import load
    from experiments.pieces import Pieces
    from experiments.routed import routed

    settings = [
        "model=llama-3.1-70b", "parallel.tensor_parallel_size=4", f"capacity.gpu_tokens={POOL_TOKENS}",
        f"workload.workers={WORKERS}", f"workload.router={router}", "tokens_per_block=64", f"workload.seed={seed}",
        "scheduler.capacity_scheduler_policy=MAX_UTILIZATION", *more,
    ]  # fmt: skip
    requests = shared_prefixes(rate, seconds, seed)
    served, _, _ = routed(Pieces(load(None, settings)[0], [requests]), None)
    counted = [(part.outcome, part.rows >= WARM) for part in served]
    sent, first, last, reused = (
        np.concatenate([getattr(outcome, name)[rows] for outcome, rows in counted])
        for name in ("sent_s", "first_token_s", "finish_s", "reused")
    )
    output = len(sent) * OUTPUT / (last.max() - sent.min())
    return Stage(float((first - sent).mean()), float(output), float(reused.sum() / len(sent) / (SHARED + UNIQUE)))


def groups() -> list[Group]:
    """E1: all routers at two rates."""
    stages = {router: [stage(router, rate) for rate in RATES] for router in ROUTERS}
    figures = []
    for router, name in ROUTERS.items():
        slow, fast = stages[router]
        tolerance = 0.2 if router == "kv" else None
        figures += [
            Figure("E1", f"{name}, TTFT at 3/s", "s", TTFT_AT_3_S[router], slow.ttft_s, None),
            Figure("E1", f"{name}, TTFT (all rates / 10/s)", "s", TTFT_S[router], fast.ttft_s, tolerance),
            Figure(
                "E1", f"{name}, output (all rates / 10/s)", "1/s", OUTPUT_PER_S[router], fast.output_tokens_per_s, None
            ),
        ]
    return [
        Group(
            "E1",
            "Llama-3.1-70B, 4 workers of 4 H100, 83 groups sharing 8,000 tokens",
            SOURCE,
            tuple(figures),
            f"A worker that sees every group, as under random routing, would have to hold {needed_tokens():,} shared tokens in a"
            f" pool of {POOL_TOKENS:,}: {needed_tokens() / POOL_TOKENS:.2f} times as much. Published: one figure over rates of 3"
            f" to 20/s, vLLM; ours: {STAGE_S:.0f} s at one rate, after each prompt was asked for once, MAX_UTILIZATION.",
        )
    ]
