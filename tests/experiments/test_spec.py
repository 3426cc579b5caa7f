"""The configuration refuses what cannot be meant, in one line that names key, value and what is allowed."""

from pathlib import Path

import pytest

from experiments.complaints import SpecError
from experiments.load import SPECS, finished, load, read
from experiments.section import Section
from experiments.spec import PROFILES, Spec
from experiments.study import study


def complaint(text: str, tmp_path: Path, *settings: str) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load(str(path), settings)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path}", "spec.yaml")


def test_defaults_are_tensorrt_llms() -> None:
    config = Spec().kv_cache_config
    assert (config.tokens_per_block, config.free_gpu_memory_fraction, config.host_cache_size) == (32, 0.9, None)
    assert config.enable_block_reuse
    assert config.enable_partial_reuse
    assert config.copy_on_partial_reuse


def test_unset_offload_threshold_is_shown_as_thirty() -> None:
    spec = Spec()
    assert spec.kv_cache_config.secondary_offload_min_priority is None
    assert spec.kv_cache_config.offload_min_priority == 30
    assert spec.shown()["kv_cache_config"]["secondary_offload_min_priority"] == 30


def test_threshold_zero_stays_zero() -> None:
    spec, _ = load(None, ["secondary_offload_min_priority=0"])
    assert spec.kv_cache_config.offload_min_priority == 0


def test_default_spec_file_says_what_is_the_default_anyway() -> None:
    assert load("default")[0] == Spec()


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_spec_and_sweep_file_that_comes_along_loads(path: Path) -> None:
    if "sweep" in read(path.stem).data:
        assert finished(study(path.stem).draft, [])[1] == []
    else:
        assert load(path.stem)[1] == []


def test_essay_spec_keeps_system_for_ever_turns_half_a_minute_decode_ten_seconds() -> None:
    rules = load("essay_retention")[0].retention
    assert [(rule.priority, rule.duration_s) for rule in rules] == [(100, None), (50, 30), (20, 10)]


@pytest.mark.parametrize("name", PROFILES)
def test_named_profile_sets_its_switches_and_each_can_be_overridden(name: str) -> None:
    profile = load(None, [f"profile={name}"])[0].profile
    assert profile.model_dump() == {"name": name, **PROFILES[name]}
    other = load(None, [f"profile={name}", "profile.claim=sequential", "evict_descendants=true"])[0].profile
    assert (other.name, other.claim, other.evict_descendants) == (name, "sequential", True)
    assert other.detached_first == profile.detached_first


def test_tokens_are_divided_by_the_block_size_so_that_bytes_stay() -> None:
    capacity = load(None, ["gpu_tokens=3e6", "host_blocks=7"])[0].capacity
    assert capacity.blocks("gpu", 32) == 93_750
    assert capacity.blocks("gpu", 64) == 46_875
    assert capacity.blocks("host", 64) == 7
    assert capacity.blocks("disk", 64) is None


def test_setting_a_pool_in_tokens_replaces_its_size_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("capacity: {gpu_blocks: 10, host_tokens: 320}\n", encoding="utf-8")
    capacity = load(str(path), ["gpu_tokens=640"])[0].capacity
    assert (capacity.gpu_blocks, capacity.gpu_tokens, capacity.host_tokens) == (None, 640, 320)


def test_bytes_may_be_given_with_a_unit() -> None:
    assert load(None, ["host_cache_size=40GiB"])[0].kv_cache_config.host_cache_size == 40 * 2**30


def test_retention_priority_can_be_set_by_position() -> None:
    spec, _ = load("essay_retention", ["retention.1.priority=60"])
    assert [rule.priority for rule in spec.retention] == [100, 60, 20]


def test_tensorrt_llm_option_file_is_mapped_and_its_other_keys_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "extra_llm_api_options.yaml"
    path.write_text(
        """
        kv_cache_config: {tokens_per_block: 64, free_gpu_memory_fraction: 0.8, use_uvm: true}
        scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}
        max_batch_size: 64
        max_seq_len: null
        tensor_parallel_size: 4
        cuda_graph_config: {enable_padding: true}
        """,
        encoding="utf-8",
    )
    spec, notes = load(str(path))
    assert (spec.kv_cache_config.tokens_per_block, spec.kv_cache_config.free_gpu_memory_fraction) == (64, 0.8)
    assert (spec.scheduler.capacity_scheduler_policy, spec.scheduler.max_batch_size) == ("MAX_UTILIZATION", 64)
    assert spec.parallel.tensor_parallel_size == 4
    assert notes == ["cuda_graph_config, kv_cache_config.use_uvm have no effect on this simulation"]


def test_unknown_key_names_file_line_and_nearest_key(tmp_path: Path) -> None:
    message = complaint("kv_cache_config:\n  token_per_block: 64\n", tmp_path)
    assert message.startswith("spec.yaml:2: unknown key kv_cache_config.token_per_block; did you mean tokens_per_block")


def test_unknown_top_level_key_suggests_tensorrt_llms_too(tmp_path: Path) -> None:
    assert "did you mean max_batch_size" in complaint("max_batch_sze: 4\n", tmp_path)


