"""Four workers behind a router: the capacity benchmark of llm-d's KV cache project (E1).

The workload is made from its description: prompts in one shuffled order, over and over; a warm-up, then each rate by itself.
The routers are llm-d's, the workers TensorRT-LLM's engine: what vLLM's does otherwise is not in here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.published.figure import Figure, Group
from kvcache.request import Requests

GROUPS, PROMPTS = 83, 3
SHARED, UNIQUE, OUTPUT = 8_000, 1_000, 1_000
POOL_TOKENS = 461_376
WORKERS = 4
UNIT = 8
WARM_PER_S, WARM_S, PAUSE_S = 9, 30, 400
PUBLISHED: Any = yaml.safe_load((Path(__file__).parent / "llmd-37-capacity.yaml").read_text(encoding="utf-8"))
RATES: tuple[int, ...] = tuple(PUBLISHED["seconds"])
CHARACTERS = 5.76
"""Of a token: random ids of Llama 3's vocabulary as text (20 x 8,000 ids; read back they are 1.04 times as many)."""


def _estimate(block_characters: int, blocks: int) -> tuple[str, ...]:
    """llm-d's estimate hashes characters, in blocks: the first 256 of a prompt; it remembers `blocks` for each worker."""
    seen, kept = (int(n * block_characters / CHARACTERS) for n in (256, blocks))
    return (f"router.seen_tokens={seen}", f"router.remembered_tokens={kept}")


ROUTERS: Mapping[str, tuple[str, ...]] = {
    "precise": ("workload.router=scored",),
    "approximate (final)": ("workload.router=scored_approximate", *_estimate(64, 31_250)),
    "approximate (first)": ("workload.router=scored_approximate", *_estimate(256, 2_200)),
    "load-only": ("workload.router=scored_load",),
    "random": ("workload.router=random",),
}
"""What a router is called there, and our settings."""
SOURCE = "llm-d-kv-cache, benchmarking/37-capacity"


