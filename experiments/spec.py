"""The whole configuration of one run, in TensorRT-LLM's own names.

Every field says what it is and in which unit; an unknown key or an impossible value is refused. It reads no files
(`experiments.load` does) and computes no pool sizes (`experiments.run` does): it is what the user asked for.

    kv_cache_config   as TensorRT-LLM's KvCacheConfig       capacity   pool sizes given directly, instead of memory
    scheduler         who runs when                         workload   how the trace meets the workers
    router            what the router weighs and knows      cluster    prefill apart from decoding
    parallel          how one model is split                retention  priorities for traces that carry none
    profile           whose rules, and which version        store      blocks that all workers share
    autoscaling       pools that grow and shrink            slo        what users may expect
"""

from typing import Any, Literal

from pydantic import ByteSize, Field, model_validator

from experiments.cluster_spec import Autoscaling, Cluster, RouterSettings, Slo, Store
from experiments.section import Bytes, Count, CountOrZero, Priority, Section

OFFLOAD_MIN_PRIORITY = 30
"""What TensorRT-LLM's C++ takes when `secondary_offload_min_priority` is not set (its documentation says 35)."""

PROFILES: dict[str, dict[str, Any]] = {
    "trtllm": {
        "claim": "batch",
        "evict_descendants": False,
        "detached_first": False,
        "emptied_host_slot": "tail",
        "async_scheduling": False,
    },
    "trtllm-2025": {
        "claim": "sequential",
        "evict_descendants": True,
        "detached_first": False,
        "emptied_host_slot": "tail",
        "async_scheduling": False,
    },
    "cascade": {
        "claim": "batch",
        "evict_descendants": False,
        "detached_first": True,
        "emptied_host_slot": "front",
        "async_scheduling": False,
    },
    "vllm": {
        "claim": "sequential",
        "evict_descendants": False,
        "detached_first": False,
        "emptied_host_slot": "tail",
        "async_scheduling": True,
    },
}
"""The switches each profile stands for; any of them can be set by itself."""


class KvCacheConfig(Section):
    """TensorRT-LLM's KvCacheConfig, with its defaults."""

    tokens_per_block: Count = Field(default=32, description="tokens in one block; TensorRT-LLM documents powers of two")
    enable_block_reuse: bool = Field(
        default=True, description="keep finished blocks and match new prompts against them"
    )
    enable_partial_reuse: bool = Field(default=True, description="also match the first tokens of a block")
    copy_on_partial_reuse: bool = Field(
        default=True, description="copy a partly matched block that others use or extend"
    )
    max_tokens: Count | None = Field(default=None, description="upper limit of the GPU pool, tokens; null: no limit")
    max_attention_window: tuple[Count, ...] | None = Field(
        default=None,
        description="attention window of each layer, tokens, repeated over the layers; null: full attention",
    )
    free_gpu_memory_fraction: float = Field(
        default=0.9, gt=0, le=1, description="share of the GPU memory left after weights that becomes KV cache, 0 to 1"
    )
    max_gpu_total_bytes: Bytes = Field(
        default=ByteSize(0), description="upper limit of the GPU pool, bytes a rank; 0: none"
    )
    host_cache_size: Bytes | None = Field(
        default=None, description="pinned host pool, bytes a rank; null: no host pool"
    )
    secondary_offload_min_priority: Priority | None = Field(
        default=None, description="evicted blocks below this priority are dropped, not offloaded, 0 to 100; null: 30"
    )
    event_buffer_max_size: CountOrZero = Field(default=0, description="events kept for subscribers; 0: no events")
    dtype: str = Field(
        default="auto", description="element type of the cache: auto, fp8, nvfp4, bfloat16, float16, ..."
    )
    disk_cache_size: Bytes | None = Field(
        default=None, description="disk tier, bytes a rank (cascade); null: no disk tier"
    )
    cold_tier_offload_min_priority: Priority | None = Field(
        default=None, description="host victims below this priority do not go to disk, 0 to 100; null: all of them go"
    )

    @property
    def offload_min_priority(self) -> int:
        """The threshold in force: the value given, or the C++ default."""
        value = self.secondary_offload_min_priority
        return OFFLOAD_MIN_PRIORITY if value is None else value


