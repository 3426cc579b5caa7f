"""Model presets against what their makers publish, and configs that cannot be read."""

import json

import pytest
import yaml

from kvcache.capacity import bytes_per_token
from sim.models import PRESETS, load_model, model_from_config, model_names

LLAMA_CONFIG = yaml.safe_load(PRESETS.read_text())["llama-3.1-8b"]["config"]


def test_the_presets_are_these():
    assert model_names() == [
        "deepseek-r1",
        "gpt-oss-120b",
        "llama-3.1-70b",
        "llama-3.1-8b",
        "llama-3.2-1b",
        "qwen2.5-0.5b",
        "qwen2.5-7b",
        "qwen3-235b-a22b",
        "qwen3-32b",
        "qwen3-8b",
    ]


@pytest.mark.parametrize("name", model_names())
def test_every_preset_names_the_source_of_its_figures(name: str):
    entry = yaml.safe_load(PRESETS.read_text())[name]
    assert entry["config"]["source"]
    assert entry["published"]["source"]


@pytest.mark.parametrize(
    ("name", "parameters", "tolerance"),
    [
        ("llama-3.1-8b", 8_030_261_248, 0),
        ("llama-3.1-70b", 70_553_706_496, 0),
        ("qwen3-32b", 32.8e9, 0.002),
        ("deepseek-r1", 671e9, 0.001),
        ("gpt-oss-120b", 116.83e9, 0.001),  # biases are left out
        ("llama-3.2-1b", 1_235_814_400, 0),
        ("qwen2.5-0.5b", 0.49e9, 0.01),
        ("qwen2.5-7b", 7.61e9, 0.001),
        ("qwen3-8b", 8.2e9, 0.002),
    ],
)
def test_parameters_are_the_published_ones(name: str, parameters: float, tolerance: float):
    assert load_model(name).parameters == pytest.approx(parameters, rel=tolerance, abs=0)


@pytest.mark.parametrize(("name", "active"), [("deepseek-r1", 37e9), ("gpt-oss-120b", 5.13e9)])
def test_active_parameters_are_the_published_ones(name: str, active: float):
    assert load_model(name).active_parameters == pytest.approx(active, rel=0.015)


def test_gpt_oss_weighs_what_its_checkpoint_does():
    # model card: 60.8 GiB, experts in MXFP4, the rest in BF16
    assert load_model("gpt-oss-120b").weight_bytes("mxfp4") / 1024**3 == pytest.approx(60.8, rel=0.005)


def test_bf16_weights_are_two_bytes_a_parameter():
    assert load_model("llama-3.1-8b").weight_bytes("bf16") == 2 * 8_030_261_248


def test_tensor_parallel_divides_all_but_norms():
    # (8,030,261,248 - 65 norms x 4,096) / 8 + 65 x 4,096, in two bytes
    assert load_model("llama-3.1-8b").weight_bytes("bf16", 8) == 2 * (1_003_749_376 + 266_240)


def test_pipeline_stage_holds_its_layers_and_one_embedding():
    # 16 of 32 layers of 218,112,000 parameters, 128,256 x 4,096 of an embedding, half of the final norm
    assert load_model("llama-3.1-8b").weight_bytes("bf16", 1, 2) == 2 * (16 * 218_112_000 + 128_256 * 4_096 + 2_048)


def test_expert_parallel_holds_whole_experts():
    model = load_model("deepseek-r1")
    assert model.weight_bytes("fp8", 8, 1, 8) == model.weight_bytes("fp8", 8, 1, 1)  # 256 experts divide by 8
    # 3 ranks: 86 experts on the fullest instead of 85.33; two thirds of 44.04 M parameters in 58 layers
    more = model.weight_bytes("fp8", 3, 1, 3) - model.weight_bytes("fp8", 3, 1, 1)
    assert more == pytest.approx(58 * 2 / 3 * 3 * 7168 * 2048)


def test_a_dense_token_costs_two_flops_a_parameter_of_its_layers():
    # llama-3.1-8b: 32 layers x (2 x 4096 x 4096 + 2 x 4096 x 1024 + 3 x 4096 x 14336) x 2
    model = load_model("llama-3.1-8b")
    assert model.linear_flops_per_token() == 2 * 32 * (33_554_432 + 8_388_608 + 176_160_768)
    assert model.head_flops_per_token() == 2 * 128_256 * 4_096


def test_attention_costs_four_flops_a_head_element_and_pair():
    # scores and weighted sum, two FLOPs each: 4 x 32 x 128
    assert load_model("llama-3.1-8b").attention_flops_per_pair() == 16_384


def test_mla_decodes_on_the_compressed_vectors():
    model = load_model("deepseek-r1")
    # prefill: 2 x 128 heads x (128 + 64 + 128); decode: 2 x 128 x (512 + 64 + 512)
    assert model.attention_flops_per_pair() == 81_920
    assert model.attention_flops_per_pair(absorbed=True) == 278_528


