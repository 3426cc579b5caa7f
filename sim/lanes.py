"""Seconds that a step's copies take on their lanes before the kernels may start: TensorRT-LLM's transfer streams.

It decides no copy. Onboard (with copies inside the GPU), offload, disk write and disk read are lanes of their own that run
side by side; a lane works its copies off in order. Offload and onboard slow each other on the link's two directions, and
disk reads take their part of the onboards' direction; disk writes leave from host memory and do not pass it.

As in `KVCacheTransferManager`, a copy also waits for the last pending write of its source place and for pending reads and
writes of its destination place; all of them start after the kernels of the step before and end before the kernels of this
step (`syncTransferManagerWithBufferManager`, `syncTransfers`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import loop
from kvcache.tables import (
    C_TOKENS_PER_BLOCK,
    DISK_READ,
    DISK_WRITE,
    INTRA_COPY,
    N_COPIES,
    OFFLOAD,
    ONBOARD,
    Array,
    State,
)
from sim.transfer import DUPLEX, LinkParams, burst_factor_c

LANE_OFFLOAD, LANE_ONBOARD, LANE_DISK_WRITE, LANE_DISK_READ = range(4)
LANES = 4
WHOLE_S, START_S, TOKEN_S = range(3)


class Lanes(NamedTuple):
    """Copy costs and the times at which places become free, of one worker."""

    cost: Array  # float64[kind, window, 3]: seconds of a whole block; of a partial copy: fixed, per token
    down: LinkParams  # the host link away from the GPU
    up: LinkParams  # towards it
    block_bytes: Array  # float64[window]
    duplex: Array  # float64[2]: share of its speed the offload, onboard lane keeps while the other one works
    disk_share: Array  # float64[window]: of the link towards the GPU, what a disk read takes while it lasts, 0 to 1
    base: Array  # int64[window, level]: first place of a tier in the two arrays below
    read_s: Array  # float64[place]: when the last pending read ends, counted from the start of the step's copies
    write_s: Array  # float64[place]
    end_s: Array  # float64[LANES]
    work_s: Array  # float64[LANES]: time each lane has worked in all (never reset)


def make_lanes(
    state: State,
    cost: NDArray[np.float64],
    offload: LinkParams,
    onboard: LinkParams,
    block_bytes: Sequence[float],
    disk_share: Sequence[float] = (),
) -> Lanes:
    """Lanes over the places of `state`'s tiers; `cost` as in `Lanes`, `block_bytes` and `disk_share` by window (none: 0)."""
    sizes = state.tier[:, :, 0].astype(np.int64)
    base = np.concatenate([[0], np.cumsum(sizes.reshape(-1))[:-1]]).reshape(sizes.shape)
    places = int(sizes.sum())
    return Lanes(
        cost=cost,
        down=offload,
        up=onboard,
        block_bytes=np.array(block_bytes, np.float64),
        duplex=np.array([offload[DUPLEX], onboard[DUPLEX]]),
        disk_share=np.array(disk_share or [0.0] * len(block_bytes), np.float64),
        base=base,
        read_s=np.zeros(places),
        write_s=np.zeros(places),
        end_s=np.zeros(LANES),
        work_s=np.zeros(LANES),
    )


@loop
def _seconds(lanes: Lanes, kind: int, w: int, tokens: int) -> float:
    if tokens == 0:
        return float(lanes.cost[kind, w, WHOLE_S])
    return float(lanes.cost[kind, w, START_S] + tokens * lanes.cost[kind, w, TOKEN_S])


@loop
def _lane(kind: int) -> int:
    return LANE_ONBOARD if kind == INTRA_COPY else kind


@loop
def _slowdown(lanes: Lanes, s: State, lane: int) -> float:
    """How much longer a copy of the offload or onboard lane takes because the other one works too.

    The shorter lane shares the link all the time; the longer one only as long as the shorter one works.
    """
    total = lanes.end_s
    for at in range(LANES):
        total[at] = 0.0
    for i in range(s.tally[N_COPIES]):
        kind = s.copies[i, 0]
        if kind != INTRA_COPY and kind <= ONBOARD:
            total[kind] += _seconds(lanes, int(kind), int(s.copies[i, 1]), int(s.copies[i, 4]))
    mine, other = total[lane], total[1 - lane]
    if mine <= 0.0 or other <= 0.0:
        return 1.0
    share = lanes.duplex[lane]
    if mine <= other:
        return float(1.0 / share)
    shared = other / lanes.duplex[1 - lane]  # the time both work
    return float((shared + max(0.0, mine - shared * share)) / mine)