class Capacity(Section):
    """Pool sizes given directly; each one overrides the memory arithmetic. Tokens are divided by tokens_per_block."""

    gpu_blocks: Count | None = Field(default=None, description="GPU pool, blocks")
    gpu_tokens: Count | None = Field(default=None, description="GPU pool, tokens")
    host_blocks: CountOrZero | None = Field(default=None, description="host pool, blocks")
    host_tokens: CountOrZero | None = Field(default=None, description="host pool, tokens")
    disk_blocks: CountOrZero | None = Field(default=None, description="disk tier, blocks")
    disk_tokens: CountOrZero | None = Field(default=None, description="disk tier, tokens")

    @model_validator(mode="after")
    def _one_unit_each(self) -> "Capacity":
        for tier in ("gpu", "host", "disk"):
            if getattr(self, f"{tier}_blocks") is not None and getattr(self, f"{tier}_tokens") is not None:
                raise ValueError(f"give {tier}_blocks or {tier}_tokens, not both")
        return self

    def blocks(self, tier: Literal["gpu", "host", "disk"], tokens_per_block: int) -> int | None:
        """The size of a tier in blocks, or None where it follows from memory."""
        tokens: int | None = getattr(self, f"{tier}_tokens")
        if tokens is not None:
            return tokens // tokens_per_block
        blocks: int | None = getattr(self, f"{tier}_blocks")
        return blocks


