"""Seconds a copy takes over one link: a cost for each descriptor, and a bandwidth that depends on its size.

It moves nothing and queues nothing (the links do); it does not know which tier is at either end. Directions are named
from the GPU: `h2d` brings bytes to it (onboard, disk read, receive), `d2h` takes them away (offload, disk write, send).

    one descriptor of s bytes         latency_s + s / bandwidth_bytes_per_s            where nothing was measured
                                      s / table(s), the table in log size and log B/s  where something was
    one copy                          start_s + descriptors x that x burst(all its bytes)
    while the other direction works   the whole / duplex_factor

Below a table's first size a descriptor takes as long as the first one does; above its last the bandwidth stays. `burst` is
1 where nothing was measured: caches swallow the writes of a short copy, and a long one pays for them as it goes.
`copy_seconds` is the definition; `copy_seconds_c` is the same over a flat `LinkParams`, for compiled loops.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import loop

LinkParams = NDArray[np.float64]
"""A link direction as numbers: the six below, the table's log sizes, its log bandwidths, log bytes and log factors of bursts."""

LATENCY_S, BANDWIDTH, DUPLEX, START_S, TABLE_ROWS, BURST_ROWS, TABLE = range(7)


@dataclass(frozen=True)
class LinkDirection:
    """One direction of a link. `table` holds (bytes of a descriptor, bytes per second), sizes ascending.

    `duplex_factor` is the share of its speed a direction keeps while the other works. `start_s` is paid once a copy.
    `burst` holds (bytes of a whole copy, factor on its descriptors' seconds), bytes ascending.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    table: tuple[tuple[float, float], ...] = ()
    duplex_factor: float = 1.0
    start_s: float = 0.0
    burst: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("latency_s", self.latency_s), ("start_s", self.start_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be a number of seconds, at least 0")
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise ValueError(f"bandwidth_bytes_per_s is {self.bandwidth_bytes_per_s}; it must be above 0")
        if not 0 < self.duplex_factor <= 1:
            raise ValueError(f"duplex_factor is {self.duplex_factor}; it must be in (0, 1]")
        for name, rows in (("table", self.table), ("burst", self.burst)):
            sizes = [size for size, _ in rows]
            if any(size <= 0 or rate <= 0 for size, rate in rows) or sizes != sorted(set(sizes)):
                raise ValueError(f"{name} has the sizes {sizes}; they must ascend, and sizes and rates be above 0")


@dataclass(frozen=True)
class Link:
    """Both directions of a link."""

    h2d: LinkDirection
    d2h: LinkDirection


def descriptor_seconds(direction: LinkDirection, bytes_per_descriptor: float) -> float:
    """One descriptor, the other direction quiet."""
    table = direction.table
    if not table:
        return direction.latency_s + bytes_per_descriptor / direction.bandwidth_bytes_per_s
    if bytes_per_descriptor <= table[0][0]:
        return table[0][0] / table[0][1]
    if bytes_per_descriptor >= table[-1][0]:
        return bytes_per_descriptor / table[-1][1]
    i = next(i for i, (size, _) in enumerate(table) if size > bytes_per_descriptor)
    return bytes_per_descriptor / _between(table[i - 1], table[i], bytes_per_descriptor)


def burst_factor(direction: LinkDirection, total_bytes: float) -> float:
    """What the seconds of a copy of `total_bytes` in all are multiplied by."""
    rows = direction.burst
    if not rows or total_bytes <= rows[0][0]:
        return rows[0][1] if rows else 1.0
    if total_bytes >= rows[-1][0]:
        return rows[-1][1]
    i = next(i for i, (size, _) in enumerate(rows) if size > total_bytes)
    return _between(rows[i - 1], rows[i], total_bytes)


def _between(low: tuple[float, float], high: tuple[float, float], size: float) -> float:
    """The straight line in log size and log value."""
    x = (math.log(size) - math.log(low[0])) / (math.log(high[0]) - math.log(low[0]))
    return math.exp(math.log(low[1]) + x * (math.log(high[1]) - math.log(low[1])))


def copy_seconds(
    direction: LinkDirection, n_descriptors: int, bytes_per_descriptor: float, busy_other_direction: bool = False
) -> float:
    """One copy of `n_descriptors` pieces of the same size; nothing to copy takes no time."""
    if n_descriptors == 0:
        return 0.0
    each = descriptor_seconds(direction, bytes_per_descriptor)
    each *= burst_factor(direction, n_descriptors * bytes_per_descriptor)
    seconds = direction.start_s + n_descriptors * each
    return seconds / direction.duplex_factor if busy_other_direction else seconds


def through_host(disk: LinkDirection, host: LinkDirection) -> LinkDirection:
    """A file moved by way of host memory, one leg after the other, as TensorRT-LLM's POSIX mode does it."""
    rate = 1.0 / (1.0 / disk.bandwidth_bytes_per_s + 1.0 / host.bandwidth_bytes_per_s)
    sizes = sorted({size for size, _ in (*disk.table, *host.table)})
    table = tuple((s, s / (descriptor_seconds(disk, s) + descriptor_seconds(host, s))) for s in sizes)
    duplex = min(disk.duplex_factor, host.duplex_factor)
    return LinkDirection(disk.latency_s + host.latency_s, rate, table, duplex, disk.start_s + host.start_s)


