"""Turns a sweep into a configuration to paste: the choice with its reasons, TensorRT-LLM's options, other engines' flags.

It can run the choice again, with another seed and on the second half of the trace, and says whether the limits still hold.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments.ready import draws
from experiments.spec import Spec
from experiments.study import with_setting
from experiments.trace import Trace
from experiments.trtllm_options import MOVED
from experiments.version import kvtier_version
from kvcache.request import Requests
from reports.columns import column
from reports.files import written
from reports.limits import Limit
from reports.plots import words
from reports.recommend import Advice, recommend, sentences
from reports.rows import PLAN, plan_of
from reports.table import SEED, read_sweep, varied
from traces.options import ReadOptions
from traces.workloads import PREFIX

KNOWN_ERROR = 0.10
"""How good times are with a preset: the tolerance that published copy and compute figures are held to (docs/figures.md)."""


@dataclass(frozen=True)
class Check:
    """The choice run again: under which condition, the figures with limits (as stored), whether all limits held."""

    name: str
    figures: dict[str, float]
    held: bool


@dataclass(frozen=True)
class Recommended:
    """The choice, the spec of its run, its checks, the lines to show, the options file."""

    advice: Advice
    spec: Spec
    checks: list[Check]
    lines: list[str]
    file: Path

    @property
    def held(self) -> bool:
        """No check missed a limit."""
        return all(check.held for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For programs: what was chosen from how many, its limits, its checks, the options."""
        advice, chosen = self.advice, self.advice.chosen
        return {
            "run": int(chosen["run"]),
            "settings": _settings(chosen, advice.keys),
            "limits": [
                {
                    "limit": limit.words(),
                    "figure": limit.column,
                    "worst": float(chosen[f"worst {limit.column}"]),
                    "margin": margin,
                    "doubt": doubt,
                }
                for limit, (margin, doubt) in zip(advice.limits, advice.margins(KNOWN_ERROR), strict=True)
            ],
            "preferences": [preference.words() for preference in advice.prefer],
            "keeping": advice.keeping,
            "of": len(advice.frame),
            "runner_up": None if advice.next is None else _settings(advice.next, advice.keys),
            "seeds": advice.seeds,
            "spread": advice.spread,
            "checks": [vars(check) for check in self.checks],
            "held": self.held,
            "says": self.lines,
            "options": trtllm_options(self.spec, advice),
            "file": str(self.file),
        }


def _settings(row: "pd.Series[float]", keys: list[str]) -> dict[str, Any]:
    return {key: None if pd.isna(row[key]) else row[key] for key in keys}


def recommended(directory: Path, slo: list[str], prefer: list[str], out: Path | None, *, check: bool) -> Recommended:
    """What `kvtier recommend` does once its options are read; the options file is written to `out`."""
    frame, about = read_sweep(directory)
    keys = varied(frame, about)
    advice = recommend(frame, keys, slo, prefer)
    spec = spec_of(directory, int(advice.chosen["run"]))
    trace = trace_with(directory, int(advice.chosen["run"]), about)
    seeds = [int(seed) for seed in about.get("grid", {}).get(SEED, ())]
    checks = (
        [again(tried, requests, advice, name) for name, tried, requests in trials(spec, trace, seeds)] if check else []
    )
    lines = [*sentences(advice, KNOWN_ERROR), *(told(one, advice) for one in checks)]
    if check and not has_seed(spec, trace):
        lines.append("Another seed changes nothing here: the trace is recorded and no choice of this run is random.")
    target = out if out is not None else directory / "kv_cache_config.yaml"
    with written(target) as path:
        path.write_text(options_file(spec, advice, lines), encoding="utf-8")
    return Recommended(advice, spec, checks, lines, target)


def spec_of(directory: Path, run: int) -> Spec:
    """The whole spec of one run of a sweep."""
    for entry in plan_of(directory):
        if int(entry["run"]) == run:
            return Spec.model_validate(entry["spec"])
    raise ValueError(f"{directory / PLAN}: no run {run} in it")