class Profile(Section):
    """Whose rules are followed. The switches default to what the named profile does."""

    name: Literal["trtllm", "trtllm-2025", "cascade", "vllm"] = Field(
        default="trtllm", description="engine and version"
    )
    claim: Literal["batch", "sequential"] = Field(
        default="batch", description="claim matches of a whole batch first, or not"
    )
    evict_descendants: bool = Field(default=False, description="evicting a block also detaches the blocks below it")
    detached_first: bool = Field(default=False, description="blocks that can never match again are evicted first")
    emptied_host_slot: Literal["tail", "front"] = Field(
        default="tail", description="where a slot emptied by onboarding queues"
    )
    async_scheduling: bool = Field(
        default=False, description="vllm: schedule a step while the one before it runs (its default since 0.14)"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        given = {"name": value} if isinstance(value, str) else value
        return {**PROFILES.get(str(given.get("name", "trtllm")), {}), **given} if isinstance(given, dict) else given


class Parallel(Section):
    """How one model is split over GPUs; a worker is one such group."""

    tensor_parallel_size: Count = Field(default=1, description="GPUs that share each layer")
    pipeline_parallel_size: Count = Field(default=1, description="groups of layers, one after the other")
    enable_attention_dp: bool = Field(default=False, description="each GPU keeps whole KV heads for its own requests")


class Scheduler(Section):
    """Who runs in the next step."""

    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = Field(
        default="GUARANTEED_NO_EVICT", description="how blocks are promised to requests"
    )
    max_batch_size: Count = Field(default=256, description="requests in one step, at most")
    max_num_tokens: Count = Field(default=8192, description="tokens computed in one step, at most")
    enable_chunked_prefill: bool = Field(default=True, description="spread a long prompt over several steps")
    max_seq_len: Count | None = Field(
        default=None, description="prompt + output, tokens, at most; null: no limit of its own"
    )
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = Field(
        default="FIRST_COME_FIRST_SERVED", description="which prompts get the tokens of a step that are too few for all"
    )
    chunk_unit_size: Count | None = Field(
        default=None, description="chunks are multiples of so many tokens; null: tokens_per_block, as in TensorRT-LLM"
    )
    disable_overlap_scheduler: bool = Field(
        default=True,
        description="schedule a step after the one before has ended; TensorRT-LLM's own default is false",
    )


class Copies(Section):
    """Which way the bytes of the copies take."""

    host: Literal["block", "batched", "gather"] = Field(
        default="block", description="to and from host memory: a call a block, one for many, or gathered by a kernel"
    )
    disk: Literal["gds", "posix"] = Field(
        default="gds", description="the disk tier's reads: from file to GPU, or by way of host memory, leg after leg"
    )


class SpeculativeConfig(Section):
    """Tokens drafted and verified in each step, as TensorRT-LLM's speculative_config has them."""

    decoding_type: str = Field(default="MTP", description="who drafts: MTP, Eagle, NGram, ...; a name only")
    max_draft_len: CountOrZero | None = Field(default=None, description="drafts a step, tokens")
    num_nextn_predict_layers: CountOrZero | None = Field(default=None, description="the same for MTP")
    accepted_tokens_per_step: float = Field(
        ge=0, description="mean of the drafts that are right in a step, from 0 to all; measured, or known for the model"
    )

    @property
    def draft_len(self) -> int:
        """Drafts a step, tokens."""
        return self.num_nextn_predict_layers or self.max_draft_len or 0

    @model_validator(mode="after")
    def _fits(self) -> "SpeculativeConfig":
        if (self.max_draft_len is None) == (self.num_nextn_predict_layers is None):
            raise ValueError("give max_draft_len or, for MTP, num_nextn_predict_layers, and not both")
        if self.accepted_tokens_per_step > self.draft_len:
            raise ValueError(
                f"accepted_tokens_per_step is {self.accepted_tokens_per_step:g}; it must be from 0 to the drafts of a step"
                f" ({self.draft_len})"
            )
        return self


class Workload(Section):
    """How the trace meets the workers."""

    workers: Count = Field(default=1, description="engines with a cache each")
    rate_scale: float = Field(default=1.0, gt=0, description="arrival rate over the trace's own; 2: twice as fast")
    concurrency: Count | None = Field(
        default=None, description="closed loop: requests in flight, instead of the trace's times; null: open loop"
    )
    wait_for_turns: bool = Field(
        default=False,
        description="open loop: a turn comes at its time, but not before its session's previous one ended",
    )
    spread_arrivals: bool = Field(
        default=False, description="spread requests of one instant evenly up to the next instant"
    )
    seed: CountOrZero = Field(default=0, description="seed of every random choice")
    router: Literal[
        "round_robin", "random", "session", "least_loaded", "approximate", "kv",
        "scored_load", "scored_approximate", "scored",
    ] = Field(default="round_robin", description="which worker takes a request")  # fmt: skip

    @model_validator(mode="after")
    def _one_clock(self) -> "Workload":
        if self.concurrency is not None and (self.rate_scale != 1 or self.spread_arrivals or self.wait_for_turns):
            raise ValueError(
                "concurrency takes the place of the trace's times: rate_scale, spread_arrivals and wait_for_turns"
                " have no meaning with it"
            )
        return self

    @property
    def takes_turns(self) -> bool:
        """Some requests come when others have ended."""
        return self.concurrency is not None or self.wait_for_turns


class SystemPrompt(Section):
    """The part of the prompt that others share: by counting sessions, or by length."""

    min_sessions: Count | None = Field(
        default=None, description="shared by at least so many sessions (requests, if none known)"
    )
    first_tokens: Count | None = Field(default=None, description="the first tokens of every prompt")

    @model_validator(mode="after")
    def _one(self) -> "SystemPrompt":
        if (self.min_sessions is None) == (self.first_tokens is None):
            raise ValueError("give min_sessions or first_tokens, and not both")
        return self


class RetentionRule(Section):
    """Which tokens get which priority, for how long. Of two rules for the same token the first in the list wins.

    At most one of system_prompt, turns, decode; none of them means the whole request, generated tokens included.
    """

    system_prompt: SystemPrompt | None = Field(
        default=None, description="applies to the shared first part of the prompt"
    )
    turns: bool = Field(default=False, description="applies to the rest of the prompt")
    decode: bool = Field(default=False, description="applies to generated tokens")
    where: dict[str, tuple[str, ...]] = Field(
        default={}, description="only requests whose label has one of these values"
    )
    priority: Priority = Field(description="0 (evict first) to 100 (keep longest); 35 is TensorRT-LLM's default")
    duration_s: float | None = Field(
        default=None, gt=0, le=2_147_483, description="seconds after release until 35 again; null: for ever"
    )

    @model_validator(mode="after")
    def _one_part(self) -> "RetentionRule":
        if (self.system_prompt is not None) + self.turns + self.decode > 1:
            raise ValueError("one rule takes one of system_prompt, turns, decode; write one rule for each")
        return self


class Offload(Section):
    """What-ifs beyond TensorRT-LLM's threshold: which evicted blocks go to the host, and for how long they count there."""

    min_uses: Count = Field(default=1, description="computed or found at least so often; 1: all")
    contiguous: bool = Field(default=False, description="only blocks whose predecessors can be found and will stay")
    ttl_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="seconds after which a copy in the host no longer counts; null: for ever",
    )


