"""Runs jobs in processes of this machine, and outlives the processes: one that is killed costs nothing but time.

A process that dies (out of memory, most often) takes the whole pool with it and nobody says which run it was. So the
runs that were under way are made again one at a time: the one whose process dies alone is at fault and gets an error for
a row, then all go on. With one worker everything happens in this process.
"""

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from experiments.jobs import Job
from reports.rows import Row

Work = Callable[[Job], Row]
"""Makes one run; every fault of the run itself is in the row."""
DIED = "the process died during this run, also alone on the machine; it may need more memory than there is"


def in_processes(jobs: Sequence[Job], work: Work, workers: int) -> Iterator[tuple[Job, Row]]:
    """Jobs with their rows, as they finish; they are started in the order given."""
    if workers == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    left = {job.key: job for job in jobs}
    while left:
        try:
            for job, row in _pooled(list(left.values()), work, workers):
                del left[job.key]
                yield job, row
        except BrokenProcessPool:
            for job in list(left.values())[:workers]:
                del left[job.key]
                yield job, _alone(job, work)


def _alone(job: Job, work: Work) -> Row:
    try:
        return next(_pooled([job], work, 1))[1]
    except BrokenProcessPool:
        return {"key": job.key, "error": DIED}


def _pooled(jobs: Sequence[Job], work: Work, workers: int) -> Iterator[tuple[Job, Row]]:
    """In fresh processes, which end with the last row or the first fault."""
    from joblib.externals.loky import ProcessPoolExecutor

    executor: Any = ProcessPoolExecutor(max_workers=min(workers, len(jobs)))
    try:
        with deaf():
            futures = {executor.submit(work, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures.pop(future)
            yield job, future.result()
    finally:
        executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def deaf() -> Generator[None, None, None]:
    """Ignore Ctrl-C for a moment: processes started meanwhile go on ignoring it and leave it to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
