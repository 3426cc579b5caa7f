"""How many context GPUs keep how many generation GPUs busy, and what a GPU then gives at which pace for one user.

It simulates nothing: steps of one batch size for ever, prompts and answers all alike. TensorRT-LLM's technical blog 5 gives the
formula; what it measured end to end lay 0 to 25 % below such curves.

    disaggregated   tokens/s/GPU = G osl / (context GPUs x G / C + generation GPUs)       C, G: requests/s of one worker
    aggregated      a batch of B makes B tokens a step, and each request's prompt is computed in between
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.capacity import bytes_per_token
from sim.cost import DECODE_PAIR_S, CostParams, step_seconds
from sim.cost_models import cost_model
from sim.hardware import Hardware
from sim.layout import Split
from sim.models import Model


@dataclass(frozen=True)
class Load:
    """All requests alike; with drafts, a step verifies so many a request and `accepted` of them are right on average."""

    isl: int
    osl: int
    drafts: int = 0
    accepted: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """What one request gets from one step."""
        return 1 + self.accepted


@dataclass(frozen=True)
class Point:
    """One operating point."""

    batch: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    context_per_generation_gpu: float = 0.0
    """GPUs that compute prompts for each that decodes; 0 where all do both."""


@dataclass(frozen=True)
class Machine:
    """What steps cost and what the cache holds, for one model on one machine."""

    model: Model
    hardware: Hardware
    weight_dtype: str
    cache_dtype: str
    cost_model: str = "roofline"
    free_memory_fraction: float = 0.9

    def params(self, split: Split) -> CostParams:
        """Of a step of one worker."""
        names = (self.weight_dtype, self.cache_dtype)
        return cost_model(self.cost_model, self.model, self.hardware, *names, split.tensor, split.pipeline).params

    def most_sequences(self, split: Split, load: Load) -> int:
        """Requests whose cache one worker holds at once; 0 if the weights do not fit."""
        free = self.hardware.hbm_bytes - self.model.weight_bytes(self.weight_dtype, split.tensor * split.pipeline)
        each = sum(bytes_per_token(self.model.shape(), self.cache_dtype, split.tensor).values()) / split.pipeline
        return max(0, int(free * self.free_memory_fraction / each / (load.isl + load.osl)))


def context_rate(machine: Machine, split: Split, load: Load, max_num_tokens: int) -> float:
    """Prompts a second of one context worker, as many in a step as fit."""
    prompts = max(1, max_num_tokens // load.isl)
    tokens = prompts * load.isl
    return prompts / step_seconds(machine.params(split), tokens, tokens * load.isl / 2, 0, 0)


def decode_s(params: CostParams, load: Load, batch: int) -> float:
    """One step of `batch` requests, on average half-way through their answers; their caches are read once each."""
    if load.drafts:
        params = params.copy()
        params[DECODE_PAIR_S] *= 1 + load.drafts
    contexts = batch * (load.isl + load.osl / 2)
    return step_seconds(params, 0, 0, batch * (1 + load.drafts), contexts)


def batches(most: int, per_doubling: int = 1) -> list[int]:
    """Batch sizes to try: so many from each to its double, up to 2,048, and the largest."""
    sizes = (round(2 ** (i / per_doubling)) for i in range(11 * per_doubling + 1))
    return sorted({*(size for size in sizes if size <= most), most} - {0})


def matched(
    machine: Machine, context: Split, generation: Split, load: Load, max_num_tokens: int, per_doubling: int = 1
) -> list[Point]:
    """Rate-matched points of a pair of splits, one a batch size of the generation worker."""
    supply, params = context_rate(machine, context, load, max_num_tokens), machine.params(generation)
    points = []
    for batch in batches(machine.most_sequences(generation, load), per_doubling):
        step_s = decode_s(params, load, batch)
        demand = batch * load.tokens_per_step / (load.osl * step_s)
        gpus = context.gpus * demand / supply + generation.gpus
        ratio = context.gpus * demand / supply / generation.gpus
        points.append(Point(batch, load.tokens_per_step / step_s, demand * load.osl / gpus, ratio))
    return points


def aggregated(machine: Machine, split: Split, load: Load, max_num_tokens: int, per_doubling: int = 1) -> list[Point]:
    """Points of workers that do both: between two tokens of a user lie its batch's step and its share of prompts."""
    prompt_s = 1 / context_rate(machine, split, load, max_num_tokens)
    params = machine.params(split)
    points = []
    for batch in batches(machine.most_sequences(split, load), per_doubling):
        token_s = decode_s(params, load, batch) / load.tokens_per_step + batch * prompt_s / load.osl
        points.append(Point(batch, 1 / token_s, batch / token_s / split.gpus))
    return points


def best_at(points: Sequence[Point], pace: float) -> Point | None:
    """The point with the most tokens a GPU among those that give each user `pace` tokens/s or more."""
    fast = [point for point in points if point.tokens_per_s_per_user >= pace]
    return max(fast, key=lambda point: point.tokens_per_s_per_gpu, default=None)


def gains(apart: Sequence[Point], together: Sequence[Point], paces: Sequence[float]) -> list[tuple[float, float]]:
    """(pace, tokens/s/GPU apart over together) at every pace that both reach."""
    found = []
    for pace in paces:
        a, b = best_at(apart, pace), best_at(together, pace)
        if a is not None and b is not None:
            found.append((pace, a.tokens_per_s_per_gpu / b.tokens_per_s_per_gpu))
    return found
