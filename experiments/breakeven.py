"""What `kvtier breakeven` does: the prompt length and the bandwidth from which on loading a prefix beats computing it.

Both ways end with the last token's own step, since its output is what the user waits for:

    computed   one step over all n tokens
    loaded     the copies of n tokens' blocks over the link, then a step of one token that reads them all

One request alone on an idle engine, on every rank alike; copies do not overlap kernels.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from experiments import console
from experiments.pools import WEIGHT_DTYPE
from experiments.xfer import printed, way_of
from experiments.xfer import seconds as shown
from kvcache.capacity import copy_bytes, kv_dtype
from sim.cost import context_pairs, step_seconds_windowed
from sim.hardware import load_hardware
from sim.models import load_model
from sim.roofline import RooflineCost
from sim.transfer import descriptor_seconds

MOST_TOKENS = 1 << 22
BLOCKS_CHECKED = 4096
LENGTHS = (256, 1024, 4096, 16_384, 65_536, 131_072)


@dataclass(frozen=True)
class Ask:
    """`prefill_s`, measured at `isl` tokens, scales the times of all steps; lengths in tokens."""

    model: str
    gpu: str = "h100-sxm"
    link: str = "host"
    isl: int | None = None
    prefill_s: float | None = None
    tensor_parallel: int = 1
    dtype: str = "auto"
    weights: str | None = None
    tokens_per_block: int = 32

    def __post_init__(self) -> None:
        if self.isl is not None and not 2 <= self.isl <= MOST_TOKENS:
            raise ValueError(f"--isl is {self.isl}; it must be between 2 and {MOST_TOKENS:,} tokens")
        if self.prefill_s is not None and self.isl is None:
            raise ValueError("--prefill-s is the time of a prompt; give its length with --isl")
        if self.prefill_s is not None and not 0 < self.prefill_s < 1e6:
            raise ValueError(f"--prefill-s is {self.prefill_s}; it must be a number of seconds above 0")
        if self.tokens_per_block < 1:
            raise ValueError(f"--tokens-per-block is {self.tokens_per_block}; it must be at least 1")


@dataclass(frozen=True)
class Point:
    """One prompt length. `least_gb_per_s` is bytes over the computed time; `exact_gb_per_s` takes the last token's step
    off that time, since loading does not save it; None: it saves nothing."""

    tokens: int
    bytes: int
    descriptors: int
    computed_s: float
    copy_s: float
    last_step_s: float
    least_gb_per_s: float
    exact_gb_per_s: float | None

    @property
    def loaded_s(self) -> float:
        """Seconds to the first token with the prefix loaded."""
        return self.copy_s + self.last_step_s


class Scales:
    """Computing against loading for one model, machine and link, one rank."""

    def __init__(self, ask: Ask) -> None:
        model, hardware = load_model(ask.model), load_hardware(ask.gpu)
        self.ask, self.model = ask, model
        self.cache = "bf16" if ask.dtype == "auto" else kv_dtype(ask.dtype)
        self.weights = ask.weights or WEIGHT_DTYPE.get(model.name, "bf16")
        tp, tpb = ask.tensor_parallel, ask.tokens_per_block
        self.parts = copy_bytes(model.shape(), self.cache, tp, tokens_per_block=tpb)
        self.params = RooflineCost(model, hardware, self.weights, self.cache, tp).params
        self.way = way_of(hardware, ask.link)
        self.window = float(min((w for w in self.parts if w is not None), default=0)) or float("inf")
        self.scale = 1.0
        if ask.prefill_s is not None and ask.isl is not None:
            self.scale = ask.prefill_s / self.computed_s(ask.isl)

    def computed_s(self, tokens: int) -> float:
        """The prefill of a whole prompt in one step."""
        pairs, cut = (context_pairs(0, tokens, window) for window in (float("inf"), self.window))
        return self.scale * step_seconds_windowed(self.params, tokens, pairs, cut, tokens, 0, 0, 0)

    def last_step_s(self, tokens: int) -> float:
        """The step of the last token alone, over all the others."""
        pairs, cut = (context_pairs(tokens - 1, 1, window) for window in (float("inf"), self.window))
        return self.scale * step_seconds_windowed(self.params, 1, pairs, cut, tokens, 0, 0, 0)

    def copies(self, tokens: int) -> list[tuple[int, int]]:
        """(blocks, bytes of a descriptor), over windows and pools; a sliding window needs its last tokens only."""
        tpb = self.ask.tokens_per_block
        return [
            (-(-min(tokens, window or tokens) // tpb), size) for window, sizes in self.parts.items() for size in sizes
        ]

    def copy_s(self, tokens: int) -> float:
        """All blocks of a prompt over the link."""
        return self.way.start_s + sum(n * descriptor_seconds(self.way, size) for n, size in self.copies(tokens))

    def point(self, tokens: int) -> Point:
        """One prompt length."""
        copies, tpb = self.copies(tokens), self.ask.tokens_per_block
        moved = sum(min(tokens, w or tokens) * sum(sizes) // tpb for w, sizes in self.parts.items())
        computed, last = self.computed_s(tokens), self.last_step_s(tokens)
        exact = moved / (computed - last) / 1e9 if computed > last else None
        count = sum(n for n, _ in copies)
        return Point(tokens, moved, count, computed, self.copy_s(tokens), last, moved / computed / 1e9, exact)

    def loading_wins(self, tokens: int) -> bool:
        """Whether the first token comes sooner."""
        return self.copy_s(tokens) + self.last_step_s(tokens) < self.computed_s(tokens)

    def crossing_tokens(self) -> int | None:
        """The shortest prompt from which on loading is faster, to the token; None: not up to `MOST_TOKENS`."""
        high, tpb = MOST_TOKENS, self.ask.tokens_per_block
        if not self.loading_wins(high):
            return None
        while high > 2 and self.loading_wins(high // 2):
            high //= 2
        # A block is copied whole, so its first token is the worst one: the last block that begins with a loss counts.
        first = high // 2 // tpb
        starts = (k * tpb + 1 for k in range(first + BLOCKS_CHECKED, first - 1, -1))
        lost = next((start for start in starts if start > 1 and not self.loading_wins(start)), 1)
        return next(n for n in range(max(2, lost), high + MOST_TOKENS) if self.loading_wins(n))


@dataclass(frozen=True)
class Answer:
    """The crossing and the points asked for."""

    ask: Ask
    link_gb_per_s: float
    crossing_tokens: int | None
    points: tuple[Point, ...]
    title: str

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        points = [{**asdict(point), "loaded_s": point.loaded_s} for point in self.points]
        crossing = {"crossing_tokens": self.crossing_tokens, "link_gb_per_s": self.link_gb_per_s}
        return {"ask": asdict(self.ask), **crossing, "points": points}


def breakeven(ask: Ask) -> Answer:
    """Loading against computing, at `isl` or at a row of lengths."""
    scales = Scales(ask)
    longest = scales.model.max_position_embeddings
    lengths = [ask.isl] if ask.isl is not None else [n for n in LENGTHS if n <= longest]
    size = max(size for sizes in scales.parts.values() for size in sizes)
    rate = size / descriptor_seconds(scales.way, size) / 1e9
    gpus = f"{ask.tensor_parallel} x {ask.gpu}" if ask.tensor_parallel > 1 else ask.gpu
    title = (
        f"{scales.model.name} ({scales.weights} weights, {scales.cache} cache) on {gpus}, loading over {ask.link}:"
        f" descriptors of {size / 1024:,.0f} KiB at {rate:.4g} GB/s"
    )
    return Answer(ask, rate, scales.crossing_tokens(), tuple(scales.point(n) for n in lengths), title)


def show(answer: Answer, json: str | None) -> None:
    """A table of lengths and the crossing; with `--json FILE` the data go there, and with `-` they take its place."""
    if json is not None:
        console.write_json(answer.plain(), json)
    if json == "-":
        return
    console.say(answer.title)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("prompt (tokens)", "bytes", "computed", "loaded", "copies", "last token", "pays from (GB/s)", ""):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for point in answer.points:
        times = (point.computed_s, point.loaded_s, point.copy_s, point.last_step_s)
        faster = point.computed_s / point.loaded_s
        said = f"load: {faster:.3g} times faster" if faster > 1 else f"compute: {1 / faster:.3g} times faster"
        table.add_row(
            f"{point.tokens:,}", f"{point.bytes / 1e9:.4g} GB", *map(shown, times), f"{point.least_gb_per_s:.3g}", said
        )
    printed(table)
    for line in lines(answer):
        console.say(line)


def lines(answer: Answer) -> list[str]:
    """The crossing in sentences."""
    found = []
    if answer.ask.isl is not None:
        [point] = answer.points
        exact = "never (it is all last token)" if point.exact_gb_per_s is None else f"{point.exact_gb_per_s:.3g} GB/s"
        how = "given" if answer.ask.prefill_s is not None else "modelled"
        found.append(
            f"crossing in bandwidth at {point.tokens:,} tokens: {point.least_gb_per_s:.3g} GB/s"
            f" ({point.bytes / 1e9:.4g} GB / {shown(point.computed_s)} {how}; {exact} with the last token's step, which"
            " loading does not save)"
        )
    if answer.crossing_tokens is None:
        found.append(f"crossing in tokens: none up to {MOST_TOKENS:,}; computing is faster over this link")
    else:
        found.append(f"crossing in tokens: loading is faster from {answer.crossing_tokens:,} on")
    if answer.ask.prefill_s is not None:
        found.append("other lengths: the modelled steps, scaled to the one given")
    return found
