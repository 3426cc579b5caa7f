"""What a stream is told to do: rows of integers, worked off in order by compiled code that does not hold Python's lock.

A device reads the same rows whatever it is made of; here is the loop for host memory. It decides nothing. Rows:

    COPY    row A -> row B, BYTES                      STAMP   write the pattern of SEED into row A
    WAIT    until stream A has done B rows in all      CHECK   compare row A with the pattern of SEED
    DELAY   BYTES nanoseconds                          DISK_*  row A -> row B, one of them in a file; not done here

Every row counts: a stream's n-th row is its ticket n, so "wait for stream a, ticket n" is an event that was recorded
after that row. Rows are addressed as (pool, slot); `base` and `stride` say where pools lie.
"""

import os
import time
from typing import Any

import numpy as np
from numba import config, njit, types
from numpy.typing import NDArray

Program = NDArray[np.int64]

COPY, WAIT, STAMP, CHECK, DELAY, DISK_WRITE, DISK_READ = range(7)
NAMES = ("copy", "wait", "stamp", "check", "delay", "disk write", "disk read")
OP, POOL_A, SLOT_A, POOL_B, SLOT_B, BYTES, SEED, ORIGIN = range(8)
COLUMNS = 8
"""ORIGIN: the number of the command the row was made from, -1 for none."""

FAILED = 0
"""Entry of `flags`: a stream has failed, and waiting for it would never end."""

PATTERN = 0x9E3779B97F4A7C15 - (1 << 64)  # odd: word i of a stamp is seed + i * PATTERN, wrapping

_JIT = not getattr(config, "DISABLE_JIT", 0)
if _JIT:
    _word, _int = types.uintp, types.int32
    from numba.core.typing import templates

    signature: Any = templates.signature

    _memcpy: Any = types.ExternalFunction("memcpy", signature(_word, _word, _word, _word))
    _yield: Any = types.ExternalFunction("sched_yield", signature(_int))
    _clock: Any = types.ExternalFunction("clock_gettime", signature(_int, _int, _word))
    _lock: Any = types.ExternalFunction("pthread_mutex_lock", signature(_int, _word))
    _unlock: Any = types.ExternalFunction("pthread_mutex_unlock", signature(_int, _word))