def requests_at(rate: float, seconds: float, seed: int) -> Requests:
    """83 groups of 3 prompts: 8,000 tokens of the group, 1,000 of the prompt; first the warm-up, then one rate.

    Gaps between requests are exponential, stretched so that the last comes at the end, as inference-perf makes them.
    """
    rng = np.random.default_rng((seed, GROUPS))  # not the stream that a random router draws from
    order = rng.permutation(GROUPS * PROMPTS)
    counts = [WARM_PER_S * WARM_S, round(rate * seconds)]
    gaps = [rng.exponential(1.0, n) for n in counts]
    starts, lasts = (0.0, WARM_S + PAUSE_S), (WARM_S, seconds)
    n = sum(counts)
    prompt = order[np.arange(n) % len(order)]
    own, common = UNIQUE // UNIT, SHARED // UNIT
    shared = (prompt // PROMPTS)[:, None] * common + np.arange(common)
    alone = GROUPS * common + prompt[:, None] * own + np.arange(own)
    units = np.concatenate([shared, alone], axis=1).astype(np.int32)
    return Requests(
        f"{GROUPS} groups of {PROMPTS} prompts, {rate}/s",
        UNIT,
        np.concatenate([s + np.cumsum(g) * t / g.sum() for s, g, t in zip(starts, gaps, lasts, strict=True)]),
        np.full(n, SHARED + UNIQUE, np.int32),
        np.full(n, OUTPUT, np.int32),
        np.arange(n + 1, dtype=np.int64) * units.shape[1],
        units.ravel(),
    )


def needed_tokens(groups: float) -> int:
    """Prompt tokens that a worker which sees so many groups would have to hold."""
    return round(groups * (SHARED + PROMPTS * UNIQUE))


@dataclass(frozen=True)
class Stage:
    """One router at one rate; times are the engine's, from a request's arrival there."""

    ttft_s: float
    output_tokens_per_s: float
    hit_rate: float
    requests: int


def stage(router: str, rate: int, seed: int = 0, *more: str) -> Stage:
    """Simulate it: Llama-3.1-70B, four workers of four H100 each; the warm-up is not counted."""
    from experiments.load import load
    from experiments.pieces import Pieces
    from experiments.routed import routed

    settings = [
        "model=llama-3.1-70b", "parallel.tensor_parallel_size=4", f"capacity.gpu_tokens={POOL_TOKENS}",
        f"workload.workers={WORKERS}", "tokens_per_block=64", f"workload.seed={seed}", "router.overlap_weight=2",
        "scheduler.capacity_scheduler_policy=MAX_UTILIZATION", *ROUTERS[router], *more,
    ]  # fmt: skip
    requests = requests_at(rate, PUBLISHED["seconds"][rate], seed)
    served, _, _ = routed(Pieces(load(None, settings)[0], [requests]), None)
    counted = [(part.outcome, part.rows >= WARM_PER_S * WARM_S) for part in served]
    sent, first, last, reused = (
        np.concatenate([getattr(outcome, name)[rows] for outcome, rows in counted])
        for name in ("sent_s", "first_token_s", "finish_s", "reused")
    )
    output = len(sent) * OUTPUT / (last.max() - sent.min())
    hits = reused.sum() / len(sent) / (SHARED + UNIQUE)
    return Stage(float((first - sent).mean()), float(output), float(hits), len(sent))


Stages = Mapping[str, Mapping[int, Stage]]


def stages() -> Stages:
    """All routers at all rates."""
    return {router: {rate: stage(router, rate) for rate in RATES} for router in ROUTERS}


def mean_ttft_s(by_rate: Mapping[int, Stage]) -> float:
    """Over all requests of all rates."""
    return sum(s.ttft_s * s.requests for s in by_rate.values()) / sum(s.requests for s in by_rate.values())


def around_s(found: Stages) -> float:
    """Seconds that their client waits outside the engine: what the precise router's mean over all rates lacks."""
    return float(PUBLISHED["precise_over_all_rates_ttft_s"]) - mean_ttft_s(found["precise"])


def groups() -> list[Group]:
    """E1: all routers at all rates."""
    return groups_of(stages())


def groups_of(found: Stages) -> list[Group]:
    """The rows of simulated stages."""
    around = around_s(found)
    whole, ours = float(PUBLISHED["precise_over_all_rates_ttft_s"]), mean_ttft_s(found["precise"]) + around
    figures = [Figure("E1", "precise, TTFT over all rates", "s", whole, ours, 0.2, "time around the engine")]
    for router, by_rate in found.items():
        for rate, at in by_rate.items():
            judged = 0.2 if router == "precise" else None
            published = PUBLISHED["ttft_s"][router][rate]
            figures.append(Figure("E1", f"{router}, TTFT at {rate}/s", "s", published, at.ttft_s + around, judged))
    for router, by_rate in PUBLISHED["output_tokens_per_s"].items():
        for rate, published in by_rate.items():
            what, made = f"{router}, output at {rate}/s", found[router][rate].output_tokens_per_s
            figures.append(Figure("E1", what, "tokens/s", published, made, None))
    title = "Llama-3.1-70B, 4 workers of 4 H100, 83 groups sharing 8,000 tokens"
    return [Group("E1", title, SOURCE, tuple(figures), _note(found, around))]


def _note(found: Stages, around: float) -> str:
    every, fair = needed_tokens(GROUPS), needed_tokens(GROUPS / WORKERS)
    hits = {router: found[router][10].hit_rate for router in ROUTERS}
    alone = [stage.ttft_s for stage in found["precise"].values()]
    return (
        f"Why random routing collapses: a worker that sees every group would have to hold {GROUPS * SHARED:,} shared tokens"
        f" ({GROUPS * SHARED / POOL_TOKENS:.2f} times its pool of {POOL_TOKENS:,}; {every / POOL_TOKENS:.2f} times with the"
        f" questions), one that sees a quarter of them {fair:,} ({fair / POOL_TOKENS:.2f} times). Tokens found at 10/s: precise"
        f" {100 * hits['precise']:.0f} %, approximate {100 * hits['approximate (final)']:.0f} and"
        f" {100 * hits['approximate (first)']:.0f}, load-only {100 * hits['load-only']:.0f}, random {100 * hits['random']:.0f}."
        f"\n\nTime around the engine: where every prompt is found whole, our engine's first token takes {1e3 * min(alone):.0f}"
        f" to {1e3 * max(alone):.0f} ms; their client waits 144 to 210, behind a gateway, two tokenizers over 51,000"
        " characters and a stream that comes in bundles (their ITL is 0 in the median and 78 to 100 ms at p90). One constant,"
        f" {1e3 * around:.0f} ms, is what our mean over all rates lacks; it is added to every row, and each rate is judged with"
        " it. Repeated by its authors (the page's first version) precise took 0.259 s instead of 0.193, so 20 % is less than"
        " their own spread."
        "\n\nNot reached: the final estimate remembers every prompt's beginning, so that by its rule it routes as well as the"
        " precise index, and ours does; what it lost there does not follow from the description. The first one remembers some"
        " 98,000 tokens a worker and is behind in both. Load-only and random change places from rate to rate in both."
        " Below saturation (3 to 6/s) our workers without their prompts are"
        " faster than theirs: random saturates there between 3 and 4/s, here between 4 and 5/s. Ours run TensorRT-LLM's"
        " scheduler (MAX_UTILIZATION, 8,192 tokens a step), theirs vLLM's. Their tokens/s count some 910 of 1,000 tokens."
    )
