"""What `kvtier xfer` does: seconds of one copy over a link, and what they are spent on.

A link here is a way bytes take: `host`, `host_batched`, `host_gather`, `gds`, `nvlink`, `network` as in the hardware file,
`disk` by way of host memory (TensorRT-LLM's POSIX mode: one leg after the other), `c2c` the host link of a GH200.
"""

from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from experiments import console
from kvcache.capacity import copy_bytes, kv_dtype
from sim.hardware import Hardware, load_hardware
from sim.models import load_model, nearest
from sim.transfer import LinkDirection, copy_seconds, descriptor_seconds, side_by_side, through_host

WAYS = ("host", "disk", "gds", "c2c", "nvlink", "network", "host_batched", "host_gather")
KIB = 1024
WIDTH = 124


@dataclass(frozen=True)
class Route:
    """How bytes travel: link names, comma between; `down` away from the GPU; `busy`: the other direction works too.

    `latency_us` and `gb_per_s` replace what the hardware says by a straight line. `submitters` threads post side by
    side, up to the bandwidth of the host link (disk, gds) or of the link itself.
    """

    gpu: str = "h100-sxm"
    links: str = "host"
    down: bool = False
    busy: bool = False
    submitters: int = 1
    latency_us: float | None = None
    gb_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--latency-us", self.latency_us), ("--gbps", self.gb_per_s)):
            if value is not None and not 0 <= value < 1e9:
                raise ValueError(f"{name} is {value}; it must be a number, at least 0")
        if self.gb_per_s == 0:
            raise ValueError("--gbps is 0; it must be above 0")

    def ways(self) -> dict[str, LinkDirection]:
        """Each link by name, as it will be used."""
        hardware = load_hardware(self.gpu)
        names = [name.strip() for name in self.links.split(",") if name.strip()]
        if not names:
            raise ValueError(f"--link names no link; known: {', '.join(WAYS)}")
        return {name: self._changed(hardware, name) for name in names}

    def _changed(self, hardware: Hardware, name: str) -> LinkDirection:
        way = way_of(hardware, name, down=self.down)
        if self.latency_us is not None or self.gb_per_s is not None:
            latency = way.latency_s if self.latency_us is None else self.latency_us * 1e-6
            rate = way.bandwidth_bytes_per_s if self.gb_per_s is None else self.gb_per_s * 1e9
            way = replace(way, latency_s=latency, bandwidth_bytes_per_s=rate, table=())
        through = way_of(hardware, "host", down=self.down) if name in {"disk", "gds"} else way
        return side_by_side(way, self.submitters, through.bandwidth_bytes_per_s)


@dataclass(frozen=True)
class Transfer:
    """One copy: its seconds, and how they divide."""

    link: str
    bytes: float
    descriptors: int
    bytes_per_descriptor: float
    seconds: float
    gb_per_s: float
    start_s: float
    descriptor_s: float
    bytes_s: float
    tokens_per_block: int | None = None


def way_of(hardware: Hardware, name: str, *, down: bool = False) -> LinkDirection:
    """One direction of a link by the names above."""
    if name not in WAYS:
        raise ValueError(f"--link {name} is not known; {nearest(name, list(WAYS))}")
    link = load_hardware("gh200").link("host") if name == "c2c" else hardware.link(name)
    way = link.d2h if down else link.h2d
    if name == "disk":
        host = hardware.link("host")
        return through_host(way, host.d2h if down else host.h2d)
    return way


def transfer(link: str, way: LinkDirection, total_bytes: float, descriptors: int, *, busy: bool = False) -> Transfer:
    """`total_bytes` in equal descriptors; `bytes_s` is what the link's full bandwidth would take."""
    if not 0 < total_bytes < 1e18:
        raise ValueError(f"--bytes is {total_bytes:g}; it must be above 0")
    if descriptors < 1:
        raise ValueError(f"--descriptors is {descriptors}; it must be at least 1")
    each = total_bytes / descriptors
    seconds = copy_seconds(way, descriptors, each, busy_other_direction=busy)
    stretch = 1.0 / way.duplex_factor if busy else 1.0
    peak = (
        max([way.bandwidth_bytes_per_s, *(rate for _, rate in way.table)]) if way.table else way.bandwidth_bytes_per_s
    )
    bytes_s = min(total_bytes / peak, descriptors * descriptor_seconds(way, each)) * stretch
    start_s = way.start_s * stretch
    rest = max(0.0, seconds - bytes_s - start_s)
    return Transfer(link, total_bytes, descriptors, each, seconds, total_bytes / seconds / 1e9, start_s, rest, bytes_s)


def transfers(route: Route, total_bytes: float, descriptors: int) -> list[Transfer]:
    """The same copy over each link."""
    return [transfer(name, way, total_bytes, descriptors, busy=route.busy) for name, way in route.ways().items()]


def sweep(
    route: Route, total_bytes: float, model: str | None, dtype: str = "auto", tensor_parallel: int = 1
) -> list[Transfer]:
    """The same bytes in descriptors of 4 KiB to 16 MiB, or, of a model, in blocks of 1 to 1,024 tokens."""
    if not 0 < total_bytes < 1e18:
        raise ValueError(f"--bytes is {total_bytes:g}; it must be above 0")
    found = []
    for name, way in route.ways().items():
        for tokens, size in _sizes(model, dtype, tensor_parallel):
            count = max(1, round(total_bytes / size))
            one = transfer(name, way, float(count * size), count, busy=route.busy)
            found.append(replace(one, tokens_per_block=tokens))
    return found


def _sizes(model: str | None, dtype: str, tensor_parallel: int) -> list[tuple[int | None, int]]:
    """Tokens of a block (None without a model), and the bytes of its largest descriptor."""
    if model is None:
        return [(None, KIB << power) for power in range(2, 15)]
    shape = load_model(model).shape()
    cache = "bf16" if dtype == "auto" else kv_dtype(dtype)
    sizes: list[tuple[int | None, int]] = []
    for tokens in (1 << power for power in range(11)):
        windows = copy_bytes(shape, cache, tensor_parallel, tokens_per_block=tokens)
        sizes.append((tokens, max(size for parts in windows.values() for size in parts)))
    return sizes


def show(found: list[Transfer], json: str | None) -> None:
    """A table; with `--json FILE` the rows go there, and with `-` they take its place."""
    if json is not None:
        console.write_json([asdict(one) for one in found], json)
    if json == "-":
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    swept = found[0].tokens_per_block is not None
    titles = ["tokens a block"] if swept else []
    titles += ["descriptors", "bytes each", "time", "GB/s", "of it: start", "descriptors", "bytes"]
    table.add_column("link", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for one in found:
        first = [str(one.tokens_per_block)] if swept else []
        shares = (f"{part / one.seconds:.1%}" for part in (one.start_s, one.descriptor_s, one.bytes_s))
        cells = (f"{one.descriptors:,}", f"{one.bytes_per_descriptor:,.0f}", seconds(one.seconds))
        table.add_row(one.link, *first, *cells, f"{one.gb_per_s:.4g}", *shares)
    printed(table)


def printed(table: Table) -> None:
    """A table as wide as it needs, whatever the terminal."""
    out = Console(highlight=False)
    out.width = max(out.width, WIDTH)
    out.print(table)


def seconds(value: float) -> str:
    """A time for people."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if value >= factor:
            return f"{value / factor:,.4g} {unit}"
    return f"{value / 1e-6:.4g} us"
