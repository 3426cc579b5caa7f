"""From a case's configuration and request fields to pools, settings and requests of the cache manager."""

from collections.abc import Mapping
from typing import Any

from experiments.conformance.values import CaseError, UnsupportedError, tokens
from kvcache.cache_request import CacheRequest
from kvcache.content import MultimodalItem
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.tables import DEFAULT_OFFLOAD_MIN_PRIORITY, Pool, Settings

CONFIG_KEYS = frozenset({
    *("num_layers", "num_kv_heads", "size_per_head", "tokens_per_block", "primary_blocks", "secondary_blocks"),
    *("windows", "max_attention_window", "max_sequence_length", "chunk_size", "max_num_sequences", "max_beam_width"),
    *("sink_tokens", "enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "onboard_blocks"),
    *("secondary_offload_min_priority", "event_buffer_max_size", "connector_matched_tokens", "manager_version"),
    *("evict_descendants", "detached_first", "emptied_host_slot_front"),
})  # fmt: skip
REQUEST_FIELDS = frozenset({
    *("request_id", "tokens", "max_new_tokens", "extra_ids", "lora_id", "cache_salt", "mm_hashes", "mm_positions"),
    *("mm_lengths", "retention", "draft_tokens", "context_chunk_size"),
})  # fmt: skip
SWITCHES = ("enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "onboard_blocks")  # on
OTHER_VERSIONS = ("evict_descendants", "detached_first", "emptied_host_slot_front")  # off


def check_modelled(config: Mapping[str, Any]) -> None:
    """Refuse what this manager is not."""
    if config.get("manager_version", 1) != 1:
        raise UnsupportedError(f"manager_version {config['manager_version']}: only the V1 manager is modelled")
    if config.get("max_beam_width", 1) != 1:
        raise UnsupportedError(f"max_beam_width {config['max_beam_width']}: the manager models beam width 1")
    if config.get("sink_tokens", 0) != 0:
        raise UnsupportedError(f"sink_tokens {config['sink_tokens']}: TensorRT-LLM's manager refuses them too")


def make_pools(config: Mapping[str, Any]) -> list[Pool]:
    """The pools, one a window, in the order of the case."""
    longest = config.get("max_sequence_length")
    rows = config.get("windows") or [{**config, "window_size": _window(config)}]
    return [
        Pool(
            row["window_size"],
            (row["primary_blocks"], row.get("secondary_blocks", 0)),
            sliding=longest is not None and row["window_size"] < longest,
            chunk_tokens=config.get("chunk_size", 0),
        )
        for row in rows
    ]


def _window(config: Mapping[str, Any]) -> int:
    """The one window; without a limit, whatever the pool holds."""
    capacity = int(config["primary_blocks"] * config["tokens_per_block"])
    window = config.get("max_attention_window", config.get("max_sequence_length", capacity))
    if isinstance(window, list):
        if len(set(window)) != 1:
            raise UnsupportedError("max_attention_window with several windows but no `windows`")
        window = window[0]
    return int(window)


def make_manager(config: Mapping[str, Any]) -> KVCacheManager:
    """A fresh manager."""
    check_modelled(config)
    settings = Settings(
        tokens_per_block=config["tokens_per_block"],
        secondary_offload_min_priority=config.get("secondary_offload_min_priority", DEFAULT_OFFLOAD_MIN_PRIORITY),
        **{name: config.get(name, True) for name in SWITCHES},
        **{name: config.get(name, False) for name in OTHER_VERSIONS},
    )
    return KVCacheManager(
        make_pools(config),
        settings,
        event_buffer_max_size=config.get("event_buffer_max_size", 0),
        connector_matched_tokens=config.get("connector_matched_tokens", 0),
        max_sequence_tokens=config.get("max_sequence_length", 0),
    )


def make_retention(fields: Mapping[str, Any]) -> KvCacheRetentionConfig:
    """A retention configuration from the format's fields."""
    known = {"ranges", "decode_priority", "decode_duration_ms", "transfer_mode", "directory"}
    if set(fields) - known:
        raise UnsupportedError(f"retention field {', '.join(sorted(set(fields) - known))}")
    names = {
        "decode_priority": "decode_retention_priority",
        "decode_duration_ms": "decode_duration_ms",
        "transfer_mode": "transfer_mode",
        "directory": "directory",
    }
    ranges = tuple(
        TokenRangeRetentionConfig(r["start"], r.get("end"), r["priority"], r.get("duration_ms"))
        for r in fields.get("ranges", ())
    )
    return KvCacheRetentionConfig(ranges, **{names[key]: fields[key] for key in names if key in fields})


def make_request(fields: Mapping[str, Any]) -> CacheRequest:
    """A request from the format's fields."""
    unknown = set(fields) - REQUEST_FIELDS
    if unknown:
        raise UnsupportedError(f"request field {', '.join(sorted(unknown))}")
    if "tokens" not in fields:
        raise CaseError(f"request {fields['request_id']} has no tokens and was not defined before")
    items = zip(fields.get("mm_hashes", ()), fields.get("mm_positions", ()), fields.get("mm_lengths", ()), strict=True)
    return CacheRequest(
        fields["request_id"],
        tokens(fields["tokens"]),
        max_new_tokens=fields.get("max_new_tokens", 0),
        extra_ids=tokens(fields["extra_ids"]) if "extra_ids" in fields else None,
        lora_id=fields.get("lora_id"),
        cache_salt=fields.get("cache_salt"),
        items=tuple(MultimodalItem(tuple(h), start, length) for h, start, length in items),
        retention=make_retention(fields["retention"]) if fields.get("retention") is not None else None,
        draft_tokens=fields.get("draft_tokens", 0),
    )
