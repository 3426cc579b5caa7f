"""Has runs made on other machines: by the workers of a Dask cluster, or as an array of Slurm jobs (submitit).

Whose turn it is, who died and where to try again is decided there; here rows are only handed on as they come. kvtier must be
installed on every machine, and the trace must lie under the same path: a run made by another version or of another trace is
refused (`experiments.sweep.One`). Both packages are extras, imported on use.
"""

import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.complaints import SpecError
from experiments.jobs import Job
from experiments.local import Work, deaf
from reports.rows import Row

SLURM_TASKS = 64
PIECES = 4
"""Runs of one Slurm task are handed over together; so each task at a time gets a fourth of its share."""


def on_dask(jobs: Sequence[Job], work: Work, address: str | None, workers: int) -> Iterator[tuple[Job, Row]]:
    """By the workers of the scheduler at `address`; without one, of so many processes on this machine."""
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError:
        raise SpecError("--engine dask needs Dask: pip install 'kvtier[dask]'") from None

    quiet = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.ERROR}
    with deaf():
        cluster: Any = address or LocalCluster(n_workers=workers, **quiet)
    with Client(cluster) as client:
        try:
            futures = {client.submit(work, job, key=f"kvtier-{job.key}", pure=False): job for job in jobs}
            for future in as_completed(futures):
                job = futures.pop(future)
                fault = future.exception()
                yield job, future.result() if fault is None else _failed(job, fault)
        finally:
            if address is None:
                cluster.close()


def _failed(job: Job, fault: BaseException) -> Row:
    return {"key": job.key, "error": f"{type(fault).__name__}: {' '.join(str(fault).split())}"}


def on_slurm(
    jobs: Sequence[Job], work: Work, folder: Path, tasks: int, cluster: str = "slurm"
) -> Iterator[tuple[Job, Row]]:
    """As a Slurm array of at most so many tasks at once. Partition, account and time are sbatch's: SBATCH_PARTITION, ..."""
    try:
        import submitit
    except ImportError:
        raise SpecError("--engine slurm needs submitit: pip install 'kvtier[slurm]'") from None
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise SpecError("--engine slurm: no sbatch on this machine")

    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    executor.update_parameters(name="kvtier", cpus_per_task=1, slurm_array_parallelism=tasks)
    pieces = [jobs[first :: tasks * PIECES] for first in range(min(len(jobs), tasks * PIECES))]
    with executor.batch():
        running = {executor.submit(_piece, work, piece): piece for piece in pieces}
    for task in submitit.helpers.as_completed(list(running)):
        fault = task.exception()
        rows = task.result() if fault is None else [_failed(job, fault) for job in running[task]]
        yield from zip(running[task], rows, strict=True)


def _piece(work: Work, jobs: Sequence[Job]) -> list[Row]:
    return list(map(work, jobs))
