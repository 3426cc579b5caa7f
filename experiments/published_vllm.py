"""A measured run of vLLM 0.19 against the simulator: 300 ShareGPT requests, Llama-3.1-8B, one RTX 4090.

    python -m experiments.published_vllm          the errors, on the requests of the first third and on the rest
    python -m experiments.published_vllm --fit    fits the three figures to the first third again, then the same
    python -m experiments.published_vllm --plot   also draws reports/published/vllm_rtx4090.png

The three figures are in the hardware preset `rtx4090`: matrix products' share of the peak, memory's share of the peak,
a step's overhead. Times count from the first arrival; vLLM stamps tokens with another clock than arrivals, and the two
are set so that the quickest request waits no time between arrival and the engine's queue.
"""

import csv
import gzip
import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.engines import engine_of, lanes_of
from experiments.load import load
from experiments.ready import Ready, ready, whole
from experiments.trace import Trace
from kvcache.tables import T_FREE, T_SIZE
from sim.hardware import Hardware
from sim.roofline import RooflineCost
from sim.worker import steps

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "published" / "data"
PLOT = ROOT / "reports" / "published" / "vllm_rtx4090.png"
SAMPLE, SPEC = "llmservingsim_sharegpt300_blk16", "vllm_rtx4090"
FITTED_ON = 100
"""The requests that arrive first: what the three figures are fitted to."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """A run, measured or simulated; one entry a request, and the share of the KV pool in use at each whole second."""

    ttft_s: Numbers
    tpot_s: Numbers
    end_s: Numbers
    kv_use: Numbers
    kv_peak: float

    def figures(self, rows: slice) -> dict[str, float]:
        """What is compared, over some of the requests; the peak is that of the whole run."""
        ttft, tpot = self.ttft_s[rows], self.tpot_s[rows]
        return {
            "TPOT mean": float(np.nanmean(tpot)),
            "TPOT p50": float(np.nanmedian(tpot)),
            "TTFT mean": float(ttft.mean()),
            "TTFT p50": float(np.median(ttft)),
            "last token": float(self.end_s[rows].max()),
            "peak KV use": self.kv_peak,
        }


def _seen(arrival: Numbers, first: Numbers, last: Numbers, output: Numbers, kv_use: Numbers, kv_peak: float) -> Seen:
    several = np.where(output > 1, output - 1, np.nan)
    return Seen(first - arrival, (last - first) / several, last - arrival[0], kv_use, kv_peak)


@cache
def measured(directory: Path = DATA) -> Seen:
    """The run as vLLM stamped it."""
    name = "vllm019_rtx4090_llama31_8b"
    with gzip.open(directory / f"{name}_requests.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    with gzip.open(directory / f"{name}_timeseries.csv.gz", "rt", encoding="utf-8") as file:
        use = np.array([float(row["kv_cache_pct"]) / 100 for row in csv.DictReader(file)])
    keys = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts", "output_toks")
    arrival, queued, first, last, output = (np.array([row[key] for row in rows], np.float64) for key in keys)
    arrival += (queued - arrival).min()
    return _seen(arrival, first, last, output, use, float(use.max()))


@cache
def workload() -> Ready:
    """The bundled sample under the spec of this run."""
    return ready(load(SPEC)[0], Trace(SAMPLE).requests(), timing=True)


def simulated(hardware: Hardware | None = None, work: Ready | None = None) -> Seen:
    """The run on that machine (None: the preset), step by step."""
    work = work or workload()
    machine, the_plan = hardware or work.plan.hardware, work.plan
    cost = RooflineCost(the_plan.model, machine, the_plan.weight_dtype, the_plan.cache_dtype).params
    e = engine_of(work, whole(work))
    arrival = work.requests.arrival_s
    tier = e.state.tier[0, 0]
    samples: list[tuple[float, float]] = []
    for now_s, begun in steps(e, lanes_of(work, e.state), cost, arrival, overlap=False):
        if begun:
            samples.append((now_s - arrival[0], 1.0 - tier[T_FREE] / tier[T_SIZE]))
    at, use = np.array(samples).T
    seconds = use[np.searchsorted(at, np.arange(1.0, at[-1]), side="right") - 1]
    outcome, output = e.outcome, work.requests.output_tokens.astype(np.float64)
    return _seen(arrival, outcome.first_token_s, outcome.finish_s, output, seconds, float(use.max()))


def errors(ours: Seen, theirs: Seen, rows: slice) -> dict[str, float]:
    """Relative error of each figure; of the peak, the difference."""
    mine, real = ours.figures(rows), theirs.figures(rows)
    return {k: mine[k] - real[k] if k == "peak KV use" else mine[k] / real[k] - 1 for k in mine}


def loss(ours: Seen, theirs: Seen) -> float:
    """Mean |log error| of the first requests' TTFT and TPOT, each request by itself."""
    rows = slice(0, FITTED_ON)
    pairs = ((ours.ttft_s, theirs.ttft_s), (ours.tpot_s, theirs.tpot_s))
    return sum(float(np.nanmean(np.abs(np.log(mine[rows] / real[rows])))) for mine, real in pairs)