def side_by_side(direction: LinkDirection, submitters: int, limit_bytes_per_s: float) -> LinkDirection:
    """What `submitters` threads (or GPUs) reach together that each issue their own descriptors over this link: their
    costs pass side by side, their bandwidths add, until the device behind them (drives, PCIe) is full."""
    if submitters < 1:
        raise ValueError(f"submitters is {submitters}; it must be at least 1")
    if submitters == 1:
        return direction
    rate = min(submitters * direction.bandwidth_bytes_per_s, limit_bytes_per_s)
    table = tuple((size, min(submitters * measured, limit_bytes_per_s)) for size, measured in direction.table)
    return replace(direction, latency_s=direction.latency_s / submitters, bandwidth_bytes_per_s=rate, table=table)


def link_params(direction: LinkDirection) -> LinkParams:
    """The direction as `copy_seconds_c` reads it."""
    head = [
        direction.latency_s,
        direction.bandwidth_bytes_per_s,
        direction.duplex_factor,
        direction.start_s,
        len(direction.table),
        len(direction.burst),
    ]
    columns = [[math.log(row[i]) for row in rows] for rows in (direction.table, direction.burst) for i in (0, 1)]
    return np.array(sum(columns, head), np.float64)


@loop
def log_interpolated(params: LinkParams, first: int, rows: int, log_size: float) -> float:
    """The log value at `log_size` of `rows` rows whose log sizes begin at `first`; outside, that of the nearest row."""
    last = first + rows - 1
    if log_size <= params[first]:
        return float(params[first + rows])
    if log_size >= params[last]:
        return float(params[last + rows])
    i = first + 1
    while params[i] <= log_size:
        i += 1
    x = (log_size - params[i - 1]) / (params[i] - params[i - 1])
    return float(params[i - 1 + rows] + x * (params[i + rows] - params[i - 1 + rows]))


@loop
def burst_factor_c(params: LinkParams, total_bytes: float) -> float:
    """`burst_factor` over the flat form."""
    rows = int(params[BURST_ROWS])
    if rows == 0:
        return 1.0
    first = TABLE + 2 * int(params[TABLE_ROWS])
    return math.exp(log_interpolated(params, first, rows, math.log(max(float(total_bytes), 1.0))))


@loop
def copy_seconds_c(params: LinkParams, n_blocks: int, descriptors_per_block: int, bytes_per_descriptor: float) -> float:
    """`copy_seconds` with the other direction quiet (params[DUPLEX] is the factor to divide by where it is not)."""
    n_descriptors = n_blocks * descriptors_per_block
    if n_descriptors == 0:
        return 0.0
    rows = int(params[TABLE_ROWS])
    size = float(bytes_per_descriptor)
    if rows == 0:
        each = params[LATENCY_S] + size / params[BANDWIDTH]
    else:
        log_size = max(math.log(max(size, 1.0)), params[TABLE])
        each = math.exp(log_size - log_interpolated(params, TABLE, rows, log_size))
    each *= burst_factor_c(params, n_descriptors * size)
    return float(params[START_S] + n_descriptors * each)
