"""Generates requests from ServeGen's client statistics: each client has its own rate, burstiness and lengths, window by window.

In a window of 600 s a client's gaps are drawn from the family fitted to them there (Gamma or Weibull) with the fitted shape,
scaled to the window's rate. A client without length statistics draws from all others' together. ServeGen says nothing of
content: a client is taken for an application whose prompts begin alike, and how much is shared is the user's guess.
Statistics that end start again.
"""

import ast
import csv
import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcache.request import Float64, Int64
from traces.borrowed import shared_blocks
from traces.errors import TraceError
from traces.rows import Numbers, Rows, stream_of
from traces.stream import Stream
from traces.synthetic import check

BUNDLED = Path(__file__).parent / "servegen_data"
WINDOW_S = 600.0
PATTERNS = ("Gamma", "Weibull")


@dataclass(frozen=True)
class ServeGen:
    """DeepSeek-R1's 73 clients over one day, or the clients in a directory of ServeGen's."""

    data: str = ""
    """Directory with chunk-*-trace.csv and chunk-*-dataset.json; the bundled DeepSeek-R1 statistics if empty."""
    requests: int = 10_000
    block_tokens: int = 16
    """Tokens of a block, the grain of all content."""
    rate_scale: float = 1.0
    """All clients' rates are multiplied by this."""
    start_s: float = 43_200.0
    """Where in the statistics to begin (seconds; the bundled ones are one day from midnight)."""
    shared_share: float = 0.3
    """Mean share of a prompt that all prompts of its client begin with, spread between 0 and twice this (at most all)."""

    def __post_init__(self) -> None:
        check(self, above_0=("requests", "block_tokens", "rate_scale"), from_0=("start_s", "shared_share"))
        if self.shared_share > 1:
            raise ValueError(f"shared_share is {self.shared_share}; it must be from 0 to 1")


@dataclass(frozen=True)
class Window:
    """What one client does in one window: requests a second and the gaps' family with its shape."""

    per_s: float
    pattern: str
    shape: float


@dataclass(frozen=True)
class Lengths:
    """A distribution: lengths and cumulative probabilities."""

    tokens: Int64
    cumulative: Float64

    def draw(self, rng: np.random.Generator, n: int) -> Int64:
        """n lengths."""
        return self.tokens[np.minimum(np.searchsorted(self.cumulative, rng.random(n)), len(self.tokens) - 1)]


@dataclass(frozen=True)
class Clients:
    """Windows by client (seconds of their start), and lengths by client and start; "" stands for all clients."""

    windows: Mapping[str, Mapping[float, Window]]
    lengths: Mapping[str, Mapping[float, tuple[Lengths, Lengths]]]

    @property
    def end_s(self) -> float:
        """Where the statistics end."""
        return max(max(windows) for windows in self.windows.values()) + WINDOW_S


def generate_servegen(workload: ServeGen, rng: np.random.Generator) -> Stream:
    """The clients' requests as a stream."""
    clients = bundled() if not workload.data else in_directory(Path(workload.data))
    names = tuple(f"client-{name}" for name in clients.windows)
    batches = _batches(workload, rng, clients)
    return stream_of("synthetic:servegen", batches, workload.requests, workload.block_tokens, names)


def _batches(workload: ServeGen, rng: np.random.Generator, clients: Clients) -> Iterator[tuple[Rows, float]]:
    stock = max(int(prompt.tokens[-1]) for by_start in clients.lengths.values() for prompt, _ in by_start.values())
    stock //= workload.block_tokens
    numbers, begun = Numbers(len(clients.windows) * stock), workload.start_s // WINDOW_S * WINDOW_S
    at_s, quiet = begun, 0
    while True:
        parts = []
        for owner, (name, windows) in enumerate(clients.windows.items()):
            window = windows.get(at_s % clients.end_s)
            if window is not None and window.per_s > 0:
                arrival_s = at_s - begun + times_in(rng, window, window.per_s * workload.rate_scale)
                parts.append(
                    _rows(workload, rng, clients, name, owner, arrival_s, at_s % clients.end_s, stock, numbers)
                )
        at_s, quiet = at_s + WINDOW_S, 0 if parts else quiet + 1
        if parts:
            yield Rows(*(np.concatenate(column) for column in zip(*parts, strict=True))), at_s - begun
        elif quiet * WINDOW_S > clients.end_s:
            raise TraceError("these ServeGen statistics have no window with a rate above 0")


def times_in(rng: np.random.Generator, window: Window, per_s: float) -> Float64:
    """Arrivals in a window that starts at 0, the first one gap's random part after its start."""
    n = max(8, round(per_s * WINDOW_S * 1.5))
    scale = 1 / (per_s * (window.shape if window.pattern == "Gamma" else math.gamma(1 + 1 / window.shape)))
    times: Float64 = np.empty(0)
    while not len(times) or times[-1] < WINDOW_S:
        gaps = rng.gamma(window.shape, scale, n) if window.pattern == "Gamma" else rng.weibull(window.shape, n) * scale
        if not len(times):
            gaps[0] *= rng.random()
        times = np.concatenate((times, np.cumsum(gaps) + (times[-1] if len(times) else 0.0)))
    return np.asarray(times[times < WINDOW_S])


