"""What `kvtier disagg` does: one load on context and generation workers, where the first token's time goes, the ratio of GPUs
that fits, and the same GPUs with workers that do both.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from experiments import console
from experiments.cluster_spec import Autoscaling, Cluster, Side
from experiments.disagg import check_split, conversion_of, split_of
from experiments.load import load as load_spec
from experiments.pools import plan
from experiments.rate_match import Load, Machine, aggregated, best_at, context_rate, decode_s, matched
from experiments.run import run
from experiments.spec import Spec
from experiments.xfer import printed
from kvcache.request import Requests

PARTS = {
    "queue": "wait for a context worker",
    "prefill": "compute the prompt",
    "memory": "wait for decode memory",
    "buffer": "wait for a transfer buffer",
    "prepare": "look up, shake hands",
    "convert": "gather and scatter",
    "wire": "wire",
    "hidden": "of it behind the prefill",
}


@dataclass(frozen=True)
class Study:
    """What is asked."""

    load: Load
    context: Side
    generation: Side
    requests: int
    rate: float | None
    """Requests a second; None: seven tenths of what the weaker side sustains."""


def side(text: str, option: str) -> Side:
    """`n=2,tp=4,pp=1` as workers and their split."""
    names = {"n": "workers", "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    given: dict[str, int] = {"workers": 1}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in names or not equals or not value.isdigit() or int(value) < 1:
            raise ValueError(
                f"{option} {text!r}: {part.strip()!r} is not one of n=, tp=, pp= with a whole number from 1 on"
            )
        given[names[key]] = int(value)
    return Side.model_validate(given)


def uniform(load: Load, requests: int, rate: float, seed: int, unit_tokens: int) -> Requests:
    """Prompts that share nothing, in a Poisson stream."""
    rng = np.random.default_rng(seed)
    units = -(-load.isl // unit_tokens)
    return Requests(
        f"{requests} requests, {load.isl} in, {load.osl} out, {rate:.4g}/s",
        unit_tokens,
        np.cumsum(rng.exponential(1 / rate, requests)),
        np.full(requests, load.isl, np.int32),
        np.full(requests, load.osl, np.int32),
        np.arange(requests + 1, dtype=np.int64) * units,
        np.arange(requests * units, dtype=np.int32),
    )


def studied(study: Study, spec_name: str | None, settings: list[str]) -> dict[str, Any]:
    """The figures, as plain data."""
    sides = {"context": study.context, "generation": study.generation}
    shares = [f"cluster.{name}.{key}={value}" for name, each in sides.items() for key, value in each]
    spec, notes = load_spec(spec_name, [*settings, *shares])
    machine, context, generation = _machine(spec, study), split_of(study.context), split_of(study.generation)
    for split in (context, generation):
        check_split(machine.model, split)
    supply = context_rate(machine, context, study.load, spec.scheduler.max_num_tokens)
    points = matched(machine, context, generation, study.load, spec.scheduler.max_num_tokens)
    if not points:
        raise ValueError(
            f"a generation worker of {generation.gpus} GPU{'' if generation.gpus == 1 else 's'} has no room for one request"
            f" of {study.load.isl} + {study.load.osl} tokens: raise tp or pp in --gen"
        )
    most = points[-1]
    demand = (
        most.batch
        * study.load.tokens_per_step
        / (study.load.osl * decode_s(machine.params(generation), study.load, most.batch))
    )
    sustained = min(study.context.workers * supply, study.generation.workers * demand)
    rate = study.rate or 0.7 * sustained
    requests = uniform(study.load, study.requests, rate, spec.workload.seed, spec.kv_cache_config.tokens_per_block)
    gpus = study.context.workers * context.gpus + study.generation.workers * generation.gpus
    together_spec = _together(spec, study, gpus)
    rows = {"apart": run(spec, requests), "together": run(together_spec, requests)}
    if rows["apart"]["ttft_s"] is None or rows["apart"]["tpot_s"] is None:
        raise ValueError(
            f"none of {study.requests} transfers came through: raise cluster.kv_transfer_timeout_ms"
            f" ({spec.cluster.kv_transfer_timeout_ms}) or lower cluster.transfer_failure_share"
            f" ({spec.cluster.transfer_failure_share:g})"
        )
    both = aggregated(machine, generation, study.load, spec.scheduler.max_num_tokens)
    return {
        "rate_per_s": rate,
        "gpus": gpus,
        "context_rate_per_s": supply,
        "generation_rate_per_s": demand,
        "context_gpus_per_generation_gpu": most.context_per_generation_gpu,
        "peers": conversion_of(machine.model, context, generation).peers,
        "points": [asdict(point) | {"together": _pace(both, point.tokens_per_s_per_user)} for point in points],
        "together_points": [asdict(point) for point in both],
        "title": f"{machine.model.name} on {machine.hardware.name}, {study.load.isl} in, {study.load.osl} out",
        **{name: _figures(row, gpus) for name, row in rows.items()},
        "notes": list(dict.fromkeys([*notes, *rows["apart"]["notes"], *rows["together"]["notes"]])),
    }


def _pace(points: list[Any], pace: float) -> float | None:
    best = best_at(points, pace)
    return None if best is None else float(best.tokens_per_s_per_gpu)


def _machine(spec: Spec, study: Study) -> Machine:
    the_plan = plan(spec.model_copy(update={"parallel": spec.parallel.model_copy(
        update={"tensor_parallel_size": study.generation.tensor_parallel_size}
    )}), study.load.isl + study.load.osl)  # fmt: skip
    names = (the_plan.weight_dtype, the_plan.cache_dtype, spec.cost_model)
    return Machine(the_plan.model, the_plan.hardware, *names, spec.kv_cache_config.free_gpu_memory_fraction)


def _together(spec: Spec, study: Study, gpus: int) -> Spec:
    """The same GPUs with workers that do both, split as the generation workers are; a remainder stays idle."""
    each = split_of(study.generation)
    workload = spec.workload.model_copy(update={"workers": max(1, gpus // each.gpus), "router": "least_loaded"})
    parallel = spec.parallel.model_copy(
        update={"tensor_parallel_size": each.tensor, "pipeline_parallel_size": each.pipeline}
    )
    store = spec.store.model_copy(update={"bypass_tokens": 0})
    alone = {"cluster": Cluster(), "autoscaling": Autoscaling(), "store": store}
    return spec.model_copy(update={"workload": workload, "parallel": parallel, **alone})


def _figures(row: dict[str, Any], gpus: int) -> dict[str, Any]:
    kept = (
        "ttft_s", "tpot_s", "output_tokens_per_s", "ttft_parts", "transferred_bytes", "store", "pool_sizes", "mean_workers",
        "goodput_requests_per_s", "goodput_share",
    )  # fmt: skip
    return {name: row.get(name) for name in kept} | {"tokens_per_s_per_gpu": row["output_tokens_per_s"] / gpus}


def show(result: dict[str, Any], json: str | None, plot: Path | None = None) -> None:
    """Three short tables; with `--json FILE` the figures go there, with `-` to stdout; the curves to `plot`."""
    if plot is not None:
        draw(result, plot)
    console.note(result["notes"])
    if json is not None:
        console.write_json(result, json)
    if json == "-":
        return
    console.heading("Time to first token, apart (means)")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, words in PARTS.items():
        seconds = result["apart"]["ttft_parts"][f"{name}_s"]
        if seconds or name in {"queue", "prefill", "prepare", "wire", "convert"}:
            table.add_row(words, f"{1e3 * seconds:.3g}", "ms")
    table.add_row("in all", f"{1e3 * result['apart']['ttft_s']['mean']:.4g}", "ms")
    printed(table)
    console.heading(f"{result['gpus']} GPUs, {result['rate_per_s']:.3g} requests/s")
    sides = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    good = result["apart"]["goodput_share"] is not None
    titles = ("", "TTFT mean / p90 (ms)", "TPOT mean / p90 (ms)", "tokens/s/user", "tokens/s/GPU")
    for title in (*titles, *(["within limits (%)"] if good else [])):
        sides.add_column(title, justify="right" if title else "left", no_wrap=True)
    for name, words in (("apart", "disaggregated"), ("together", "aggregated")):
        sides.add_row(words, *_cells(result[name]))
    printed(sides)
    console.heading("Rate-matched")
    console.say(
        f"one context worker computes {result['context_rate_per_s']:.3g} prompts/s, one generation worker ends"
        f" {result['generation_rate_per_s']:.3g} answers/s with a full batch:"
        f" {result['context_gpus_per_generation_gpu']:.2f} context GPUs a generation GPU"
    )
    curve = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("batch", "tokens/s/user", "tokens/s/GPU apart", "together", "context GPUs a generation GPU"):
        curve.add_column(title, justify="right", no_wrap=True)
    for point in result["points"]:
        both = point["together"]
        curve.add_row(
            str(point["batch"]), f"{point['tokens_per_s_per_user']:.1f}", f"{point['tokens_per_s_per_gpu']:.1f}",
            "-" if both is None else f"{both:.1f}", f"{point['context_per_generation_gpu']:.2f}",
        )  # fmt: skip
    printed(curve)
    if json is not None:
        console.say(json)


def draw(result: dict[str, Any], path: Path) -> None:
    """The rate-matched curve and that of the same split doing both."""
    from reports.cluster_plots import pace_plot

    names = ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
    curves = {
        words: [(point[names[0]], point[names[1]]) for point in result[key]]
        for words, key in (("disaggregated, rate-matched", "points"), ("aggregated", "together_points"))
    }
    pace_plot(curves, path, result["title"])


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    ttft, tpot = figures["ttft_s"], figures["tpot_s"]
    return (
        f"{1e3 * ttft['mean']:.4g} / {1e3 * ttft['p90']:.4g}",
        f"{1e3 * tpot['mean']:.3g} / {1e3 * tpot['p90']:.3g}",
        f"{1 / tpot['mean']:.1f}",
        f"{figures['tokens_per_s_per_gpu']:.1f}",
        *([] if figures["goodput_share"] is None else [f"{100 * figures['goodput_share']:.1f}"]),
    )