@loop
def _crowded(lanes: Lanes, s: State) -> float:
    """How much longer the onboards take because disk reads come to the GPU over the same link.

    The drives set the pace of a read, which takes its share of the link while it lasts; the onboards have the rest.
    """
    mine, theirs, taken = 0.0, 0.0, 0.0
    for i in range(s.tally[N_COPIES]):
        kind, w = int(s.copies[i, 0]), int(s.copies[i, 1])
        seconds = _seconds(lanes, kind, w, int(s.copies[i, 4]))
        if kind == ONBOARD:
            mine += seconds
        elif kind == DISK_READ:
            theirs += seconds
            taken += seconds * lanes.disk_share[w]
    if mine <= 0.0 or taken <= 0.0:
        return 1.0
    left = 1.0 - taken / theirs
    if mine <= left * theirs:
        return float(1.0 / left)
    return float((mine + taken) / mine)


@loop
def _burst(lanes: Lanes, s: State, lane: int) -> float:
    """How much longer the offload or onboard lane's copies take because there are so many bytes of them in this step."""
    total = 0.0
    for i in range(s.tally[N_COPIES]):
        if s.copies[i, 0] == lane:
            tokens = s.copies[i, 4]
            share = tokens / s.conf[C_TOKENS_PER_BLOCK] if tokens > 0 else 1.0
            total += lanes.block_bytes[s.copies[i, 1]] * share
    if lane == OFFLOAD:
        return float(burst_factor_c(lanes.down, total))
    return float(burst_factor_c(lanes.up, total))


@loop
def copies_seconds(s: State, lanes: Lanes) -> float:
    """Seconds until the last of the step's copies ends; the copies are taken off the state's list."""
    n = int(s.tally[N_COPIES])
    if n == 0:
        return 0.0
    slow_down = _slowdown(lanes, s, OFFLOAD) * _burst(lanes, s, OFFLOAD)
    slow_up = _slowdown(lanes, s, ONBOARD) * _burst(lanes, s, ONBOARD) * _crowded(lanes, s)
    for at in range(LANES):
        lanes.end_s[at] = 0.0
    for i in range(n):
        kind, w, tokens = int(s.copies[i, 0]), int(s.copies[i, 1]), int(s.copies[i, 4])
        source, target = _places(lanes, kind, w, int(s.copies[i, 2]), int(s.copies[i, 3]))
        seconds = _seconds(lanes, kind, w, tokens)
        if kind == OFFLOAD:
            seconds *= slow_down
        elif kind == ONBOARD:
            seconds *= slow_up
        lane = _lane(kind)
        start = max(lanes.end_s[lane], lanes.write_s[source], lanes.read_s[target], lanes.write_s[target])
        end = start + seconds
        lanes.end_s[lane] = end
        lanes.work_s[lane] += seconds
        lanes.read_s[source] = max(lanes.read_s[source], end)
        lanes.write_s[target] = end
    for i in range(n):
        kind, w = int(s.copies[i, 0]), int(s.copies[i, 1])
        source, target = _places(lanes, kind, w, int(s.copies[i, 2]), int(s.copies[i, 3]))
        lanes.read_s[source] = 0.0
        lanes.write_s[target] = 0.0
    s.tally[N_COPIES] = 0
    last = 0.0
    for lane in range(LANES):
        last = max(last, float(lanes.end_s[lane]))
    return last


@loop
def _places(lanes: Lanes, kind: int, w: int, source: int, target: int) -> tuple[int, int]:
    """Places in `read_s` and `write_s`: offload 0 to 1, onboard 1 to 0, disk write 1 to 2, disk read 2 to 0, copy 0 to 0."""
    up, down = 0, 0
    if kind == OFFLOAD:
        down = 1
    elif kind == ONBOARD:
        up = 1
    elif kind == DISK_WRITE:
        up, down = 1, 2
    elif kind == DISK_READ:
        up = 2
    return int(lanes.base[w, up] + source), int(lanes.base[w, down] + target)
