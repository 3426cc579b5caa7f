"""Accepts TensorRT-LLM's own option file (`extra_llm_api_options.yaml`, `trtllm-serve --config`) as a spec.

Its keys that matter to a KV cache are moved to where `Spec` has them; its keys that mean nothing to this simulator are
taken out and named once, so that nobody believes they were simulated. What it does not know it leaves: `Spec` refuses
it.
"""

from typing import Any

MOVED = {
    "scheduler": (
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "enable_chunked_prefill",
        "disable_overlap_scheduler",
    ),
    "parallel": ("tensor_parallel_size", "pipeline_parallel_size", "enable_attention_dp"),
}
"""Section of the Spec: the top-level keys of TensorRT-LLM that belong there."""
TOP_LEVEL = ("scheduler_config", *(key for keys in MOVED.values() for key in keys))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IGNORED = _words(
    """allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio batch_wait_timeout_iters
    batch_wait_timeout_ms batched_logits_processor build_config cache_transceiver_config checkpoint_format
    checkpoint_loader context_parallel_size cp_config cuda_graph_config custom_tokenizer disable_mm_encoder
    dtype dwdp_config enable_autotuner enable_early_first_token_response
    enable_energy_metrics enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker
    enable_lm_head_tp_in_adp enable_lora enable_low_latency_host_dispatch enable_min_latency enable_resource_governor
    encode_only encoder_max_num_items encoder_max_num_tokens env_overrides fail_fast_on_attention_window_too_large
    force_dynamic_quantization garbage_collection_gen0_threshold gather_generation_logits gms_config gpus_per_node
    guided_decoding_backend iter_stats_max_iterations kv_connector_config layer_wise_benchmarks_config load_format
    lora_config max_beam_width max_input_len max_stats_len mm_encoder_only model_kwargs moe_cluster_parallel_size
    moe_config moe_expert_parallel_size moe_tensor_parallel_size multimodal_config mx_config num_postprocess_workers
    num_serve_frontends nvfp4_gemm_config orchestrator_type otlp_traces_endpoint peft_cache_config
    perf_metrics_max_requests post_processor_hook postprocess_tokenizer_dir pp_partition print_iter_log
    prometheus_metrics_config quant_config ray_placement_config ray_worker_extension_cls reasoning_parser
    reorder_policy_config request_stats_max_iterations return_perf_metrics revision sampler_force_async_worker
    sampler_type skip_tokenizer_init sparse_attention_config stream_interval telemetry_config
    tokenizer tokenizer_mode tokenizer_revision torch_compile_config trust_remote_code use_cute_dsl_bf16_gemm
    video_pruning_rate"""
)
IGNORED_KV_CACHE = _words(
    """attention_dp_events_gather_period_ms avg_seq_len block_reuse_policy cross_kv_cache_fraction disk_cache_path
    disk_io_threads disk_keep_copy_after_restore disk_prefetch_num_reqs disk_protected_copy_fraction
    disk_write_through enable_kv_pool_rebalance enable_swa_scratch_reuse host_cache_bind_to_gpu_numa_node
    iteration_stats_interval kv_cache_event_hash_algo mamba_ssm_cache_dtype mamba_ssm_philox_rounds
    mamba_ssm_stochastic_rounding mamba_state_cache_interval max_util_for_resume onboard_blocks pool_ratio
    sink_token_length use_kv_cache_manager_v2 use_uvm"""
)
IGNORED_SCHEDULER = _words(
    "dynamic_batch_config enable_prefix_aware_scheduling use_python_scheduler waiting_queue_policy"
)


def _take(data: dict[str, Any], known: frozenset[str], prefix: str, ignored: list[str]) -> dict[str, Any]:
    """`data` without the keys that mean nothing here; their names are added to `ignored`."""
    ignored.extend(prefix + key for key in data if key in known)
    return {key: value for key, value in data.items() if key not in known}


def as_spec(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`data` in the shape of a Spec, and the names of the keys that have no effect on this simulation."""
    ignored: list[str] = []
    data = _take(data, IGNORED, "", ignored)
    data = {key: value for key, value in data.items() if value is not None or key == "retention"}
    if isinstance(data.get("kv_cache_config"), dict):
        data["kv_cache_config"] = _take(data["kv_cache_config"], IGNORED_KV_CACHE, "kv_cache_config.", ignored)
    if isinstance(data.get("scheduler_config"), dict):
        given = _take(data.pop("scheduler_config"), IGNORED_SCHEDULER, "scheduler_config.", ignored)
        data["scheduler"] = {**given, **data.get("scheduler", {})}
    for section, keys in MOVED.items():
        moved = {key: data.pop(key) for key in keys if key in data}
        if moved and isinstance(data.get(section, {}), dict):
            data[section] = {**moved, **data.get(section, {})}
    return data, ignored
