"""Steps from aiconfigurator's data base: with the real package where it is installed, and without it."""

import sys
from dataclasses import replace

import pytest

from sim.aiconfigurator import AiconfiguratorCost, config_of
from sim.cost import is_beyond, step_seconds
from sim.hardware import load_hardware
from sim.models import load_model, model_from_config

H100, LLAMA = load_hardware("h100-sxm"), load_model("llama-3.1-8b")


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("aiconfigurator_core", reason="pip install kvtier[aiconfigurator]")

    def test_llama_8b_on_h100_is_near_the_published_recompute_times(self) -> None:
        # vLLM blog of 2026-01-08, figure 1, as in test_cost.py; in chunks of 16,384, 3.1 ms for the server
        params = AiconfiguratorCost(LLAMA, H100).params
        for thousand, published_ms in ((10, 258), (30, 1095), (60, 3008), (100, 6847)):
            seconds, before = 3.1e-3, 0
            while before < 1000 * thousand:
                chunk = min(16_384, 1000 * thousand - before)
                seconds += step_seconds(params, chunk, chunk * (before + chunk / 2), 0, 0)
                before += chunk
            assert 1e3 * seconds == pytest.approx(published_ms, rel=0.07)

    def test_steps_between_the_points_of_the_grid_are_what_its_own_estimator_says(self) -> None:
        from aiconfigurator_core.sdk import EngineHandle

        handle = EngineHandle.compile("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "trtllm", tp_size=2)
        params = AiconfiguratorCost(LLAMA, H100, tensor_parallel=2).params
        overhead_ms = 1e3 * H100.step_overhead_s
        for tokens, seqs, context in ((3000, 0, 0), (0, 50, 3000), (3000, 50, 3000)):
            ours = 1e3 * step_seconds(params, tokens, tokens**2 / 2, seqs, seqs * context) - overhead_ms
            if not seqs:
                theirs = handle.predict_prefill_latency(1, tokens)
            elif not tokens:
                theirs = handle.predict_decode_latency(seqs, context)
            else:
                theirs = handle.mixed_step_latency(tokens, seqs, context, 2)
            assert ours == pytest.approx(theirs, rel=0.05)

    def test_experts_latent_attention_and_windows_are_taken(self) -> None:
        h200 = load_hardware("h200")
        for name, dtype, ranks in (("deepseek-r1", "fp8", 8), ("gpt-oss-120b", "mxfp4", 1)):
            params = AiconfiguratorCost(load_model(name), h200, dtype, "bf16", ranks).params
            assert 5e-3 < step_seconds(params, 0, 0, 32, 32 * 2048) < 50e-3

    def test_steps_beyond_the_grid_are_known(self) -> None:
        params = AiconfiguratorCost(LLAMA, H100).params
        assert not is_beyond(params, 8192.0, 8192 * 4096.0, 0.0, 100.0, 100_000.0)
        assert is_beyond(params, 100_000.0, 1e9, 0.0, 0.0, 0.0)
        assert is_beyond(params, 0.0, 0.0, 0.0, 2000.0, 2e6)

    def test_what_it_has_no_data_for_is_refused_in_its_words(self) -> None:
        with pytest.raises(ValueError, match=r"has no tables for gh200; it has h100-sxm, h200, b200, l40s"):
            AiconfiguratorCost(LLAMA, load_hardware("gh200"))
        with pytest.raises(ValueError, match="has no tables for a cache of nvfp4; it has bf16, fp16, fp8, int8"):
            AiconfiguratorCost(LLAMA, H100, kv_dtype="nvfp4")
        with pytest.raises(ValueError, match=r"no data for deepseek-r1 \(fp8 weights, fp8 cache\) on 8 x h200_sxm: "):
            AiconfiguratorCost(load_model("deepseek-r1"), load_hardware("h200"), "fp8", "fp8", 8)

    def test_it_names_the_tables_it_reads(self) -> None:
        [note] = AiconfiguratorCost(LLAMA, H100).notes
        assert note.startswith("steps: kernels by aiconfigurator-core ")
        assert note.endswith(", h100_sxm, its current TensorRT-LLM tables")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", None)
    with pytest.raises(ValueError, match=r"needs its package: pip install kvtier\[aiconfigurator\]"):
        AiconfiguratorCost(LLAMA, H100)


def test_a_model_is_described_by_its_kind() -> None:
    kinds = {name: config_of(load_model(name))["model_type"] for name in ("qwen3-32b", "deepseek-r1", "gpt-oss-120b")}
    assert kinds == {"qwen3-32b": "llama", "deepseek-r1": "deepseek_v3", "gpt-oss-120b": "gpt_oss"}
    wide = replace(load_model("gpt-oss-120b"), windows=(None,) * 36)
    assert config_of(wide)["model_type"] == "qwen3_moe"
    again = model_from_config("again", config_of(load_model("deepseek-r1")))
    assert (again.experts, again.kv_lora_rank, again.parameters) == (256, 512, load_model("deepseek-r1").parameters)
