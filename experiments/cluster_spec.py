"""The parts of the configuration that speak of several workers: routers, prefill apart from decoding, a shared store, pools
that grow and shrink, and what users may expect.

It reads nothing and runs nothing (`experiments.routed` and `experiments.disagg` do).
"""

from typing import Any, Literal

from pydantic import ByteSize, Field, model_validator

from experiments.section import Bytes, Count, CountOrZero, Section


class RouterSettings(Section):
    """What a router weighs, what it knows of the workers, and how late."""

    replicas: Count = Field(default=1, description="routers side by side; each knows its own choices at once")
    report_period_s: float = Field(
        default=0.0, ge=0, description="workers report their loads so often; 0: they are always known"
    )
    overlap_weight: float = Field(
        default=1.0,
        ge=0,
        description="blocks to compute count so much against blocks in use; scored: the prefix against the rest",
    )
    host_credit: float = Field(
        default=1.0, ge=0, le=1, description="what a block in host memory counts of one on the GPU"
    )
    temperature: float = Field(
        default=0.0, ge=0, description="0: the best worker; above: at random, better ones more often"
    )
    ttl_s: float = Field(default=120.0, gt=0, description="approximate: a worker is thought to keep a prompt so long")
    seen_tokens: Count = Field(default=4096, description="scored_approximate: it looks at a prompt's first tokens")
    remembered_tokens: Count = Field(
        default=500_000, description="scored_approximate: of each worker it remembers so many"
    )
    event_delay_s: float = Field(default=0.0, ge=0, description="KV events are under way so long")
    event_poll_s: float = Field(
        default=0.0, ge=0, description="the workers' event buffers are read so often; 0: at once"
    )
    event_loss: float = Field(default=0.0, ge=0, le=1, description="share of the events that never arrive")
    event_buffer: Count = Field(
        default=1 << 20, description="events a worker keeps between polls where event_buffer_max_size is 0"
    )
    attention_dp_size: Count = Field(default=1, description="workers that share one event manager (attention DP)")
    attention_dp_events_gather_period_s: float = Field(
        default=0.005, ge=0, description="ranks but the first hand their events over so often"
    )

    def weights(self) -> dict[str, Any]:
        """What `kvcache.routers.Weights` takes."""
        names = ("overlap_weight", "host_credit", "temperature", "ttl_s", "seen_tokens", "remembered_tokens")
        return {name: getattr(self, name) for name in names}


class Side(Section):
    """Workers that only compute prompts, or only decode."""

    workers: CountOrZero = Field(default=0, description="how many; 0 on both sides: every worker does both")
    tensor_parallel_size: Count = Field(default=1, description="GPUs that share each layer")
    pipeline_parallel_size: Count = Field(default=1, description="groups of layers, one after the other")


class Cluster(Section):
    """Disaggregated serving: prompts on context workers, decoding on generation workers, caches handed over."""

    context: Side = Field(default=Side(), description="workers that compute prompts")
    generation: Side = Field(default=Side(), description="workers that decode")
    link: str = Field(
        default="nixl-ucx",
        description="transport: nixl-ucx, nixl-libfabric, ucx, mpi, mooncake, nvlink, or a YAML file",
    )
    zero_copy: bool = Field(default=False, description="send blocks as they lie where both sides are split alike")
    layerwise: bool = Field(default=False, description="send each layer once it is computed")
    parallel_receive: bool = Field(default=False, description="serve the receivers of one rank side by side")
    max_tokens_in_buffer: Count = Field(default=8192, description="tokens one staging buffer holds")
    send_buffers: Count = Field(default=2, description="transfers a context worker sends at once")
    receive_buffers: Count = Field(default=1, description="transfers a generation worker receives at once")
    pieces_per_block: Count = Field(
        default=1,
        description="pieces of memory of one block of one rank: 1 in TensorRT-LLM, 2 x layers in some engines",
    )
    kv_transfer_timeout_ms: CountOrZero = Field(
        default=0, description="give a transfer up after this, from the prompt's end; 0: never"
    )
    transfer_failure_share: float = Field(
        default=0.0, ge=0, le=1, description="share of transfers that fail at their end"
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> "Cluster":
        if (self.context.workers == 0) != (self.generation.workers == 0):
            raise ValueError("context.workers and generation.workers are above 0 together, or both 0")
        return self

    @property
    def disaggregated(self) -> bool:
        """Prompts are computed apart from decoding."""
        return self.context.workers > 0


class Store(Section):
    """A store that all workers share, behind the KV-cache connector: whole blocks are loaded instead of computed."""

    size: Bytes = Field(default=ByteSize(0), description="what it holds, bytes of all ranks and layers; 0: no store")
    gigabytes_per_s: float = Field(
        default=10.0, gt=0, description="between one worker, all its ranks, and the store, GB/s"
    )
    latency_s: float = Field(default=0.001, ge=0, description="until a load or a save begins to move")
    streams: Count = Field(default=8, description="loads and saves that it serves at once, over all workers")
    bypass_tokens: CountOrZero = Field(
        default=0,
        description="disaggregated: a prompt that lacks no more than so many tokens goes to a generation worker; 0: none",
    )


class PoolRule(Section):
    """When a pool of workers grows and shrinks by one. It has as many as the spec gives it, at most."""

    min_workers: Count = Field(default=1, description="at the start, and at least")
    rule: Literal["requests", "kv"] = Field(
        default="requests",
        description="what is weighed: requests that wait or run on a worker, or the share of its GPU blocks in use; mean",
    )
    above: float = Field(gt=0, description="one more worker above this")
    below: float = Field(ge=0, description="one less below this")

    @model_validator(mode="after")
    def _apart(self) -> "PoolRule":
        if self.below >= self.above:
            raise ValueError(f"below is {self.below:g} and above {self.above:g}; below must be the smaller one")
        if self.rule == "kv" and self.above >= 1:
            raise ValueError(f"above is {self.above:g}; rule kv weighs a share of the blocks, from 0 to 1")
        return self


class Autoscaling(Section):
    """Pools that grow and shrink during a run, as a planner does it. A worker that is opened has an empty cache."""

    aggregated: PoolRule | None = Field(default=None, description="workers that do both; null: all of them, always")
    context: PoolRule | None = Field(default=None, description="workers that compute prompts; null: likewise")
    generation: PoolRule | None = Field(default=None, description="workers that decode; null: likewise")
    period_s: float = Field(default=10.0, gt=0, description="the rules are applied so often")
    start_s: float = Field(
        default=30.0,
        ge=0,
        description="from the decision to a worker's first request: weights to load, kernels to capture",
    )

    @property
    def wanted(self) -> bool:
        """Some pool grows and shrinks."""
        return any((self.aggregated, self.context, self.generation))


class Slo(Section):
    """What users may expect. Requests that get it, in a second, are a run's goodput."""

    ttft_s: float | None = Field(default=None, gt=0, description="time to first token, at most; null: any")
    tpot_s: float | None = Field(default=None, gt=0, description="mean time per output token, at most; null: any")
