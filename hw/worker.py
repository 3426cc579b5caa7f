"""One engine on real memory: carries out its commands on a device, keeps the times, and checks the bytes.

The engine is the object that the simulator uses; nothing is decided here. A step is TensorRT-LLM's: copies start
after the kernels before, kernels start after the copies (`hw.mover`). Kernels fill the blocks they compute with
stamps; after every move the destination is compared, and when a request starts, so is every block it found.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.device import COMPUTE, Device
from hw.memory import GPU
from hw.mover import KINDS, ROUTES, Mover
from hw.ordering import RULES
from hw.program import COPY, DISK_READ, DISK_WRITE, OP, ORIGIN
from hw.stamps import Stamps, WrongBytesError
from kvcache.commands import Commands, SansIOEngine
from kvcache.line import GENERATING, N_ACTIVE, N_STARTED, POSITION, REQUEST, TARGET
from kvcache.tables import C_TOKENS_PER_BLOCK, SLOT

Check = Literal["each", "end", "none"]
MOVES = (COPY, DISK_WRITE, DISK_READ)


class StepTimes(NamedTuple):
    """What one step's copies took."""

    spent_s: NDArray[np.float64]  # by copy, in the order of the commands: `Ran.spent_s`, waits for others left out
    clock_s: NDArray[np.float64]  # the same from start to end of each copy, on the clock
    span_s: float  # on the clock, from the start of the first copy to the end of the last


class Worker:
    """`check`: "each" compares a destination on its stream right after its copy, which takes time that spans include;
    "end" compares when the step's copies have ended: a place that was overwritten within the step is compared once.
    """

    def __init__(
        self, engine: SansIOEngine, device: Device, *, check: Check = "end", rules: frozenset[str] = RULES
    ) -> None:
        self.engine, self.device = engine, device
        self.stamps = Stamps(device.layout)
        self.mover = Mover(device, self.stamps, check=check == "each", rules=rules)
        self.moves = self.checks = self.hits_checked = 0
        self.last_kernels_s = 0.0
        self._check = check

    def copies(self, commands: Commands, *, gate: bool = True) -> StepTimes:
        """Carry out the copies of one step and return what they took."""
        if len(commands.copies) == 0:
            return StepTimes(np.zeros(0), np.zeros(0), 0.0)
        self.mover.copies(commands.copies, gate=gate)
        ran = self.mover.run()
        self.moves += len(commands.copies)
        self.checks += self.mover.checks
        seconds, clock = np.zeros(len(commands.copies)), np.zeros(len(commands.copies))
        first, last = np.inf, 0.0
        for program, times in ran.values():
            moves = np.isin(program[:, OP], MOVES)
            np.add.at(seconds, program[moves, ORIGIN], times.spent_s[moves])
            np.add.at(clock, program[moves, ORIGIN], times.times_s[moves, 1] - times.times_s[moves, 0])
            first = min(first, float(times.times_s[moves, 0].min()))
            last = max(last, float(times.times_s[moves, 1].max()))
        if self._check == "end":
            self._compare(commands)
        return StepTimes(seconds, clock, max(0.0, last - first))

    def _compare(self, commands: Commands) -> None:
        layout, seen = self.device.layout, set()
        for kind, window, _, target, _, _ in commands.copies[::-1].tolist():
            tier = ROUTES[kind][2]
            place = layout.place(window, tier, target)
            if place not in seen:
                seen.add(place)
                self._expect(window, tier, target, f"a step's {KINDS[kind]}")
        self.checks += len(seen)

    def _expect(self, window: int, tier: int, slot: int, after: str) -> None:
        layout = self.device.layout
        place = layout.place(window, tier, slot)
        tokens = int(self.stamps.tokens[place])
        if tokens < 0:
            return
        for pool in layout.parts[window, tier]:
            size = layout.part_bytes(pool, tokens)
            byte = self.device.first_wrong(pool, slot, self.stamps.seed(place), size)
            if byte >= 0:
                raise self.stamps.wrong(place, pool, byte, after)

    def kernels(self, seconds: float = 0.0) -> None:
        """Compute the step begun: fill its blocks, then wait `seconds` (`last_kernels_s`: what that took)."""
        if self._check != "none":
            self._check_found()
        self.mover.kernels(self._computed(), seconds=seconds)
        ran = self.mover.run()
        self.last_kernels_s = 0.0
        if seconds > 0:
            times = ran[COMPUTE][1].times_s
            self.last_kernels_s = float(times[-1, 1] - times[-1, 0])

    def _computed(self) -> list[tuple[int, int, int]]:
        """(window, GPU slot, key node) of every block that the step writes to for the first time."""
        e, written = self.engine.engine, []
        tpb = int(e.state.conf[C_TOKENS_PER_BLOCK])
        sequences = e.line.active[: e.line.meter[N_ACTIVE]]
        rows, slots = e.line.rows[sequences], e.sequences.slots[sequences]
        generating = rows[:, GENERATING] > 0
        grown = generating & ((slots - 1) % tpb == 0)
        filled = ~generating & (rows[:, TARGET] > rows[:, POSITION])
        for i in np.flatnonzero(grown | filled).tolist():
            if grown[i]:
                first, last = (int(slots[i]) - 1) // tpb, (int(slots[i]) - 1) // tpb
            else:
                first, last = int(rows[i, POSITION]) // tpb, (int(rows[i, TARGET]) - 1) // tpb
            for position in range(first, last + 1):
                node = self._node(int(rows[i, REQUEST]), position)
                for window, slot in self._places(int(sequences[i]), position):
                    written.append((window, slot, node))
        return written

    def _check_found(self) -> None:
        """Requests that start with this step found content under the right keys, and its bytes are there."""
        e = self.engine.engine
        n, started = int(e.line.meter[N_ACTIVE]), int(e.line.meter[N_STARTED])
        tpb = int(e.state.conf[C_TOKENS_PER_BLOCK])
        for sequence in e.line.active[n - started : n].tolist():
            request, found = e.line.rows[sequence, [REQUEST, POSITION]].tolist()
            for position in range(found // tpb):
                node = self._node(request, position)
                for window, slot in self._places(sequence, position):
                    place = self.device.layout.place(window, GPU, slot)
                    if self.stamps.node[place] != node:
                        raise WrongBytesError(
                            f"request {request} found {self.stamps.describe(place)} at block {position}, in"
                            f" {self.device.layout.name(place)}, instead of key node {node}"
                        )
                    self._expect(window, GPU, slot, f"request {request} found block {position}")
                    self.hits_checked += 1

    def _node(self, request: int, position: int) -> int:
        """Key node of a request's block: a full block's own, or that of the last, short one."""
        load = self.engine.engine.load
        first, end = int(load.key_offset[request]), int(load.key_offset[request + 1])
        return int(load.keys[min(first + position, end - 1)] if first + position < end - 2 else load.keys[end - 1])

    def _places(self, sequence: int, position: int) -> list[tuple[int, int]]:
        """(window, GPU slot) of the blocks a sequence holds at a position."""
        e = self.engine.engine
        blocks = [(w, int(e.sequences.blocks[w, sequence, position])) for w in range(len(e.state.window))]
        return [(w, int(e.state.blocks[block, SLOT])) for w, block in blocks if block >= 0]
