"""Timed runs of one simulated engine: prompts that are all there at once, some of whose blocks lie in host memory.

It knows no published figure. To have blocks in host memory and nowhere else, prompts are served once, then as many
blocks of filler push them out of the GPU. Filler has a priority below the offload threshold: when it is pushed out in
its turn it is dropped, so that what is measured writes nothing to host memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.engines import cost_of, engine_of, lanes_of, layers_of, overlap_of
from experiments.ready import ready, whole
from experiments.spec import Capacity, KvCacheConfig, RetentionRule, Scheduler, Spec
from kvcache.engine import Outcome
from kvcache.request import Labels, Requests
from sim.cluster import simulate
from sim.worker import Worker

Overlap = Literal["trtllm", "layerwise", "full"]

BLOCK = 16
"""Tokens of a block: vLLM's, whose measurements these runs stand beside."""
CHUNK = 16384
"""Tokens computed in one step at most, and below the requests: vLLM's defaults for offline use of an H100."""
LATER_S = 1e4
"""Between the parts of a run: longer than any of them takes."""


@dataclass(frozen=True)
class Prompt:
    """`tokens` prompt tokens that no prompt of another `name` shares."""

    name: int
    tokens: int
    arrival_s: float
    filler: bool = False
    output_tokens: int = 1


def requests_of(prompts: Sequence[Prompt]) -> Requests:
    """The prompts as a workload, in order of arrival."""
    first: dict[int, int] = {}
    units: list[range] = []
    top = 0
    for prompt in prompts:
        blocks = -(-prompt.tokens // BLOCK)
        if prompt.name not in first:
            first[prompt.name] = top
            top += blocks
        units.append(range(first[prompt.name], first[prompt.name] + blocks))
    return Requests(
        "prompts",
        BLOCK,
        np.array([p.arrival_s for p in prompts], np.float64),
        np.array([p.tokens for p in prompts], np.int32),
        np.array([p.output_tokens for p in prompts], np.int32),
        np.cumsum([0, *(len(u) for u in units)]).astype(np.int64),
        np.array([unit for run in units for unit in run], np.int32),
        labels={"kind": Labels(np.array([p.filler for p in prompts], np.int32), ("prompt", "filler"))},
    )


def spec_of(gpu_tokens: int, host_tokens: int, hardware: str = "h100-sxm", overlap: Overlap = "trtllm") -> Spec:
    """An engine of Llama-3.1-8B with pools of these sizes; filler is dropped when evicted."""
    return Spec(
        model="llama-3.1-8b",
        hardware=hardware,
        overlap=overlap,
        kv_cache_config=KvCacheConfig(tokens_per_block=BLOCK),
        capacity=Capacity(gpu_tokens=gpu_tokens, host_tokens=host_tokens),
        scheduler=Scheduler(max_num_tokens=CHUNK, max_batch_size=1024),
        retention=(RetentionRule(where={"kind": ("filler",)}, priority=10),),
    )


def served(spec: Spec, requests: Requests) -> Outcome:
    """When each request started, had its first token and ended, and how many tokens it found."""
    work = ready(spec, requests, timing=True)
    cost, part = cost_of(work), whole(work)

    def start(env: object) -> list[Worker]:
        engine = engine_of(work, part)
        lanes = lanes_of(work, engine.state)
        return [Worker(env, engine, lanes, cost, overlap=overlap_of(spec, layers_of(work)), skip=True)]  # type: ignore[arg-type]

    alone = np.zeros(len(requests), np.int32)
    [worker] = simulate(start, requests.arrival_s, alone)
    return worker.engine.outcome


def first_token_s(tokens: int) -> tuple[float, float]:
    """Seconds to the first token of one prompt alone: computed, and brought back from host memory."""
    whole_blocks = -(-tokens // BLOCK) * BLOCK
    prompts = [
        Prompt(0, tokens, 0.0),
        Prompt(1, tokens, LATER_S, filler=True),
        Prompt(0, tokens, 2 * LATER_S),
    ]
    spec = spec_of(whole_blocks + 2 * BLOCK, whole_blocks + 2 * BLOCK)
    requests = requests_of(prompts)
    outcome = served(spec, requests)
    if outcome.reused[2] != tokens - 1:
        raise AssertionError(f"{outcome.reused[2]} of {tokens} tokens came from host memory; all but one should")
    took = outcome.first_token_s - requests.arrival_s
    return float(took[0]), float(took[2])


def tokens_per_s(hit_rate: float, prompts: int, tokens: int, overlap: Overlap = "trtllm") -> float:
    """Prompt tokens a second of `prompts` prompts there at once, a share of them found in host memory, evenly mixed."""
    gpu = prompts * tokens
    hits = [int((i + 1) * hit_rate) - int(i * hit_rate) > 0 for i in range(prompts)]
    warm = [Prompt(i, tokens, 0.0) for i, hit in enumerate(hits) if hit]
    filler = _filler(gpu, 2 * prompts)
    timed = [Prompt(i if hit else prompts + i, tokens, 2 * LATER_S) for i, hit in enumerate(hits)]
    requests = requests_of([*warm, *filler, *timed])
    outcome = served(spec_of(gpu, gpu, overlap=overlap), requests)
    took = outcome.finish_s[-prompts:].max() - 2 * LATER_S
    found = outcome.reused[-prompts:].sum()
    if found != sum(hits) * (tokens - 1):
        raise AssertionError(f"{found} tokens came from host memory; {sum(hits) * (tokens - 1)} should")
    return float(prompts * tokens / took)


def _filler(tokens: int, name: int) -> list[Prompt]:
    """Prompts that fill a pool of `tokens` together: each generates for so long that the last one starts before the
    first one ends. One that ended would be pushed out first."""
    count = max(1, round(tokens / (2 * CHUNK)))
    output = 2 * count + 32 if count > 1 else 1
    size = tokens // count // BLOCK * BLOCK
    return [Prompt(name + i, size - output, LATER_S, filler=True, output_tokens=output) for i in range(count)]