def trace_of(about: dict[str, Any]) -> Trace:
    """The trace that a sweep was made from."""
    options = dict(about.get("trace_options", {}))
    return Trace(about["trace"], options.pop("format", None), ReadOptions(**options), about.get("limit"))


def trace_with(directory: Path, run: int, about: dict[str, Any]) -> Trace:
    """The trace of one run: another seed of a generated one is another name."""
    names = (str(entry["trace"]) for entry in plan_of(directory) if int(entry["run"]) == run and "trace" in entry)
    return replace(trace_of(about), name=next(names, str(about["trace"])))


def has_seed(spec: Spec, trace: Trace) -> bool:
    """Whether another seed makes another run: of a generated trace another one, of a random router other choices."""
    return trace.name.startswith(PREFIX) or draws(spec)


def trials(spec: Spec, trace: Trace, seeds: list[int]) -> Iterator[tuple[str, Spec, Requests]]:
    """The same with a seed beyond `seeds`, where there is chance, and on the trace's second half alone (with a cold cache)."""
    requests = trace.requests()
    if has_seed(spec, trace):
        seed = max(seed_of(trace.name), spec.workload.seed, *seeds) + 1
        other = with_setting(trace, "trace.seed", seed) if trace.name.startswith(PREFIX) else trace
        workload = spec.workload.model_copy(update={"seed": seed})
        yield f"with seed {seed}", spec.model_copy(update={"workload": workload}), other.requests()
    half = requests.take(np.arange(len(requests) // 2, len(requests)))
    yield "the second half of the trace, cold", spec, half


def seed_of(name: str) -> int:
    """The seed in a generated trace's name; 0 where none is said."""
    pairs = dict(pair.partition("=")[::2] for pair in name.partition("?")[2].split("&"))
    return int(pairs.get("seed", 0))


def again(spec: Spec, requests: Requests, advice: Advice, name: str) -> Check:
    """Run once more: the figures that have limits, and whether all held."""
    from experiments.run import run
    from reports.columns import flat

    timing = any(limit.column.endswith("_s") for limit in advice.limits)
    row = pd.DataFrame([flat(run(spec, requests, timing=timing))])
    figures = {limit.column: float(row[limit.column].iloc[0]) for limit in advice.limits}
    return Check(name, figures, all(bool(limit.met(row).iloc[0]) for limit in advice.limits))


def told(check: Check, advice: Advice) -> str:
    """A check in words: each limit with the figure, and the distance between them."""
    figures = ", ".join(_seen(check, limit) for limit in advice.limits) or "no limit to check"
    return f"Again, {check.name}: {figures}{'' if check.held else ': a limit is MISSED'}."


def _seen(check: Check, limit: Limit) -> str:
    value, shown = check.figures[limit.column], column(limit.column)
    figure = f"{shown.label} {value / shown.divisor:.4g} {shown.unit}".rstrip()
    return f"{figure}, {100 * limit.margin(value):+.0f} % to {limit.words()}"


def options_file(spec: Spec, advice: Advice, lines: list[str]) -> str:
    """TensorRT-LLM's options as YAML, the reasons above, other engines' flags and retention rules below as comments."""
    head = [f"Chosen by kvtier {kvtier_version()} ({words(pd.DataFrame([advice.chosen]), advice.keys)}).", *lines]
    body = yaml.safe_dump(trtllm_options(spec, advice), sort_keys=False)
    parts = [_comment(head), body, _comment(elsewhere(spec, advice)), _comment(retention(spec))]
    return "\n".join(part for part in parts if part)


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def trtllm_options(spec: Spec, advice: Advice) -> dict[str, Any]:
    """What `trtllm-serve --config` takes, as this run had it; nothing that only the simulator knows."""
    given = spec.kv_cache_config.model_dump(mode="json", exclude_none=True)
    config = {name: value for name, value in given.items() if name not in SIMULATED and value not in (0, [])}
    config["secondary_offload_min_priority"] = spec.kv_cache_config.offload_min_priority
    block = spec.kv_cache_config.tokens_per_block
    if spec.capacity.blocks("gpu", block) is not None:
        config["max_tokens"] = int(advice.chosen["gpu_blocks"]) * block
    host = int(advice.chosen["host_blocks"]) * int(advice.chosen["block_bytes"])
    if host:
        config["host_cache_size"] = host
    scheduler = spec.scheduler.model_dump(mode="json", exclude_none=True)
    policy = scheduler.pop("capacity_scheduler_policy")
    top: dict[str, Any] = {name: scheduler[name] for name in MOVED["scheduler"] if name in scheduler}
    return {
        "tensor_parallel_size": spec.parallel.tensor_parallel_size,
        **top,
        "scheduler_config": {"capacity_scheduler_policy": policy},
        "kv_cache_config": config,
    }


SIMULATED = ("disk_cache_size", "cold_tier_offload_min_priority")
"""Options of the cascade profile, which TensorRT-LLM v1 does not have."""


def elsewhere(spec: Spec, advice: Advice) -> list[str]:
    """The nearest flags of other engines, and what has none there.

    Sources: vLLM's engine arguments (block-size, kv-offloading-size in GiB over all ranks), SGLang's server arguments
    (hicache-size in GB a rank), Dynamo's KVBM guide (DYN_KVBM_CPU_CACHE_GB).
    """
    config, scheduler = spec.kv_cache_config, spec.scheduler
    host = int(advice.chosen["host_blocks"]) * int(advice.chosen["block_bytes"])
    ranks = spec.parallel.tensor_parallel_size
    fraction, block, tokens = config.free_gpu_memory_fraction, config.tokens_per_block, scheduler.max_num_tokens
    vllm = f"--block-size {block} --gpu-memory-utilization {fraction:g} --max-num-seqs {scheduler.max_batch_size}"
    vllm += f" --max-num-batched-tokens {tokens}"
    chunk = tokens if scheduler.enable_chunked_prefill else -1
    sglang = f"--page-size {block} --max-running-requests {scheduler.max_batch_size} --chunked-prefill-size {chunk}"
    dynamo = []
    if host:
        vllm += f" --kv-offloading-backend native --kv-offloading-size {host * ranks / 2**30:.0f}"
        sglang += f" --enable-hierarchical-cache --hicache-size {host / 1e9:.0f}"
        gigabytes = f"{host * ranks / 1e9:.0f}"
        dynamo.append(f"Dynamo: this file, or KVBM instead of the host cache: DYN_KVBM_CPU_CACHE_GB={gigabytes}")
    return [
        f"vLLM:   {vllm}",
        "        (its fraction is of all memory, not of what weights leave; no offload threshold, no priorities)",
        f"SGLang: {sglang}",
        "        (host copies are inclusive there: a host pool below the GPU pool's size gains nothing; no threshold)",
        *dynamo,
    ]


def retention(spec: Spec) -> list[str]:
    """The run's rules as requests carry them: TensorRT-LLM takes retention with each request, not from this file."""
    if not spec.retention:
        return []
    lines = ["Priorities come with each request (KvCacheRetentionConfig); this run used, first match first:"]
    for rule in spec.retention:
        part = "decode_retention_priority" if rule.decode else "token_range_retention_configs"
        what: dict[str, Any] = {
            "priority": rule.priority,
            "duration_ms": None if rule.duration_s is None else round(1e3 * rule.duration_s),
        }
        prompt = rule.system_prompt
        if prompt is not None and prompt.first_tokens is not None:
            what |= {"token_start": 0, "token_end": prompt.first_tokens}
        if prompt is not None and prompt.min_sessions is not None:
            what |= {"token_start": 0, "token_end": f"end of the prefix that {prompt.min_sessions} sessions share"}
        where = f" where {dict(rule.where)}" if rule.where else ""
        lines.append(f"  {part}: {json.dumps(what)}{where}")
    return lines
