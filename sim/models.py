"""What a model weighs and works: layers, parameters, weight bytes, FLOPs, and the `ModelShape` its cache is sized from.

It knows no hardware and no time. A model is the keys of a Hugging Face `config.json`, under their own names, so three
things read alike: a preset of `presets/models.yaml`, a YAML file of the same form, and a `config.json`:

    my-model:
      config: {source: ..., model_type: llama, num_hidden_layers: 32, ...}
      published: {source: ..., parameters: 8030261248}        # optional, for the record; nothing is computed from it

Parameters follow from the config and are not read. Biases are left out of everything: they are below 0.1 % of the
models meant here. Architectures whose cache is more than attention (recurrent state, sparse indexers) are refused.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvcache.capacity import AttentionLayers, ModelShape, local_kv_heads

PRESETS = Path(__file__).parent / "presets" / "models.yaml"

GROUPED = ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "gemma3", "gemma3_text")
ARCHITECTURES = (*GROUPED, "deepseek_v2", "deepseek_v3")
GEMMA_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window_pattern": 6}
UNSAID: Mapping[str, Mapping[str, Any]] = {  # what a gemma-3 config leaves out, from transformers' Gemma3TextConfig
    "gemma3_text": {"vocab_size": 262_208, "max_position_embeddings": 131_072, "tie_word_embeddings": True}
    | GEMMA_HEADS
}

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,  # one FP8 scale for 16 values
    "mxfp4": 0.5 + 1 / 32,  # one E8M0 scale for 32 values; as in gpt-oss, only experts are quantised
    "int4": 0.5 + 2 / 128,  # AWQ and GPTQ: one FP16 scale for 128 values
}
WIDE_BYTES = 2.0
"""Embedding, output head, norms and routers stay in 16 bits whatever the rest is quantised to."""


@dataclass(frozen=True)
class Model:
    """One decoder. Expert fields are 0 in dense models, MLA fields in the others; `windows` has one entry a layer."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    intermediate_size: int
    windows: tuple[int | None, ...]
    tied_embedding: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_size: int = 0
    dense_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0

    def __post_init__(self) -> None:
        if len(self.windows) != self.layers:
            raise ValueError(f"{self.name}: windows are given for {len(self.windows)} layers; it has {self.layers}")
        for name in ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be at least 1")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(f"{self.name}: {self.experts_per_token} experts a token of {self.experts}")

    @property
    def mla(self) -> bool:
        """Latent attention: one compressed vector a token instead of keys and values for each head."""
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        """Layers that route tokens to experts; the others are dense."""
        return self.layers - self.dense_layers if self.experts else 0

    def shape(self) -> ModelShape:
        """What the KV cache is sized from."""
        kinds = list(dict.fromkeys(self.windows))
        groups = tuple(AttentionLayers(w, self.windows.count(w), self.kv_heads, self.head_dim) for w in kinds)
        order = tuple(kinds.index(w) for w in self.windows)
        kind: Any = "mla" if self.mla else "gqa"
        return ModelShape(self.name, groups, kind, self.kv_lora_rank, self.qk_rope_head_dim, order)

    def attention_parameters(self, tensor_parallel: int = 1) -> float:
        """Projections of one attention layer on one rank; KV heads below the rank count, and MLA's down-projections,
        are replicated."""
        h, tp = self.hidden_size, tensor_parallel
        if self.mla:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            down = h * (self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim)
            up = self.heads * ((self.q_lora_rank or h) * qk + self.v_head_dim * h)
            up += self.heads * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
            return down + up / tp
        kv = 2 * h * self.head_dim * local_kv_heads(self.kv_heads, tp)
        return 2 * h * self.head_dim * self.heads / tp + kv

    @property
    def expert_parameters(self) -> int:
        """Gate, up and down projection of one expert."""
        return 3 * self.hidden_size * self.expert_size

    @property
    def dense_mlp_parameters(self) -> int:
        """MLPs that every token passes, over all layers: dense layers, and shared experts of the others."""
        dense = (self.layers - self.moe_layers) * 3 * self.hidden_size * self.intermediate_size
        return dense + self.moe_layers * self.shared_experts * self.expert_parameters

    @property
    def router_and_norm_parameters(self) -> int:
        """Routers, two norms a layer, the final norm."""
        return self.moe_layers * self.hidden_size * self.experts + (2 * self.layers + 1) * self.hidden_size

    @property
    def parameters(self) -> int:
        """All of them."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embedding else 2)
        experts = self.moe_layers * self.experts * self.expert_parameters
        attention = int(self.layers * self.attention_parameters())
        return embeddings + attention + self.dense_mlp_parameters + experts + self.router_and_norm_parameters

    @property
    def active_parameters(self) -> int:
        """Those one token uses; of the embedding only the output head."""
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters
        return self.parameters - idle - (0 if self.tied_embedding else self.vocab_size * self.hidden_size)

    def weight_bytes(
        self, dtype: str, tensor_parallel: int = 1, pipeline_parallel: int = 1, expert_parallel: int = 1
    ) -> float:
        """Weights on the fullest rank. Experts are split over all tensor-parallel ranks, `expert_parallel` of them
        by whole experts; a pipeline stage holds ceil(layers / pipeline_parallel) layers and one of the embeddings."""
        tp, pp, ep = tensor_parallel, pipeline_parallel, expert_parallel
        if min(tp, pp, ep) < 1 or tp % ep:
            raise ValueError(f"expert_parallel is {ep}; it must divide tensor_parallel ({tp})")
        if pp > self.layers:
            raise ValueError(f"pipeline_parallel is {pp}; {self.name} has {self.layers} layers")
        linear = WIDE_BYTES if dtype == "mxfp4" else bytes_per_weight(dtype)
        layers = -(-self.layers // pp)
        moe = min(layers, self.moe_layers)
        experts = moe * -(-self.experts // ep) * ep / tp * self.expert_parameters
        dense = (layers - moe) * 3 * self.hidden_size * self.intermediate_size
        dense += moe * self.shared_experts * self.expert_parameters
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embedding or pp > 1 else 2)
        wide = embeddings / tp + self.router_and_norm_parameters * layers / self.layers
        attention = layers * self.attention_parameters(tp)
        return (attention + dense / tp) * linear + experts * bytes_per_weight(dtype) + wide * WIDE_BYTES

    def linear_flops_per_token(self) -> float:
        """Matrix products of one token in all layers; the output head is apart, since few tokens need it."""
        per_token = self.layers * self.attention_parameters() + self.dense_mlp_parameters
        return 2 * (per_token + self.moe_layers * self.experts_per_token * self.expert_parameters)

    def head_flops_per_token(self) -> float:
        """The output head, for one token whose successor is wanted."""
        return 2.0 * self.vocab_size * self.hidden_size

    def attention_flops_per_pair(self, *, absorbed: bool = False) -> float:
        """Attention of one query token to one context token in one layer: scores and weighted sum, all heads. MLA
        decodes `absorbed`: on the compressed vectors themselves."""
        if not self.mla:
            return 4.0 * self.heads * self.head_dim
        if absorbed:
            return 2.0 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)
        return 2.0 * self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)


def bytes_per_weight(dtype: str) -> float:
    """Bytes of one quantised weight, its share of the scales included."""
    if dtype not in WEIGHT_BYTES:
        raise ValueError(f"weight dtype is {dtype!r}; known: {', '.join(WEIGHT_BYTES)}")
    return WEIGHT_BYTES[dtype]


def model_names() -> list[str]:
    """The presets that come with kvtier."""
    return sorted(_read(PRESETS))


def load_model(name: str | Path) -> Model:
    """A preset by its name, or a YAML file or `config.json` by its path."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml", ".json"}:
        if not path.is_file():
            raise ValueError(f"model {path}: no such file")
        data = _read(path)
        if path.suffix == ".json":
            return model_from_config(str(data.get("_name_or_path") or path.parent.name or path.stem), data)
        if len(data) != 1:
            raise ValueError(f"model {path}: it describes {len(data)} models ({', '.join(data)}); give a file with one")
        name, entry = next(iter(data.items()))
    else:
        presets = _read(PRESETS)
        if name not in presets:
            raise ValueError(f"model {str(name)!r} is not known; {nearest(str(name), list(presets))}")
        entry = presets[str(name)]
    if not isinstance(entry, dict) or set(entry) - {"config", "published"} or not isinstance(entry.get("config"), dict):
        raise ValueError(f"model {name}: an entry is `config:` and, if you like, `published:`")
    return model_from_config(str(name), entry["config"])


