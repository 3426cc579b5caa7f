"""How long a run will take and how much memory it will need, before it runs: enough to plan by, not a promise.

Both grow with the blocks that the workload touches; with time also with the tokens it generates. The figures below were
measured on an AMD EPYC core with the Mooncake conversation trace (12,031 requests, blocks of 16 to 512 tokens). Where a
directory holds runs already, their own seconds correct the estimate, by the median of the ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

from experiments.jobs import Job
from experiments.trace import Trace
from reports.rows import Row

START_S = 0.05
BLOCK_S = 0.16e-6
TIMED_BLOCK_S = 0.25e-6
"""Beside BLOCK_S, where time is spent."""
TOKEN_S = 0.37e-6
"""One generated token, where time is spent."""
PROCESS_BYTES = 350 << 20
BLOCK_BYTES = 60
SHARE = 0.8
"""Of the free memory that runs may fill."""


@dataclass(frozen=True)
class Size:
    """What makes a run long."""

    tokens: int
    output_tokens: int


@lru_cache(maxsize=64)
def _size(trace: Trace) -> Size:
    requests = trace.requests()
    output = int(requests.output_tokens.sum(dtype=np.int64))
    return Size(int(requests.prompt_tokens.sum(dtype=np.int64)) + output, output)


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes of jobs; `correction` is how much longer runs took here than the figures say."""

    timing: bool
    correction: float = 1.0
    known: int = field(default=0)
    """Runs that the correction comes from."""

    @classmethod
    def learnt(cls, jobs: Sequence[Job], rows: Mapping[str, Row], *, timing: bool) -> "Estimate":
        """With the correction that follows from the runs which are there already."""
        plain = cls(timing)
        took = {job.key: (job, rows[job.key].get("wall_s")) for job in jobs if job.key in rows}
        ratios = [wall / plain.seconds(job) for job, wall in took.values() if wall]
        return cls(timing, median(ratios), len(ratios)) if ratios else plain

    def seconds(self, job: Job) -> float:
        """One run, on one core."""
        size = _size(job.trace)
        blocks = size.tokens / job.spec.kv_cache_config.tokens_per_block
        timed = (TIMED_BLOCK_S * blocks + TOKEN_S * size.output_tokens) if self.timing else 0.0
        return (START_S + BLOCK_S * blocks + timed) * self.correction

    def workers(self, jobs: Sequence[Job], wanted: int | None) -> int:
        """Processes: one a core, or as many as wanted, and no more than the free memory holds of the largest run."""
        import joblib

        most = wanted or joblib.cpu_count()
        largest = max((self.bytes(job) for job in jobs), default=PROCESS_BYTES)
        return max(1, min(most, len(jobs), int(free_bytes() * SHARE / largest)))

    def bytes(self, job: Job) -> float:
        """Memory of the process that makes the run."""
        return PROCESS_BYTES + BLOCK_BYTES * _size(job.trace).tokens / job.spec.kv_cache_config.tokens_per_block


def free_bytes() -> float:
    """Memory that this machine can give, bytes; without /proc (not Linux) no limit is known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", maxsplit=1) for line in lines)
        return float(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return float("inf")
