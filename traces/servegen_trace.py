"""Reads one client's window file of ServeGen (`chunk-N-trace.csv`): rates and burstiness, from which arrivals are drawn.

The file holds neither requests nor lengths: arrivals come from the fitted family, always the same ones (seed 0), and
lengths from `--default-prompt` and `--default-output`. Clients together, their length statistics and other seeds are
`kvtier trace generate servegen`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.lengths import NOTE, cells_of
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.servegen import PATTERNS, WINDOW_S, Window, times_in
from traces.source import Source

MOST_PER_S = 10_000.0
SHAPES = (0.02, 1000.0)  # ServeGen's fits lie well inside
SERVEGEN = Convention(time_unit="s", block_tokens=1, ids_are_blocks=False)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether the cells of the first line look like a window."""
    others = [name for name in row if name not in {*PATTERNS, ""}]
    return len(others) < len(row) <= 6 and all(isinstance(fields.as_number(name), int | float) for name in others)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """One client's windows."""
    if options.default_prompt is None or options.default_output is None:
        raise source.error(
            "ServeGen's windows hold rates, not lengths: give --default-prompt N and --default-output N, or make "
            "requests of all clients with `kvtier trace generate servegen`"
        )
    rng = np.random.default_rng(0)

    def rows(text: str, place: Place, to: Collector) -> Iterator[Row]:
        start, window = _window(cells_of(text), place)
        drawn = times_in(rng, window, window.per_s) if window.per_s > 0 else np.empty(0)
        for second in drawn.tolist():
            yield Row(options.default_prompt or 1, options.default_output or 0, start + second)

    trace = collected(source, options, SERVEGEN, rows, source.lines())
    trace.collector.notes.append(f"{source.name}: {NOTE}")
    trace.collector.repaired(f"arrivals are drawn from the rates of {WINDOW_S:g} s windows, seed 0")
    return trace


def _window(cells: list[str], place: Place) -> tuple[float, Window]:
    if len(cells) != 6:
        raise place.error(f"{len(cells)} columns; a window has 6: start, rate, variation, family, shape, scale; {SKIP}")
    numbers = {name: fields.as_number(cells[at].strip()) for name, at in (("start", 0), ("rate", 1), ("shape", 4))}
    start, rate, shape = (fields.number(numbers, (name,), place) or 0 for name in numbers)
    if rate > MOST_PER_S:
        raise place.error(f"rate is {shown(rate)}; it must be at most {MOST_PER_S:g} requests a second; {SKIP}")
    if rate > 0 and (cells[3] not in PATTERNS or not SHAPES[0] <= shape <= SHAPES[1]):
        raise place.error(
            f"family is {shown(cells[3])}, shape {shown(shape)}; known are {' and '.join(PATTERNS)} with shapes from "
            f"{SHAPES[0]:g} to {SHAPES[1]:g}; {SKIP}"
        )
    return float(start), Window(float(rate), cells[3], float(shape))
