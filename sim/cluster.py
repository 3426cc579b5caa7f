"""Workers behind a static router, fed by a trace in its own time: the whole simulated system of one run.

Static means that the worker of a request follows from the trace alone (round robin, random, by session); routers that look
at the workers are not here. It computes no result (`experiments.run` folds the outcome into a row).
"""

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from kvcache.request import Float64, Int32, Int64
from sim.turns import Turns, TurnTaking
from sim.worker import Worker, until


class Arrivals:
    """Delivers each request to its worker at its arrival time, in order."""

    def __init__(
        self,
        env: simpy.Environment,
        arrival_s: Float64,
        worker_of: Int32,
        workers: list[Worker],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._env = env
        self._arrival_s = arrival_s
        self._worker_of = worker_of
        self._workers = workers
        self._number = numbered(worker_of)
        self._index = {id(worker): w for w, worker in enumerate(workers)}
        self._own = [[*arrival_s[worker_of == w].tolist(), math.inf] for w in range(len(workers))]
        self._told = [0] * len(workers)
        self._next = 0
        self._progress = progress

    @property
    def listens(self) -> bool:
        """Arrivals are the trace's, whatever ends."""
        return False

    def ended(self, worker: Worker) -> None:
        """Nobody waits for it."""

    @property
    def exhausted(self) -> bool:
        """The last request has been delivered."""
        return self._next == len(self._arrival_s)

    def quiet_until_s(self, worker: Worker) -> float:
        """When this worker's next request arrives; infinite after its last. Others' do not concern it."""
        w = self._index[id(worker)]
        return float(self._own[w][self._told[w]])

    def deliver(self, now_s: float) -> None:
        """Hand over every request that has arrived by `now_s`."""
        while self._next < len(self._arrival_s) and self._arrival_s[self._next] <= now_s:
            r = self._next
            self._next += 1
            w = int(self._worker_of[r])
            self._told[w] += 1
            self._workers[w].arrive(int(self._number[r]), float(self._arrival_s[r]))
            if self._progress is not None and self._next % 256 == 0:
                self._progress(self._next, len(self._arrival_s))

    def run(self) -> Generator[simpy.Event, Any, None]:
        """The trace as a SimPy process."""
        while self._next < len(self._arrival_s):
            due_s = float(self._arrival_s[self._next])
            yield from until(self._env, due_s)
            self.deliver(due_s)


def assign(router: str, requests: int, workers: int, session: Int32, rng: np.random.Generator) -> Int32:
    """Worker of each request: in turn, at random, or the same for all requests of a session."""
    turn = np.arange(requests, dtype=np.int32) % workers
    if router == "random":
        return rng.integers(0, workers, requests).astype(np.int32)
    if router == "session":
        return np.where(session >= 0, session % workers, turn).astype(np.int32)
    return turn.astype(np.int32)


def numbered(worker_of: Int32) -> Int64:
    """The number each request has among those of its worker."""
    number = np.empty(len(worker_of), np.int64)
    for w in np.unique(worker_of):
        mine = worker_of == w
        number[mine] = np.arange(int(mine.sum()))
    return number


def simulate(
    workers: Callable[[simpy.Environment], list[Worker]],
    arrival_s: Float64,
    worker_of: Int32,
    progress: Callable[[int, int], None] | None = None,
    turns: Turns | None = None,
) -> list[Worker]:
    """Run until the last request has ended; returns the workers as they are then. `turns`: who waits for whom."""
    env = simpy.Environment()
    made = workers(env)
    source: Arrivals | TurnTaking = Arrivals(env, arrival_s, worker_of, made, progress)
    if turns is not None:
        source = TurnTaking(env, turns, arrival_s, worker_of, numbered(worker_of), made, progress)
    env.process(source.run())
    for worker in made:
        env.process(worker.run(source))
    env.run()
    return made
