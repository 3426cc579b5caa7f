"""What a machine can do, as figures with sources: memory, FLOPs, the efficiency of kernels, links.

It measures nothing and times nothing. A machine is a YAML file; a preset and a calibration file have the same form:

    name: my-machine
    base: h100-sxm             # optional: a preset (or file) that supplies every second-level key not given here
    memory:
      size: {bytes: ..., source: ...}                    HBM of one GPU
      bandwidth: {bytes_per_s: ..., source: ...}         HBM, peak
      efficiency: {value: ..., source: ...}              share of the peak that kernels reach, (0, 1]
    compute:
      flops: {bf16: ..., fp8: ..., source: ...}          dense peak per second and number format (bf16, fp8, fp4, int8)
      multiprocessors: {count: ..., source: ...}         streaming multiprocessors, over which products are tiled
      linear: {efficiency: ..., source: ...}             share of the peak that wide, deep matrix products reach
      attention: {efficiency: ..., half_context_tokens: ..., source: ...}
                                                         prefill attention: share of the bf16 peak over long contexts,
                                                         and the mean context at which half of that is reached
      kernels: {latency_s: ..., per_layer: ..., source: ...}          fixed seconds of a kernel, kernels a layer
      decode_attention: {latency_s: ..., source: ...}    fixed seconds of one layer's decode attention
      step: {overhead_s: ..., source: ...}               fixed seconds of a step that no kernel accounts for
      measured:                                          optional; what a calibration timed: rates by size, all three of
        linear: {table: [[tokens, flops_per_s], ...], source: ...}
                                                         a matrix product of so many rows (bf16; float32 on the cpu device)
        prefill_attention: {table: [[context_tokens, flops_per_s], ...], source: ...}
                                                         causal attention, by the mean context of a query token
        decode_attention: {table: [[cache_bytes, bytes_per_s], ...], source: ...}
                                                         one layer reading so many bytes of cache, the batch's in all
    links:
      host:                                              GPU to host memory; also: disk (file to host memory, POSIX),
        h2d: {latency_s: ..., bandwidth_bytes_per_s: ..., table: [[bytes, bytes_per_s], ...], source: ...}
        d2h: {...}                                       gds (file to GPU), nvlink (GPU to GPU), network (node to
                                                         node), host_batched (host, many copies handed over in one call),
                                                         host_gather (host, blocks gathered, then one copy)
        duplex_factor: ...                               share of its speed a direction keeps while the other works
        source: ...

In `measured` the first column ascends; between rows rates are taken in log size and log rate, outside they stay.
FLOPs count a multiply and an add as two: 2 x rows x columns x inner, 4 x pairs x heads x head size.

`table`, `start_s` (once a copy) and `burst` ([[bytes of a whole copy, factor on its seconds], ...]) are optional. h2d is
towards the GPU on every link: onboard, read, receive. A link given as null is not there. Any mapping may hold `source`; the
presets hold one beside every figure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sim.models import nearest
from sim.transfer import Link, LinkDirection

PRESETS = Path(__file__).parent / "presets"
LINKS = ("host", "disk", "gds", "nvlink", "network", "host_batched", "host_gather")
MEASURED = ("linear", "prefill_attention", "decode_attention")
NUMBER_FORMATS = ("bf16", "fp8", "fp4", "int8")
DIRECTION_KEYS = {"latency_s", "bandwidth_bytes_per_s", "table", "start_s", "burst", "source"}

FIGURES = {
    "memory.size.bytes": "hbm_bytes",
    "memory.bandwidth.bytes_per_s": "hbm_bytes_per_s",
    "memory.efficiency.value": "hbm_efficiency",
    "compute.multiprocessors.count": "multiprocessors",
    "compute.linear.efficiency": "linear_efficiency",
    "compute.attention.efficiency": "attention_efficiency",
    "compute.attention.half_context_tokens": "attention_half_context_tokens",
    "compute.kernels.latency_s": "kernel_latency_s",
    "compute.kernels.per_layer": "kernels_per_layer",
    "compute.decode_attention.latency_s": "decode_attention_latency_s",
    "compute.step.overhead_s": "step_overhead_s",
}
"""Where each number of `Hardware` stands in the file."""


@dataclass(frozen=True)
class Hardware:
    """One machine: a GPU and its links. `flops` by number format; `sources` by place in the file; `measured`: (size,
    rate) by kernel as above, empty where nothing was timed.
    """

    name: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    hbm_efficiency: float
    flops: Mapping[str, float]
    multiprocessors: float
    linear_efficiency: float
    attention_efficiency: float
    attention_half_context_tokens: float
    kernel_latency_s: float
    kernels_per_layer: float
    decode_attention_latency_s: float
    step_overhead_s: float
    links: Mapping[str, Link]
    sources: Mapping[str, str]
    measured: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("hbm_efficiency", "linear_efficiency", "attention_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"hardware {self.name}: {name} is {getattr(self, name)}; it must be in (0, 1]")
        if "bf16" not in self.flops:
            raise ValueError(f"hardware {self.name}: compute.flops has no bf16")
        for name in ("hbm_bytes", "hbm_bytes_per_s", "multiprocessors"):
            if getattr(self, name) <= 0:
                raise ValueError(f"hardware {self.name}: {name} is {getattr(self, name)}; it must be above 0")

    def link(self, name: str) -> Link:
        """A link by name; a missing one is refused by name."""
        if name not in self.links:
            raise ValueError(f"hardware {self.name} has no {name} link; it has {', '.join(self.links)}")
        return self.links[name]


def hardware_names() -> list[str]:
    """The presets that come with kvtier."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if path.stem != "models")


