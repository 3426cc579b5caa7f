"""Turns the engine's commands into programs for the streams of a device: who copies what, who waits for whom.

It decides no copy. Onboard (with copies inside the GPU), offload, disk write and disk read have a stream each, as in
the simulator; see `hw.ordering` for the waits. Programs of several steps may be gathered and run at once: the waits
between the steps are in them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.device import COMPUTE, DISK_IN, DISK_OUT, OFFLOAD, ONBOARD, STREAMS, Device, Ran
from hw.memory import DISK, GPU, HOST
from hw.ordering import COPIES_AFTER_KERNELS, KERNELS_AFTER_COPIES, RULES, Entry, Event, Hazards
from hw.program import CHECK, COLUMNS, COPY, DELAY, STAMP, WAIT, Program
from hw.program import DISK_READ as ROW_DISK_READ
from hw.program import DISK_WRITE as ROW_DISK_WRITE
from hw.stamps import Stamps
from kvcache import tables

ROUTES = {
    tables.OFFLOAD: (OFFLOAD, GPU, HOST, COPY),
    tables.ONBOARD: (ONBOARD, HOST, GPU, COPY),
    tables.DISK_WRITE: (DISK_OUT, HOST, DISK, ROW_DISK_WRITE),
    tables.DISK_READ: (DISK_IN, DISK, GPU, ROW_DISK_READ),
    tables.INTRA_COPY: (ONBOARD, GPU, GPU, COPY),
}
"""Stream, source tier, destination tier, operation, by kind of copy."""

KINDS = ("offload", "onboard", "disk write", "disk read", "copy inside the GPU")


class Mover:
    """Gathers rows for the streams of `device` and runs them. `check`: compare each destination after its copy."""

    def __init__(self, device: Device, stamps: Stamps, *, check: bool, rules: frozenset[str] = RULES) -> None:
        self.device, self.stamps, self.check = device, stamps, check
        self.log: list[list[Entry]] = [[] for _ in STREAMS]
        self.keep_log = False
        self._rules, self._hazards = rules, Hazards(rules)
        self._rows: list[list[list[int]]] = [[] for _ in STREAMS]
        self._issued = [device.done(stream) for stream in range(len(STREAMS))]
        self._kernels = 0  # ticket of the last compute row
        self._waited: list[dict[int, int]] = [{} for _ in STREAMS]
        self._checked: list[tuple[int, int, str]] = []  # place, pool, what: by ORIGIN of CHECK rows
        self.checks = 0  # comparisons of the last run

    def copies(self, commands: NDArray[Any], *, gate: bool = False, delays_ns: Sequence[int] = ()) -> None:
        """Add one step's copies, in order. `gate`: their streams start together, so that a span means something."""
        used = sorted({ROUTES[int(kind)][0] for kind in np.unique(commands[:, 0])})
        for stream in used:
            if COPIES_AFTER_KERNELS in self._rules and self._kernels:
                self._wait(stream, Event(COMPUTE, self._kernels))
        if gate and len(used) > 1:
            marks = [self._add(stream, [DELAY, 0, 0, 0, 0, 0, 0, -1], Entry()) for stream in used]
            for stream in used:
                for mark in marks:
                    self._wait(stream, mark)
        for i, (kind, window, source, target, tokens, _) in enumerate(commands.tolist()):
            self._copy(i, kind, window, source, target, tokens, delays_ns[i] if delays_ns else 0)

    def _copy(self, i: int, kind: int, window: int, source: int, target: int, tokens: int, delay_ns: int) -> None:
        stream, up, down, op = ROUTES[kind]
        layout, stamps = self.device.layout, self.stamps
        here, there = layout.place(window, up, source), layout.place(window, down, target)
        for event in self._hazards.before(here, there):
            self._wait(stream, event)
        if delay_ns:
            self._add(stream, [DELAY, 0, 0, 0, 0, delay_ns, 0, -1], Entry())
        stamps.copy(here, there, tokens)
        what = f"{KINDS[kind]} of {layout.name(here)} to {layout.name(there)}" if self.check or self.keep_log else ""
        pairs = list(zip(layout.parts[window, up], layout.parts[window, down], strict=True))
        last = Event(stream, 0)
        for a, b in pairs:
            whole = op != COPY  # files are read and written in whole rows
            size = layout.rows[a].stride if whole else layout.part_bytes(a, tokens)
            last = self._add(stream, [op, a, source, b, target, size, 0, i], Entry((here,), (there,), None, what))
        if self.check and stamps.tokens[there] >= 0:
            for _, b in pairs:
                self._checked.append((there, b, what))
                size = layout.part_bytes(b, int(stamps.tokens[there]))
                row = [CHECK, b, target, 0, 0, size, stamps.seed(there), len(self._checked) - 1]
                last = self._add(stream, row, Entry((there,), (), None, f"check after {what}"))
        self._hazards.after(here, there, last)

    def kernels(self, writes: Sequence[tuple[int, int, int]], reads: Sequence[int] = (), seconds: float = 0.0) -> None:
        """Add one step's computing: it waits for all copies and fills the (window, GPU slot, key node)s it computes."""
        if KERNELS_AFTER_COPIES in self._rules:
            for stream in (OFFLOAD, ONBOARD, DISK_OUT, DISK_IN):
                if self._issued[stream]:
                    self._wait(COMPUTE, Event(stream, self._issued[stream]))
        self._hazards.clear()
        layout = self.device.layout
        if reads:
            self._kernels = self._add(
                COMPUTE, [DELAY, 0, 0, 0, 0, 0, 0, -1], Entry(tuple(reads), what="kernels")
            ).ticket
        for window, slot, node in writes:
            place = layout.place(window, GPU, slot)
            seed = self.stamps.compute(place, node)
            what = f"kernels writing {layout.name(place)}" if self.keep_log else ""
            for pool in layout.parts[window, GPU]:
                row = [STAMP, pool, slot, 0, 0, layout.rows[pool].size, seed, -1]
                self._kernels = self._add(COMPUTE, row, Entry((), (place,), None, what)).ticket
        if seconds > 0:
            row = [DELAY, 0, 0, 0, 0, int(seconds * 1e9), 0, -1]
            self._kernels = self._add(COMPUTE, row, Entry()).ticket

    def _wait(self, stream: int, event: Event) -> None:
        if event.stream == stream or self._waited[stream].get(event.stream, 0) >= event.ticket:
            return
        self._waited[stream][event.stream] = event.ticket
        self._add(stream, [WAIT, event.stream, event.ticket, 0, 0, 0, 0, -1], Entry(waits=event))

    def _add(self, stream: int, row: list[int], entry: Entry) -> Event:
        self._rows[stream].append(row)
        self._issued[stream] += 1
        if self.keep_log:
            self.log[stream].append(entry)
        return Event(stream, self._issued[stream])

    def run(self) -> Mapping[int, tuple[Program, Ran]]:
        """Run what was gathered and wait for it; wrong bytes are an error that names the block."""
        programs = {
            stream: np.array(rows, np.int64).reshape(-1, COLUMNS) for stream, rows in enumerate(self._rows) if rows
        }
        checked, self._checked = self._checked, []
        self._rows = [[] for _ in STREAMS]
        try:
            ran = self.device.run(programs) if programs else {}
        except BaseException:
            self._start_over()
            raise
        for stream, program in programs.items():
            for row in np.flatnonzero((program[:, 0] == CHECK) & (ran[stream].found >= 0))[:1]:
                place, pool, what = checked[int(program[row, 7])]
                raise self.stamps.wrong(place, pool, int(ran[stream].found[row]), what)
        self.checks = len(checked)
        return {stream: (programs[stream], ran[stream]) for stream in programs}

    def _start_over(self) -> None:
        """After a failure: streams work again, nothing is pending. What places hold is for the caller to find out."""
        self.device.recover()
        self._issued = [self.device.done(stream) for stream in range(len(STREAMS))]
        self._kernels = min(self._kernels, self._issued[COMPUTE])
        self._waited = [{} for _ in STREAMS]
        self._hazards.clear()