def test_unknown_setting_suggests_the_bare_name(tmp_path: Path) -> None:
    assert complaint("", tmp_path, "tokens_per_blok=64").startswith(
        "unknown key tokens_per_blok; did you mean tokens_per_block"
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tokens_per_block=0", "kv_cache_config.tokens_per_block is 0; it must be at least 1"),
        ("tokens_per_block=1.5", "kv_cache_config.tokens_per_block is 1.5; it must be a whole number"),
        ("tokens_per_block=true", "kv_cache_config.tokens_per_block is True; it must be a whole number"),
        ("secondary_offload_min_priority=101", "is 101; it must be at most 100"),
        ("secondary_offload_min_priority=-1", "is -1; it must be at least 0"),
        ("free_gpu_memory_fraction=1.5", "kv_cache_config.free_gpu_memory_fraction is 1.5; it must be at most 1"),
        ("profile=sglang", "profile.name is 'sglang'; it must be 'trtllm', 'trtllm-2025', 'cascade' or 'vllm'"),
        ("capacity_scheduler_policy=FIFO", "it must be 'GUARANTEED_NO_EVICT', 'MAX_UTILIZATION' or 'STATIC_BATCH'"),
        ("rate_scale=0", "workload.rate_scale is 0; it must be above 0"),
        ("host_cache_size=40XB", "it must be 0 bytes or more, as 1000000 or 40GiB"),
        ("rate_scale=.inf", "workload.rate_scale is inf; it must be a finite number"),
        ("max_tokens=1e400", "it must be a whole number"),
        ("host_cache_size=-1", "kv_cache_config.host_cache_size is -1; it must be 0 bytes or more"),
        ("host_cache_size=true", "kv_cache_config.host_cache_size is True; it must be bytes"),
        ("profile.name=[1]", "profile.name is [1]"),
        ("retention.x.priority=3", "retention"),
        ("enable_block_reuse=3", "it must be true or false"),
        ("model=3", "model is 3; it must be text (a model preset"),
        ("retention.7.priority=3", "retention"),
        ("use_uvm=true", "has no effect on this simulation"),
        ("tokens_per_block", "write it as key=value"),
        ("tokens_per_block=[1", "is not a YAML value"),
    ],
)
def test_impossible_setting_is_one_line_with_key_value_and_limit(setting: str, words: str, tmp_path: Path) -> None:
    assert words in complaint("", tmp_path, setting)


def test_value_from_a_setting_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    message = complaint("kv_cache_config:\n  tokens_per_block: 64\n", tmp_path, "tokens_per_block=0")
    assert message.startswith("kv_cache_config.tokens_per_block is 0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kv_cache_config:\n  tokens_per_block: 1\n  tokens_per_block: 2\n", "spec.yaml:3: kv_cache_config"),
        ("a: [1\n", "spec.yaml:2: not valid YAML"),
        ("- 1\n", "a spec is keys and values"),
        ("capacity: 3\n", "spec.yaml:1: capacity is 3; it must be a section"),
        ("capacity: {gpu_blocks: 1, gpu_tokens: 1}\n", "capacity: give gpu_blocks or gpu_tokens, not both"),
        ("retention:\n- turns: true\n  priority: 101\n", "spec.yaml:3: retention[0].priority is 101"),
        ("retention:\n- turns: true\n  decode: true\n  priority: 5\n", "one rule takes one of system_prompt"),
        ("retention:\n- {turns: true}\n", "retention[0].priority is missing"),
        ("retention:\n- {system_prompt: {}, priority: 3}\n", "give min_sessions or first_tokens, and not both"),
    ],
)
def test_bad_file_is_one_line_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    assert words in complaint(text, tmp_path)


def test_missing_file_lists_the_specs_that_come_along() -> None:
    with pytest.raises(SpecError, match=r"nofile\.yaml: no such spec file; known: .*default, .*vllm_rtx4090"):
        load("nofile.yaml")


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SpecError, match="not a text file"):
        load(str(path))


def test_spec_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Spec().kv_cache_config.tokens_per_block = 64  # type: ignore[misc]


def test_every_field_of_the_spec_says_what_it_is() -> None:
    missing = [
        f"{section.__name__}.{name}"
        for section in Section.__subclasses__()
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert missing == []


class TestEngineOptions:
    def test_tensorrt_llms_option_file_sets_overlap_chunking_and_drafts(self, tmp_path: Path) -> None:
        path = tmp_path / "options.yaml"
        path.write_text(
            "disable_overlap_scheduler: false\n"
            "scheduler_config: {context_chunking_policy: EQUAL_PROGRESS}\n"
            "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}\n"
        )
        spec, notes = load(str(path), ["accepted_tokens_per_step=1.8"])
        assert not spec.scheduler.disable_overlap_scheduler
        assert spec.scheduler.context_chunking_policy == "EQUAL_PROGRESS"
        assert spec.speculative_config is not None
        assert (spec.speculative_config.draft_len, spec.speculative_config.accepted_tokens_per_step) == (3, 1.8)
        assert notes == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("speculative_config: {max_draft_len: 2}", "accepted_tokens_per_step"),
            ("speculative_config: {accepted_tokens_per_step: 0}", "give max_draft_len or, for MTP, num_nextn"),
            (
                "speculative_config: {max_draft_len: 2, accepted_tokens_per_step: 2.5}",
                "accepted_tokens_per_step is 2.5; it must be from 0 to the drafts of a step (2)",
            ),
            ("profile: vllm\nscheduler: {context_chunking_policy: EQUAL_PROGRESS}", "vllm serves prompts in turn"),
            (
                "profile: vllm\nscheduler: {disable_overlap_scheduler: false}",
                "are TensorRT-LLM's; profile vllm has none",
            ),
        ],
    )
    def test_what_cannot_be_meant_is_refused_in_one_line(self, text: str, message: str, tmp_path: Path) -> None:
        assert message in complaint(text, tmp_path)


def test_short_name_means_the_key_nearest_to_the_top() -> None:
    from experiments.load import full_name

    assert full_name("tensor_parallel_size") == "parallel.tensor_parallel_size"
    assert full_name("cluster.context.tensor_parallel_size") == "cluster.context.tensor_parallel_size"