def load_hardware(name: str | Path) -> Hardware:
    """A preset by its name, or a YAML file (a calibration) by its path."""
    return hardware_from(_read(name))


def hardware_from(data: Mapping[str, Any]) -> Hardware:
    """A machine from a file's contents, `base` already applied."""
    name = str(data.get("name"))
    unknown = set(data) - {"name", "base", "memory", "compute", "links", "source"}
    if unknown:
        raise ValueError(f"hardware {name}: unknown keys {', '.join(sorted(unknown))}")
    figures: dict[str, float] = {}
    flops: dict[str, float] = {}
    for section in ("memory", "compute"):
        for path, value in _leaves(data.get(section, {}), section):
            where, _, last = path.rpartition(".")
            if where == "compute.flops" and last in NUMBER_FORMATS:
                flops[last] = _number(name, path, value)
            elif path in FIGURES:
                figures[FIGURES[path]] = _number(name, path, value)
            elif last != "source" and not path.startswith("compute.measured."):
                raise ValueError(f"hardware {name}: unknown key {path}; {nearest(path, list(FIGURES))}")
    missing = [path for path, field in FIGURES.items() if field not in figures]
    if missing:
        raise ValueError(f"hardware {name}: {', '.join(missing)} not given; give them, or a `base` that has them")
    links = {k: _link(name, k, link) for k, link in (data.get("links") or {}).items() if link is not None}
    sources = {path.removesuffix(".source"): str(v) for path, v in _leaves(data, "") if path.endswith(".source")}
    measured = _measured(name, data.get("compute", {}).get("measured"))
    return Hardware(name=name, flops=flops, links=links, sources=sources, measured=measured, **figures)


def _measured(name: str, data: Any) -> dict[str, tuple[tuple[float, float], ...]]:
    if data is None:
        return {}
    if type(data) is not dict or set(data) - {"source"} != set(MEASURED):
        raise ValueError(f"hardware {name}: compute.measured must hold {', '.join(MEASURED)}")
    found = {}
    for kernel in MEASURED:
        path, one = f"compute.measured.{kernel}", data[kernel]
        rows = one.get("table") if type(one) is dict else None
        if not rows or not all(isinstance(row, list) and len(row) == 2 for row in rows):
            raise ValueError(f"hardware {name}: {path}.table must hold rows [size, rate]")
        table = tuple((_number(name, path, size), _number(name, path, rate)) for size, rate in rows)
        sizes = [size for size, _ in table]
        if sizes != sorted(set(sizes)) or min(min(row) for row in table) <= 0:
            raise ValueError(f"hardware {name}: {path}.table: sizes must ascend, and sizes and rates be above 0")
        found[kernel] = table
    return found


def _read(name: str | Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The contents of a preset or file, its `base` filled in section by section, key by key."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        if str(name) not in hardware_names():
            raise ValueError(f"hardware {str(name)!r} is not known; {nearest(str(name), hardware_names())}")
        path = PRESETS / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"hardware {path}: no such file")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"hardware {path}: not readable as YAML: {error}") from None
    if type(data) is not dict:
        raise ValueError(f"hardware {path}: it must hold keys and values, and holds {type(data).__name__}")
    data.setdefault("name", path.stem)
    if data.get("base") is None:
        return data
    if path in above:
        raise ValueError(f"hardware {path}: it is based on itself")
    base = _read(data["base"], (*above, path))
    for section in ("memory", "compute", "links"):
        data[section] = {**base.get(section, {}), **(data.get(section) or {})}
    return data


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value that is not a mapping, with its dotted place."""
    if not isinstance(node, dict):
        yield path, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{path}.{key}" if path else str(key))


def _number(name: str, path: str, value: Any) -> float:
    """A number at least 0; YAML reads 3e-6 as text, which is let pass."""
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise ValueError(f"hardware {name}: {path} is {value!r}; it must be a number, at least 0")
    return number


def _link(name: str, kind: str, data: Any) -> Link:
    if kind not in LINKS:
        raise ValueError(f"hardware {name}: unknown link {kind}; known: {', '.join(LINKS)}")
    if type(data) is not dict or set(data) - {"duplex_factor", "source"} != {"h2d", "d2h"}:
        raise ValueError(f"hardware {name}: links.{kind} must hold h2d, d2h and, if you like, duplex_factor and source")
    duplex = _number(name, f"links.{kind}.duplex_factor", data.get("duplex_factor", 1.0))
    return Link(*(_direction(name, f"links.{kind}.{way}", data[way], duplex) for way in ("h2d", "d2h")))


def _direction(name: str, path: str, data: Any, duplex_factor: float) -> LinkDirection:
    if type(data) is not dict or set(data) - DIRECTION_KEYS:
        raise ValueError(f"hardware {name}: {path} may hold {', '.join(sorted(DIRECTION_KEYS))}")
    tables = []
    for key, value in (("table", "bytes_per_s"), ("burst", "factor")):
        rows = data.get(key) or []
        if not all(isinstance(row, list) and len(row) == 2 for row in rows):
            raise ValueError(f"hardware {name}: {path}.{key} must hold rows [bytes, {value}]")
        tables.append(tuple((_number(name, path, size), _number(name, path, one)) for size, one in rows))
    latency, rate, start = (
        _number(name, f"{path}.{key}", data.get(key, default))
        for key, default in (("latency_s", None), ("bandwidth_bytes_per_s", None), ("start_s", 0.0))
    )
    try:
        return LinkDirection(latency, rate, tables[0], duplex_factor, start, tables[1])
    except ValueError as error:
        raise ValueError(f"hardware {name}: {path}: {error}") from None