def nearest(name: str, known: list[str]) -> str:
    """The known names, those that look alike first."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"nearest: {', '.join(close)}" if close else f"known: {', '.join(sorted(known))}"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not readable as {path.suffix[1:]}: {error}") from None
    if type(data) is not dict:
        raise ValueError(f"{path}: it must hold keys and values, and holds {type(data).__name__}")
    return data


def model_from_config(name: str, config: Mapping[str, Any]) -> Model:
    """A model from the keys of a Hugging Face `config.json`; keys that do not matter here are passed over."""
    if config.get("model_type") == "gemma3":  # with its image encoder, which has no KV cache
        config = {"model_type": "gemma3_text", **config.get("text_config", {})}
    kind = config.get("model_type")
    config = {**UNSAID.get(str(kind), {}), **config}
    if kind not in ARCHITECTURES:
        raise ValueError(f"model {name}: model_type is {kind!r}; known: {', '.join(ARCHITECTURES)}")

    def number(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                    raise ValueError(f"model {name}: {key} is {value!r}; it must be a whole number, at least 0")
                return value
        if default is None:
            raise ValueError(f"model {name}: {keys[0]} is missing from its config")
        return default

    layers, hidden, heads = (number(k) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    experts = number("n_routed_experts", "num_local_experts", "num_experts", default=0)
    return Model(
        name=name,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=hidden // max(heads, 1)),
        vocab_size=number("vocab_size"),
        max_position_embeddings=number("max_position_embeddings"),
        intermediate_size=number("intermediate_size"),
        windows=_windows(name, config, layers),
        tied_embedding=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=number("num_experts_per_tok", "experts_per_token") if experts else 0,
        shared_experts=number("n_shared_experts", default=0),
        expert_size=number("moe_intermediate_size", "intermediate_size") if experts else 0,
        dense_layers=number("first_k_dense_replace", default=0) if experts else 0,
        kv_lora_rank=number("kv_lora_rank", default=0),
        q_lora_rank=number("q_lora_rank", default=0),
        qk_rope_head_dim=number("qk_rope_head_dim", default=0),
        qk_nope_head_dim=number("qk_nope_head_dim", default=0),
        v_head_dim=number("v_head_dim", default=0),
    )


def _windows(name: str, config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """The attention window of every layer; `layer_types` may be given for the first layers only and then repeats."""
    window, types = config.get("sliding_window"), config.get("layer_types")
    if window is None or not config.get("use_sliding_window", True):
        return (None,) * layers
    if types is None:
        if config["model_type"] in {"mistral", "mixtral", "phi3"}:
            return (window,) * layers
        every = config.get("sliding_window_pattern")
        if every is not None:  # one layer in so many sees everything
            return tuple(None if (i + 1) % every == 0 else window for i in range(layers))
        raise ValueError(f"model {name}: sliding_window is {window} and layer_types does not say for which layers")
    known = {"sliding_attention": window, "full_attention": None}
    if set(types) - set(known):
        raise ValueError(f"model {name}: layer_types has {sorted(set(types) - set(known))}; known: {', '.join(known)}")
    return tuple(known[types[i % len(types)]] for i in range(layers))
