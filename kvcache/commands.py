"""The seam between deciding and executing: three calls, no waiting, no bytes. What `sim` models and `hw` really moves.

    engine.arrive(request, now_s)
    engine.next_commands(now_s) -> Commands     copies in order, then at most one step
    engine.finish(step, now_s)

An engine is a function of what it was told: fed the same calls again, a fresh one gives the same commands. The simulator
runs the same loops without this class, many steps a call (`sim.worker`).
"""

import hashlib
from typing import NamedTuple

import numpy as np

from kvcache.engine import Engine, arrive, is_idle
from kvcache.line import PLAN
from kvcache.rules import iteration
from kvcache.tables import COPY_COLUMNS, N_COPIES, Array

K_KIND, K_WINDOW, K_SOURCE, K_TARGET, K_TOKENS, K_KEY = range(COPY_COLUMNS)


class Step(NamedTuple):
    """The forward pass of one iteration, in the units of `sim.cost.step_seconds_windowed`."""

    number: int
    prefill_tokens: float
    prefill_pairs: float
    prefill_window_pairs: float
    prefill_context_tokens: float
    decode_seqs: float
    decode_context_tokens: float
    decode_window_tokens: float


class Commands(NamedTuple):
    """What to do next. `copies` is int32[n, 6]: kind (see `kvcache.tables`: offload, onboard, disk write, disk read, copy
    inside the GPU), window, source slot, destination slot, tokens (0 = whole block), key node; to be started in order, a
    copy after earlier ones that touch its slots. `step` None: nothing to compute now.
    """

    copies: Array
    step: Step | None


class SansIOEngine:
    """One worker's engine behind three calls; keeps a running digest of everything it decided."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rules = iteration(engine)
        self._steps = 0
        self._digest = hashlib.sha256()

    def arrive(self, request: int) -> None:
        """A request (its number in the load) joins the line."""
        arrive(self.engine, request)

    def next_commands(self, now_s: float) -> Commands:
        """Schedule and allocate one iteration at `now_s`."""
        state = self.engine.state
        busy = bool(self._rules.begin(self.engine, now_s))
        n = int(state.tally[N_COPIES])
        copies = state.copies[:n].copy()
        state.tally[N_COPIES] = 0
        self._digest.update(copies.tobytes())
        if not busy:
            return Commands(copies, None)
        self._steps += 1
        plan = [float(x) for x in self.engine.line.plan[:PLAN]]
        self._digest.update(np.array(plan).tobytes())
        if self._rules.ahead is not None:
            self._rules.ahead(self.engine, now_s)
        return Commands(copies, Step(self._steps, *plan))

    def finish(self, step: Step, now_s: float) -> int:
        """`step` ended at `now_s`; returns the tokens it made."""
        assert step.number == self._steps, f"step {step.number} ended, but step {self._steps} was the last one begun"
        return int(self._rules.end(self.engine, now_s))

    @property
    def idle(self) -> bool:
        """Nobody waits and nobody is active."""
        return bool(is_idle(self.engine))

    @property
    def decisions(self) -> str:
        """Digest of all commands so far: equal digests, equal decisions."""
        return self._digest.hexdigest()