def _rows(
    workload: ServeGen,
    rng: np.random.Generator,
    clients: Clients,
    name: str,
    owner: int,
    arrival_s: Float64,
    at_s: float,
    stock: int,
    numbers: Numbers,
) -> Rows:
    n = len(arrival_s)
    by_start = clients.lengths.get(name) or clients.lengths[""]
    lengths = by_start[max((start for start in by_start if start <= at_s), default=min(by_start))]
    prompt, output = lengths[0].draw(rng, n), lengths[1].draw(rng, n)
    shared = shared_blocks(rng, prompt // workload.block_tokens, workload.shared_share)
    return Rows(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        session=numbers.session_numbers(n),
        think_s=np.full(n, np.nan),
        shared=np.full((n, 1), owner * stock),
        shared_blocks=shared[:, None],
        own=numbers.blocks((prompt + output) // workload.block_tokens - shared),
        owner=np.full(n, owner),
    )


def bundled() -> Clients:
    """The statistics that come with kvtier; see the README beside them."""
    windows: dict[str, dict[float, Window]] = {}
    with gzip.open(BUNDLED / "clients.csv.gz", "rt", encoding="utf-8") as file:
        for client, *row in list(csv.reader(file))[1:]:
            windows.setdefault(client, {}).update([_window(row)])
    with gzip.open(BUNDLED / "lengths.json.gz", "rt", encoding="utf-8") as file:
        lengths = {client: _by_start(data) for client, data in json.load(file).items()}
    return Clients(windows, lengths | {"": _pooled(lengths)})


def in_directory(directory: Path) -> Clients:
    """The statistics in a directory as ServeGen publishes them."""
    traces = sorted(directory.glob("chunk-*-trace.csv"))
    if not traces:
        raise TraceError(f"{directory}: no chunk-*-trace.csv in it; data names a directory of ServeGen's")
    windows, lengths = {}, {}
    for path in traces:
        client = path.name.split("-")[1]
        try:
            windows[client] = dict(map(_window, csv.reader(path.read_text(encoding="utf-8").splitlines())))
            dataset = path.with_name(f"chunk-{client}-dataset.json")
            if dataset.exists():
                lengths[client] = _by_start(json.loads(dataset.read_text(encoding="utf-8")))
        except (ValueError, SyntaxError, KeyError, AttributeError) as error:
            raise TraceError(f"{path}: not as ServeGen writes it: {error}") from None
    if not lengths:
        raise TraceError(f"{directory}: no chunk-*-dataset.json in it, so no lengths are known")
    return Clients(windows, lengths | {"": _pooled(lengths)})


def _window(row: list[str]) -> tuple[float, Window]:
    start, rate, _, pattern, shape, _ = row
    if float(rate) > 0 and pattern not in PATTERNS:
        raise ValueError(f"a window's pattern is {pattern!r}, not {' or '.join(PATTERNS)}")
    return float(start), Window(float(rate), pattern, float(shape))


def _by_start(data: Mapping[str, Any]) -> dict[float, tuple[Lengths, Lengths]]:
    """Distributions of prompts and outputs by the second they start at; windows nobody asked in are left out."""
    pairs = {
        float(start): tuple(_lengths(of[name]) for name in ("input_tokens", "output_tokens"))
        for start, of in data.items()
    }
    return {start: (prompt, output) for start, (prompt, output) in pairs.items() if prompt and output}


def _lengths(said: Any) -> Lengths | None:
    """From ServeGen's text of a dictionary, or from our two lists."""
    if isinstance(said, str):
        table = ast.literal_eval(said)
        said = sorted(table), [float(table[length]) for length in sorted(table)]
    tokens, share = np.array(said[0], np.int64), np.cumsum(said[1])
    if not len(tokens):
        return None
    kept = tokens > 0
    return Lengths(tokens[kept], share[kept] / share[-1])


def _pooled(lengths: Mapping[str, Mapping[float, tuple[Lengths, Lengths]]]) -> dict[float, tuple[Lengths, Lengths]]:
    """One distribution for clients of whom no lengths are known: all others', evenly."""
    every = [pair for by_start in lengths.values() for pair in by_start.values()]
    return {0.0: (_mixed([prompt for prompt, _ in every]), _mixed([output for _, output in every]))}


def _mixed(parts: list[Lengths]) -> Lengths:
    tokens = np.concatenate([part.tokens for part in parts])
    share = np.concatenate([np.diff(part.cumulative, prepend=0.0) for part in parts])
    order = np.argsort(tokens, kind="stable")
    cumulative = np.cumsum(share[order])
    return Lengths(tokens[order], cumulative / cumulative[-1])