class Spec(Section):
    """One run: everything that decides its result, except the trace."""

    kv_cache_config: KvCacheConfig = Field(default=KvCacheConfig(), description="as in TensorRT-LLM")
    capacity: Capacity = Field(default=Capacity(), description="pool sizes given directly")
    model: str = Field(default="llama-3.1-8b", description="a model preset, or a YAML file or config.json")
    hardware: str = Field(default="h100-sxm", description="a hardware preset, or a YAML file such as a calibration")
    profile: Profile = Field(
        default=Profile(), description="trtllm, trtllm-2025, cascade or vllm, or {name: ..., switch: ...}"
    )
    parallel: Parallel = Field(default=Parallel(), description="how the model is split")
    scheduler: Scheduler = Field(default=Scheduler(), description="who runs when")
    speculative_config: SpeculativeConfig | None = Field(default=None, description="tokens drafted ahead; null: none")
    workload: Workload = Field(default=Workload(), description="how the trace meets the workers")
    cluster: Cluster = Field(default=Cluster(), description="prefill apart from decoding")
    router: RouterSettings = Field(default=RouterSettings(), description="what the router weighs and knows")
    store: Store = Field(default=Store(), description="blocks that all workers share, behind the KV-cache connector")
    autoscaling: Autoscaling = Field(default=Autoscaling(), description="pools of workers that grow and shrink")
    slo: Slo = Field(default=Slo(), description="what users may expect; decides what counts as goodput")
    retention: tuple[RetentionRule, ...] = Field(default=(), description="priorities for traces that carry none")
    copies: Copies = Field(default=Copies(), description="which way the bytes of copies take")
    overlap: Literal["trtllm", "layerwise", "full"] = Field(
        default="trtllm",
        description="copies before all kernels, as in TensorRT-LLM; layerwise: before their layer's; full: beside any",
    )
    offload: Offload = Field(default=Offload(), description="which evicted blocks go to the host, beyond the threshold")
    policy: str = Field(
        default="priority",
        description="which free block goes first: priority (TensorRT-LLM), lru, arc, s3-fifo, ..., or FILE.py:CLASS",
    )
    cost_model: Literal["roofline", "table", "aiconfigurator"] = Field(
        default="roofline",
        description="seconds of a step: first principles, kernels that calibrate timed, or aiconfigurator's tables",
    )
    too_long: Literal["error", "drop", "truncate"] = Field(
        default="error", description="what to do with unservable requests"
    )

    @model_validator(mode="after")
    def _of_one_engine(self) -> "Spec":
        given = self.scheduler
        if self.profile.name != "vllm":
            return self
        if (
            self.speculative_config is not None
            or not given.disable_overlap_scheduler
            or given.chunk_unit_size is not None
        ):
            raise ValueError(
                "speculative_config, disable_overlap_scheduler and chunk_unit_size are TensorRT-LLM's; profile vllm has none"
            )
        if given.context_chunking_policy != "FIRST_COME_FIRST_SERVED":
            raise ValueError("context_chunking_policy is TensorRT-LLM's; vllm serves prompts in turn")
        return self

    @model_validator(mode="after")
    def _of_one_cluster(self) -> "Spec":
        apart, rules = self.cluster.disaggregated, self.autoscaling
        if self.store.bypass_tokens and not (apart and self.store.size):
            raise ValueError(
                "store.bypass_tokens is for disaggregated serving with a store: set cluster and store.size"
            )
        if rules.aggregated and apart:
            raise ValueError(
                "autoscaling.aggregated is for workers that do both: with cluster use context and generation"
            )
        if (rules.context or rules.generation) and not apart:
            raise ValueError("autoscaling.context and generation are for disaggregated serving: use aggregated")
        pools = (
            (rules.aggregated, self.workload.workers, "workload.workers"),
            (rules.context, self.cluster.context.workers, "cluster.context.workers"),
            (rules.generation, self.cluster.generation.workers, "cluster.generation.workers"),
        )
        for rule, most, name in pools:
            if rule is not None and rule.min_workers > most:
                raise ValueError(
                    f"autoscaling: min_workers is {rule.min_workers} and {name} {most}; it must be the smaller"
                )
        return self

    def shown(self) -> dict[str, Any]:
        """The spec as plain data, with the values in force where the engine replaces a null."""
        data = self.model_dump(mode="json")
        data["kv_cache_config"]["secondary_offload_min_priority"] = self.kv_cache_config.offload_min_priority
        return data