def tuned(hardware: Hardware, figures: tuple[float, float, float]) -> Hardware:
    """That machine with other values of the three figures."""
    linear, memory, overhead = figures
    return replace(hardware, linear_efficiency=linear, hbm_efficiency=memory, step_overhead_s=overhead)


def fit() -> tuple[float, float, float]:
    """The three figures at the least loss: from the H100's, along every axis and diagonal, in ever smaller steps."""
    theirs, hardware = measured(), workload().plan.hardware

    @cache
    def at(linear: int, memory: int, overhead: int) -> float:
        if not (1 <= linear <= 200 and 1 <= memory <= 200 and overhead >= 0):
            return float("inf")
        return loss(simulated(tuned(hardware, (linear / 200, memory / 200, overhead / 4000))), theirs)

    best = (144, 160, 2)  # 0.72, 0.80, 0.5 ms
    around = [(a, b, c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)]
    for step in (16, 8, 4, 2, 1):
        while True:
            scale = (step, step, max(1, step // 4))
            near = [tuple(x + d * s for x, d, s in zip(best, way, scale, strict=True)) for way in around]
            better = min(near, key=lambda point: (at(*point), point))
            if at(*better) >= at(*best):
                break
            best = (better[0], better[1], better[2])
    return best[0] / 200, best[1] / 200, best[2] / 4000


def table(ours: Seen, theirs: Seen) -> list[str]:
    """Both runs' figures and the errors, as lines."""
    lines = []
    for title, rows in (("first third (fitted)", slice(0, FITTED_ON)), ("rest (judged)", slice(FITTED_ON, None))):
        mine, real, off = ours.figures(rows), theirs.figures(rows), errors(ours, theirs, rows)
        lines.append(f"{title:22}{'vLLM':>10}{'ours':>10}{'error':>9}")
        lines += [f"  {k:20}{real[k]:10.4f}{mine[k]:10.4f}{100 * off[k]:+8.2f}%" for k in mine]
    mean = 100 * (ours.kv_use.mean() - theirs.kv_use.mean())
    return [*lines, f"mean KV use {100 * theirs.kv_use.mean():.2f} %, ours {mean:+.2f} points"]


def plot(ours: Seen, theirs: Seen, path: Path = PLOT) -> Path:
    """TTFT and TPOT of all requests as distributions, measured and simulated."""
    from reports.cdf import cdfs

    panels = {
        "time to first token, s": {"vLLM 0.19, measured": theirs.ttft_s, "kvtier": ours.ttft_s},
        "time per output token, ms": {"vLLM 0.19, measured": 1e3 * theirs.tpot_s, "kvtier": 1e3 * ours.tpot_s},
    }
    return cdfs(panels, "300 ShareGPT requests, Llama-3.1-8B, RTX 4090", path)


def main(options: list[str]) -> None:
    """Fit if asked, print, draw if asked."""
    hardware = workload().plan.hardware
    if "--fit" in options:
        figures = fit()
        sys.stdout.write("matrix products {:.3f}, memory {:.3f} of the peak, a step {:.2e} s\n".format(*figures))
        hardware = tuned(hardware, figures)
    ours = simulated(hardware)
    sys.stdout.write("\n".join([*table(ours, measured()), ""]))
    if "--plot" in options:
        sys.stdout.write(f"{plot(ours, measured())}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
