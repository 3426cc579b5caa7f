"""One run of a CUDA device: rows go to the streams in an order that lets every wait find its event.

It decides no order of its own beyond that: a row that waits for a ticket not issued yet lets the other streams go first. Copies
are timed by events around each run of copies that no wait interrupts; a row's time is its run's, divided by bytes.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.device import DISK_IN, DISK_OUT, STREAMS, Ran
from hw.memory import TIERS
from hw.program import (
    BYTES,
    CHECK,
    COPY,
    DELAY,
    DISK_READ,
    DISK_WRITE,
    END,
    OP,
    POOL_A,
    POOL_B,
    SEED,
    SLOT_A,
    SLOT_B,
    STAMP,
    START,
    WAIT,
    Program,
    independent,
)

if TYPE_CHECKING:
    from hw.cuda import CudaDevice


class Issue:
    """One `run`: rows go to the streams in an order that lets every wait find its event."""

    def __init__(self, device: "CudaDevice", programs: Mapping[int, Program]) -> None:
        self.device, self.programs = device, programs
        self.first = {stream: device.done(stream) for stream in range(len(STREAMS))}
        self._at = dict.fromkeys(programs, 0)
        self._wanted = {
            (int(row[POOL_A]), int(row[SLOT_A])) for rows in programs.values() for row in rows[rows[:, OP] == WAIT]
        }
        self._events: dict[tuple[int, int], Any] = {}
        self._spans: list[tuple[int, list[int], Any, Any]] = []  # stream, rows, event before and behind
        self._answers: list[tuple[int, int, Callable[[], bool]]] = []
        self._times = {stream: np.full((len(rows), 2), np.nan) for stream, rows in programs.items()}
        self._clock = 0.0

    def all(self) -> None:
        """Start together: every stream waits for one event, which is also where times are counted from."""
        r, d = self.device.runtime, self.device
        self._zero = r.event()
        lead = next(iter(self.programs))
        for stream in self.programs:
            r.synchronize(d.streams[stream])
        r.record(self._zero, d.streams[lead])
        for stream in self.programs:
            r.wait(d.streams[stream], self._zero)
        r.synchronize(d.streams[lead])
        self._clock = time.perf_counter()
        # files block this thread, so the other streams get their work first
        order = sorted(self.programs, key=lambda stream: stream in {DISK_OUT, DISK_IN})
        moved = True
        while moved:
            went = [self._advance(stream) for stream in order]
            moved = any(went)
        stuck = [STREAMS[s] for s in self.programs if self._at[s] < len(self.programs[s])]
        if stuck:
            raise ValueError(f"these streams wait for what never comes: {', '.join(stuck)}")
        for stream in self.programs:
            r.synchronize(d.streams[stream])

    def _advance(self, stream: int) -> bool:
        """Issue rows of one stream as far as possible; False: none."""
        program, begun = self.programs[stream], self._at[stream]
        while self._at[stream] < len(program):
            row = program[self._at[stream]]
            if row[OP] == WAIT and not self._ready(int(row[POOL_A]), int(row[SLOT_A])):
                break
            if row[OP] == COPY:
                self._copies(stream)
            elif row[OP] == STAMP:
                self._stamps(stream)
            else:
                self._other(stream, row)
                self._issued(stream, 1)
        return self._at[stream] > begun

    def _ready(self, stream: int, ticket: int) -> bool:
        return ticket <= self.first[stream] + self._at.get(stream, 0)

    def _issued(self, stream: int, rows: int) -> None:
        """Record the events that somebody will wait for."""
        r = self.device.runtime
        for _ in range(rows):
            self._at[stream] += 1
            key = (stream, self.first[stream] + self._at[stream])
            if key in self._wanted:
                self._events[key] = r.event()
                r.record(self._events[key], self.device.streams[stream])

    def _copies(self, stream: int) -> None:
        """The run of copies that begins here: they may go in any order, and it ends behind a row that somebody waits for."""
        program, at, d = self.programs[stream], self._at[stream], self.device
        moves, last = [], self._before_wanted(stream, independent(program, at))
        for i in range(at, last):
            row, size = program[i], int(program[i, BYTES])
            source = d.row(int(row[POOL_A]), int(row[SLOT_A]))
            target = d.row(int(row[POOL_B]), int(row[SLOT_B]))
            moves.append((target[:size], source[:size]))
            ends = f"{self._tier(row[POOL_A])} to {self._tier(row[POOL_B])}"
            d.report.count(f"{ends}: {d.strategy}", size)
        d.runtime.strategy = d.strategy
        self._timed(stream, last, lambda mine: d.runtime.copy(moves, mine))

    def _stamps(self, stream: int) -> None:
        """The run of stamps that begins here."""
        program, at, d = self.programs[stream], self._at[stream], self.device
        last = at
        while last < len(program) and program[last, OP] == STAMP:
            last += 1
        last = self._before_wanted(stream, last)
        rows = [(d.row(int(r[POOL_A]), int(r[SLOT_A]))[: int(r[BYTES])], int(r[SEED])) for r in program[at:last]]

        def stamp(mine: Any) -> None:
            for row, seed in rows:
                d.runtime.stamp(row, seed, mine)

        self._timed(stream, last, stamp)

    def _before_wanted(self, stream: int, last: int) -> int:
        """`last`, or the end of the first row before it that somebody waits for."""
        at, first = self._at[stream], self.first[stream]
        return next((end for end in range(at + 1, last) if (stream, first + end) in self._wanted), last)

    def _timed(self, stream: int, last: int, work: Callable[[Any], None]) -> None:
        """Issue `work`, which is the rows up to `last`, between two events."""
        r, mine, rows = self.device.runtime, self.device.streams[stream], list(range(self._at[stream], last))
        before, behind = r.event(), r.event()
        r.record(before, mine)
        work(mine)
        r.record(behind, mine)
        self._spans.append((stream, rows, before, behind))
        self._issued(stream, len(rows))

    def _tier(self, pool: int) -> str:
        return TIERS[self.device.layout.rows[int(pool)].tier]

    def _other(self, stream: int, row: Any) -> None:
        d, r, op = self.device, self.device.runtime, int(row[OP])
        mine = d.streams[stream]
        if op == WAIT:
            event = self._events.get((int(row[POOL_A]), int(row[SLOT_A])))
            if event is not None:  # else it was done before this run
                r.wait(mine, event)
        elif op == CHECK:
            self._check(stream, row)
        elif op == DELAY:
            self._delay(stream, int(row[BYTES]))
        elif op in {DISK_WRITE, DISK_READ}:
            self._file(stream, row, op)

    def _delay(self, stream: int, ns: int) -> None:
        r, mine, at = self.device.runtime, self.device.streams[stream], self._at[stream]
        before, behind = r.event(), r.event()
        r.record(before, mine)
        if ns:
            r.compute(ns * 1e-9, mine)
        r.record(behind, mine)
        self._spans.append((stream, [at], before, behind))

    def _check(self, stream: int, row: Any) -> None:
        d, pool, slot, at = self.device, int(row[POOL_A]), int(row[SLOT_A]), self._at[stream]
        size, seed = int(row[BYTES]), int(row[SEED])
        if pool in d.files:
            d.runtime.synchronize(d.streams[stream])
            wrong = d.first_wrong(pool, slot, seed, size) >= 0
            self._answers.append((stream, at, lambda: wrong))
        else:
            answer = d.runtime.compare(d.row(pool, slot)[:size], seed, d.streams[stream])
            self._answers.append((stream, at, answer))

    def _file(self, stream: int, row: Any, op: int) -> None:
        """One row to or from a file: everything the stream waits for is over first."""
        d, r, at = self.device, self.device.runtime, self._at[stream]
        a, b = (int(row[POOL_A]), int(row[SLOT_A])), (int(row[POOL_B]), int(row[SLOT_B]))
        r.synchronize(d.streams[stream])
        self._times[stream][at, START] = time.perf_counter() - self._clock
        size = d.layout.rows[a[0]].stride
        if op == DISK_WRITE:
            d.files[b[0]].write(b[1], r.bytes_of(d.row(*a)))
            path = "O_DIRECT" if d.files[b[0]].direct else "buffered file"
        elif d.gpu_files[a[0]] is not None:
            path = d.gpu_files[a[0]].read(a[1], d.row(*b))
        else:
            d.files[a[0]].read(a[1], r.bytes_of(d.bounce[0])[:size])
            r.copy([(d.row(*b), d.bounce[0][:size])], d.streams[stream])
            r.synchronize(d.streams[stream])
            path = ("O_DIRECT" if d.files[a[0]].direct else "buffered file") + ", pinned memory, copy"
        self._times[stream][at, END] = time.perf_counter() - self._clock
        d.report.count(f"{self._tier(a[0])} to {self._tier(b[0])}: {path}", int(row[BYTES]))

    def results(self) -> dict[int, Ran]:
        """Times and findings, now that everything is over."""
        r, d = self.device.runtime, self.device
        spent = {stream: times[:, END] - times[:, START] for stream, times in self._times.items()}
        for stream, rows, before, behind in self._spans:
            begun, ended = r.seconds(self._zero, before), r.seconds(self._zero, behind)
            size = self.programs[stream][rows, BYTES].astype(float)
            edges = begun + (ended - begun) * np.concatenate([[0.0], np.cumsum(size) / max(1.0, size.sum())])
            self._times[stream][rows, START], self._times[stream][rows, END] = edges[:-1], edges[1:]
            spent[stream][rows] = np.diff(edges)
        found = {stream: np.full(len(rows), -1, np.int64) for stream, rows in self.programs.items()}
        for stream, at, differs in self._answers:
            if differs():
                row = self.programs[stream][at]
                byte = d.first_wrong(int(row[POOL_A]), int(row[SLOT_A]), int(row[SEED]), int(row[BYTES]))
                found[stream][at] = max(0, byte)  # 0: it was wrong then and is overwritten now
        return {stream: Ran(self._times[stream], spent[stream], found[stream]) for stream in self.programs}