else:  # the same loops as ordinary Python
    import ctypes

    def _memcpy(target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def _yield() -> None:
        os.sched_yield()

    def _clock(kind: int, address: int) -> None:
        ns = time.clock_gettime_ns(kind)
        ctypes.memmove(address, np.array([ns // 1_000_000_000, ns % 1_000_000_000], np.int64).ctypes.data, 16)

    def _lock(address: int) -> None:
        """Python's own lock orders memory already."""

    _unlock = _lock

MONOTONIC, THREAD_CPU = 1, 3
START, END, RAN = range(3)
"""Columns of times, ns: start and end on the clock, and how long the thread ran in between (copies and stamps)."""
MUTEX_BYTES = 128


@njit(nogil=True, cache=True)
def _now(kind: int, scratch: Any, address: int) -> int:
    _clock(kind, address)
    return int(scratch[0] * 1_000_000_000 + scratch[1])


@njit(nogil=True, cache=True)
def reached(done: Any, mutexes: int, stream: int) -> int:
    """Rows that `stream` has done. The lock makes everything visible that those rows wrote, on any processor."""
    _lock(mutexes + stream * MUTEX_BYTES)
    count = done[stream]
    _unlock(mutexes + stream * MUTEX_BYTES)
    return int(count)


@njit(nogil=True, cache=True)
def publish(done: Any, mutexes: int, stream: int) -> None:
    """One more row of `stream` is done."""
    _lock(mutexes + stream * MUTEX_BYTES)
    done[stream] += 1
    _unlock(mutexes + stream * MUTEX_BYTES)


@njit(nogil=True, cache=True)
def fill(words: Any, seed: int) -> None:
    """Write the pattern of `seed`."""
    value = np.int64(seed)
    for i in range(len(words)):
        words[i] = value
        value += np.int64(PATTERN)


@njit(nogil=True, cache=True)
def first_wrong(words: Any, seed: int) -> int:
    """The first byte of a word that does not follow the pattern of `seed`, -1 if all do."""
    value, wrong = np.int64(seed), np.int64(0)
    for i in range(len(words)):
        wrong |= words[i] ^ value
        value += np.int64(PATTERN)
    if wrong == 0:
        return -1
    value = np.int64(seed)
    for i in range(len(words)):
        if words[i] != value:
            return 8 * i
        value += np.int64(PATTERN)
    return -1


@njit(nogil=True, cache=True)
def run_rows(
    program: Any,
    words: Any,
    memory: int,
    base: Any,
    stride: Any,
    done: Any,
    mutexes: int,
    flags: Any,
    me: int,
    scratch: Any,
    clock: int,
    times: Any,
    found: Any,
) -> bool:
    """Work off `program` on stream `me`; its times go to `times`, what a CHECK found to `found`.

    `words` is the whole memory, which begins at address `memory`; pools lie `base` bytes into it. False: given up
    because a stream has failed.
    """
    for i in range(len(program)):
        op, size = program[i, OP], program[i, BYTES]
        a = base[program[i, POOL_A]] + program[i, SLOT_A] * stride[program[i, POOL_A]]
        times[i, START] = _now(MONOTONIC, scratch, clock)
        if op == COPY:
            b = base[program[i, POOL_B]] + program[i, SLOT_B] * stride[program[i, POOL_B]]
            before = _now(THREAD_CPU, scratch, clock)
            _memcpy(memory + b, memory + a, size)
            times[i, RAN] = _now(THREAD_CPU, scratch, clock) - before
        elif op == WAIT:
            while reached(done, mutexes, program[i, POOL_A]) < program[i, SLOT_A]:
                if flags[FAILED]:
                    return False
                _yield()
        elif op == STAMP:
            before = _now(THREAD_CPU, scratch, clock)
            fill(words[a // 8 : (a + size) // 8], program[i, SEED])
            times[i, RAN] = _now(THREAD_CPU, scratch, clock) - before
        elif op == CHECK:
            found[i] = first_wrong(words[a // 8 : (a + size) // 8], program[i, SEED])
        elif op == DELAY:
            while _now(MONOTONIC, scratch, clock) < times[i, START] + size:
                _yield()
        times[i, END] = _now(MONOTONIC, scratch, clock)
        publish(done, mutexes, me)
    return True


def independent(program: Program, first: int) -> int:
    """End of the run of COPY rows from `first` on that may be done in any order: none touches what another one writes."""
    read: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    for i in range(first, len(program)):
        row = program[i]
        source, target = (int(row[POOL_A]), int(row[SLOT_A])), (int(row[POOL_B]), int(row[SLOT_B]))
        if row[OP] != COPY or source in written or target in written or target in read:
            return i
        read.add(source)
        written.add(target)
    return len(program)


@njit(nogil=True, cache=True)
def gather_rows(
    program: Any, memory: int, base: Any, stride: Any, staging: int, room: int, scratch: Any, clock: int, times: Any
) -> None:
    """Work off `independent` copies by way of `staging` (an address with `room` bytes, the largest row at least): sources
    are brought together there, then go to their destinations; rows that lie side by side in memory are one memcpy. Each
    row's time is its share by bytes.
    """
    n = len(program)
    begun, before = _now(MONOTONIC, scratch, clock), _now(THREAD_CPU, scratch, clock)
    first, total = 0, 0
    while first < n:
        last, size = first + 1, program[first, BYTES]
        while last < n and size + program[last, BYTES] <= room:
            size += program[last, BYTES]
            last += 1
        for pool, slot in ((POOL_A, SLOT_A), (POOL_B, SLOT_B)):
            i, there = first, staging
            while i < last:
                at = base[program[i, pool]] + program[i, slot] * stride[program[i, pool]]
                length, j = program[i, BYTES], i + 1
                while j < last and base[program[j, pool]] + program[j, slot] * stride[program[j, pool]] == at + length:
                    length += program[j, BYTES]
                    j += 1
                if pool == POOL_A:
                    _memcpy(there, memory + at, length)
                else:
                    _memcpy(memory + at, there, length)
                i, there = j, there + length
        first, total = last, total + size
    ran = _now(THREAD_CPU, scratch, clock) - before
    took = _now(MONOTONIC, scratch, clock) - begun
    done = 0.0
    for i in range(n):
        share = program[i, BYTES] / total
        times[i, START], times[i, END] = begun + int(took * done), begun + int(took * (done + share))
        times[i, RAN] = int(ran * share)
        done += share
