"""What a request costs behind a router as workers become more: `python -m tests.benchmarks.cluster [REQUESTS]`.

A chat service of 2,000 tenants, three requests a second and worker, blocks of 64 tokens, pools of 2,000 blocks, `kv` router:
the same load on each worker. CPU seconds of feeding and simulating, loops compiled before; only the ratio of the two means
something on another machine. Nothing is asserted but that all requests were answered.
"""

import sys
import time
from collections.abc import Iterator

from experiments.run import run_pieces
from experiments.spec import Spec
from traces.read import opened

REQUESTS = 30_000
WORKERS = (4, 64)


def cpu_s(workers: int, requests: int) -> float:
    """CPU seconds of one run."""
    spec = Spec.model_validate({
        "kv_cache_config": {"tokens_per_block": 64},
        "capacity": {"gpu_tokens": 128_000},
        "workload": {"workers": workers, "router": "kv"},
    })
    rate = 3 * workers
    stream = opened(f"synthetic:chat?requests={requests}&tenants=2000&requests_per_s={rate}&block_tokens=64")
    begun = time.process_time()
    row = run_pieces(spec, stream.pieces)
    assert row["requests"] == requests
    return time.process_time() - begun


def rows(requests: int) -> Iterator[str]:
    """The table, line by line as it is measured."""
    for workers in WORKERS:
        cpu_s(workers, 500)
    took = {workers: min(cpu_s(workers, requests) for _ in range(2)) for workers in WORKERS}
    for workers, seconds in took.items():
        yield f"{workers:3d} workers: {1e6 * seconds / requests:5.0f} us of CPU a request"
    few, many = WORKERS
    yield f"{took[many] / took[few]:.2f} times as much with {many} workers as with {few}"


def main(requests: int) -> None:
    for line in rows(requests):
        print(line, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS)
