"""kvtier beside NVIDIA Dynamo's replayer, in one run: `python -m tests.benchmarks.dynamo`.

Both replay the whole `mooncake_conversation` trace (12,031 requests, 4.1 million generated tokens) on one simulated vLLM
worker with 10,000 blocks of 512 tokens, then with the same memory in blocks of 16. Dynamo's part is its Rust core's offline
replay with its own timing model. kvtier runs its `vllm` profile, and its `trtllm` profile, with Llama-3.1-8B on four
H100s: like Dynamo's default worker, that one keeps up with the arrivals (as the makespans show), and it takes more steps.

Each measurement is a process of its own that reads the trace and replays it; figures are of the best of three. CPU is that
of reading and replaying; `process` is all of it, imports too. kvtier's loops come from the disk cache (a first, unmeasured
process sees to that). Nothing is asserted; times mean something as ratios within one run.
"""

import gzip
import importlib.metadata
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parents[2] / "traces" / "samples" / "mooncake_conversation.jsonl.gz"
PACKAGE, VERSION = "ai-dynamo-runtime", "1.6.1"
TOKENS = 10_000 * 512
REPEATS = 3
TOOLS = ("kvtier trtllm", "kvtier vllm", "dynamo vllm")


Replay = Callable[[], dict[str, float]]


def dynamo(trace: str, block: int, _profile: str) -> Replay:
    """Dynamo's offline replay."""
    from dynamo import _core

    engine = {"backend": "vllm", "num_gpu_blocks": TOKENS // block, "block_size": block}
    settings = {"engine": engine, "num_gpu_blocks_is_explicit": True}

    def replay() -> dict[str, float]:
        found = _core.run_mocker_trace_replay(
            [trace], settings, trace_block_size=512, capture_planner_details=False
        ).summary
        return {
            "requests": found["completed_requests"],
            "makespan_s": found["duration_ms"] / 1e3,
            "hit_rate": found["prefix_cache_reused_ratio"],
        }

    return replay


def kvtier(trace: str, block: int, profile: str) -> Replay:
    """kvtier's timed replay."""
    from experiments.run import run
    from experiments.spec import Spec
    from traces.read import read

    spec = Spec.model_validate({
        "profile": profile,
        "kv_cache_config": {"tokens_per_block": block},
        "capacity": {"gpu_blocks": TOKENS // block},
        "parallel": {"tensor_parallel_size": 4},
        "scheduler": {"max_num_tokens": 8192, "max_batch_size": 256},
    })

    def replay() -> dict[str, float]:
        row = run(spec, read(trace))
        return {
            "requests": row["requests"],
            "makespan_s": row["makespan_s"],
            "hit_rate": row["hit_rate_tokens"],
            "steps": row["steps"],
        }

    return replay


def measure(replay: Replay) -> None:
    """One measurement, in this process, as a line of JSON."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = replay()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**found, "wall_s": wall, "cpu_s": cpu, "process_s": time.process_time(), "peak_mib": peak}))


def measured(tool: str, trace: Path, block: int) -> dict[str, float]:
    """The best of some processes, by CPU."""
    command = [sys.executable, "-m", "tests.benchmarks.dynamo", *tool.split(), str(trace), str(block)]
    runs = []
    for _ in range(REPEATS + tool.startswith("kvtier")):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return min(runs[-REPEATS:], key=lambda one: one["cpu_s"])


def table() -> list[str]:
    """All measurements and the ratios, as lines."""
    lines = [
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {PACKAGE} {VERSION};"
        f" best of {REPEATS} processes",
        f"{'':16}{'block':>6}{'CPU s':>8}{'wall s':>8}{'process':>9}{'MiB':>6}{'steps':>9}{'makespan':>10}{'hits':>7}{'CPU':>7}",
    ]
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "mooncake_conversation.jsonl"
        trace.write_bytes(gzip.decompress(TRACE.read_bytes()))
        for block in (512, 16):
            found = {tool: measured(tool, trace, block) for tool in TOOLS}
            theirs = found[TOOLS[-1]]["cpu_s"]
            lines += [_line(tool, block, one, theirs) for tool, one in found.items()]
    return lines


def _line(tool: str, block: int, one: dict[str, Any], theirs: float) -> str:
    steps = f"{one['steps']:,}" if "steps" in one else "-"
    times = f"{one['cpu_s']:8.2f}{one['wall_s']:8.2f}{one['process_s']:9.2f}{one['peak_mib']:6.0f}"
    return f"{tool:16}{block:6}{times}{steps:>9}{one['makespan_s']:9.0f}s{one['hit_rate']:7.3f}{one['cpu_s'] / theirs:6.2f}x"


def installed() -> str | None:
    """The version of Dynamo's runtime here, if any."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Print the table, or how to get what is missing."""
    if installed() != VERSION:
        print(f"{PACKAGE} {VERSION} is not installed here (found: {installed()}): pip install {PACKAGE}=={VERSION}")
        return
    print("\n".join(table()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        name, of_profile, file, size = sys.argv[1:]
        measure({"kvtier": kvtier, "dynamo": dynamo}[name](file, int(size), of_profile))
    else:
        main()