def test_gpt_oss_alternates_window_and_full_attention():
    shape = load_model("gpt-oss-120b").shape()
    assert [(g.window_tokens, g.layers) for g in shape.groups] == [(128, 18), (None, 18)]
    assert shape.order()[:4] == [0, 1, 0, 1]


def test_cache_bytes_follow_from_the_presets():
    # 64 layers x 2 x 8 x 128 x 2 B = 262,144; 61 x 576 x 2 B = 70,272
    assert bytes_per_token(load_model("qwen3-32b").shape(), "bf16") == {None: 262_144}
    assert bytes_per_token(load_model("deepseek-r1").shape(), "bf16") == {None: 70_272}


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(ValueError, match=r"model 'llama-3-8b' is not known; nearest: llama-3.1-8b"):
        load_model("llama-3-8b")
    with pytest.raises(ValueError, match=r"known: deepseek-r1, gpt-oss-120b"):
        load_model("zzz")


def test_a_hugging_face_config_is_read_by_its_path(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    config = {**LLAMA_CONFIG, "rope_theta": 500000.0, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(folder / "config.json")
    assert (model.name, model.parameters) == ("my-llama", 8_030_261_248)


def test_a_yaml_file_describes_one_model(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"mine": {"config": LLAMA_CONFIG}}))
    assert load_model(str(path)).name == "mine"
    path.write_text(yaml.safe_dump({"a": {"config": LLAMA_CONFIG}, "b": {"config": LLAMA_CONFIG}}))
    with pytest.raises(ValueError, match=r"describes 2 models \(a, b\)"):
        load_model(path)
    path.write_text(yaml.safe_dump({"mine": LLAMA_CONFIG}))
    with pytest.raises(ValueError, match="an entry is `config:`"):
        load_model(path)
    path.write_text("- 1")
    with pytest.raises(ValueError, match="must hold keys and values, and holds list"):
        load_model(path)
    path.write_text("a: [")
    with pytest.raises(ValueError, match="not readable as yaml"):
        load_model(path)
    with pytest.raises(ValueError, match="no such file"):
        load_model(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; known: llama"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4k"}, "hidden_size is '4k'; it must be a whole number"),
        ({"num_hidden_layers": 0}, "layers is 0; it must be at least 1"),
        ({"sliding_window": 128}, "layer_types does not say for which layers"),
        ({"sliding_window": 128, "layer_types": ["chunked_attention"]}, r"layer_types has \['chunked_attention'\]"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "8 experts a token of 4"),
    ],
)
def test_a_config_that_cannot_be_modelled_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        model_from_config("m", {**LLAMA_CONFIG, **change})


def test_head_size_and_windows_follow_where_a_config_leaves_them_out():
    config = {**LLAMA_CONFIG, "model_type": "mistral", "sliding_window": 4096, "head_dim": None}
    model = model_from_config("m", config)
    assert (model.head_dim, set(model.windows)) == (128, {4096})
    off = model_from_config("m", {**config, "use_sliding_window": False})
    assert set(off.windows) == {None}


def test_impossible_splits_and_dtypes_are_refused():
    model = load_model("llama-3.1-8b")
    with pytest.raises(ValueError, match=r"expert_parallel is 3; it must divide tensor_parallel \(4\)"):
        model.weight_bytes("bf16", 4, 1, 3)
    with pytest.raises(ValueError, match=r"pipeline_parallel is 33; llama-3.1-8b has 32 layers"):
        model.weight_bytes("bf16", 1, 33)
    with pytest.raises(ValueError, match="weight dtype is 'fp6'; known: bf16"):
        model.weight_bytes("fp6")


def test_gemma_3_alternates_five_windows_with_one_full_layer() -> None:
    # google/gemma-3-4b-it's config.json: what its text_config says; the rest are transformers' defaults
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    model = model_from_config("gemma-3-4b", {"model_type": "gemma3", "text_config": text})
    assert (model.heads, model.kv_heads, model.head_dim, model.tied_embedding) == (8, 4, 256, True)
    assert model.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    assert model.windows.count(None) == 5
    assert model.parameters == pytest.approx(3.88e9, rel=0.01)  # the model card: 4 B with 0.4 B of the image encoder


def test_phi_3_slides_in_every_layer() -> None:
    # microsoft/Phi-3-mini-4k-instruct's config.json
    config = {
        "model_type": "phi3",
        "num_hidden_layers": 32,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
        "sliding_window": 2047,
    }
    model = model_from_config("phi-3-mini", config)
    assert set(model.windows) == {2047}
    assert model.parameters == pytest.approx(3.82e9, rel=0.01)  # the model card: 3.8 B
