"""Says in plain sentences why the runs of a sweep differ, from their rows: what stopped moving, what it saved and cost.

It measures nothing itself: every number is a figure of two rows of the table. What a priority is about comes from the
retention rules of the spec; what a copy costs beside its bytes comes from the hardware's host link.

    over thresholds     which priorities are no longer offloaded, the traffic saved, the hits and seconds it costs
    over block sizes    hits by tier, space in part-filled blocks, chains cut by dropped blocks, fixed cost of copies
    over anything else  hits, traffic and first tokens at each value and block size
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.pools import plan
from experiments.retention import DEFAULT_PRIORITY
from experiments.spec import Spec
from reports.columns import GIB, column
from reports.plots import shown
from reports.table import read_sweep
from sim.hardware import load_hardware
from sim.transfer import LinkDirection, descriptor_seconds

THRESHOLD = "secondary_offload_min_priority"
BLOCK = "tokens_per_block"
SELDOM = 0.01
"""Blocks of which fewer than this share come back were not worth their copy."""
FAR_LESS = 0.75
"""A fall to less than this share is put down to how generated tokens are kept."""


@dataclass(frozen=True)
class Runs:
    """The rows of a sweep, the keys it varied, the spec of each run."""

    frame: pd.DataFrame
    keys: Sequence[str]
    specs: dict[int, dict[str, Any]]

    def along(self, key: str, **fixed: Any) -> pd.DataFrame:
        """The rows in the order of `key`, every other key at the value in `fixed`, or else at the one it had first."""
        rows = self.frame
        for other in self.keys:
            if other != key:
                value = fixed.get(other, rows[other].iloc[0])
                rows = rows[_is(rows[other], value)]
        return rows.sort_values(key)

    def spec(self, rows: pd.DataFrame) -> Spec:
        """The spec of the first of `rows`."""
        return Spec.model_validate(self.specs[int(rows["run"].iloc[0])])


def why(directory: Path) -> list[str]:
    """The explanation of a finished sweep, one sentence or two a line."""
    frame, about = read_sweep(directory)
    frame = frame[frame["error"].isna()].copy()
    counts = [name for name in frame.columns if name.endswith("_blocks") or "_blocks_" in name]
    frame[counts] = frame[counts].fillna(0)
    specs = {}
    for line in (directory / "specs.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        specs[int(entry["run"])] = entry["spec"]
    runs = Runs(frame, [key for key in about["grid"] if frame[key].nunique(dropna=False) > 1], specs)
    lines = [f"{about['trace']}: {len(frame)} runs"]
    if THRESHOLD in runs.keys:
        lines += thresholds(runs)
    if BLOCK in runs.keys:
        lines += block_sizes(runs)
    for key in runs.keys:
        if key not in {THRESHOLD, BLOCK}:
            lines += other(runs, key)
    return lines


def rule_names(spec: Spec) -> dict[int, str]:
    """Which tokens have each priority, in words, by the retention rules."""
    names: dict[int, list[str]] = {}
    first = 0
    for rule in spec.retention:
        what = "every token"
        if rule.system_prompt is not None and rule.system_prompt.first_tokens is not None:
            last = rule.system_prompt.first_tokens
            what = f"prompt tokens {first:,} to {last:,}"
            first = first if rule.where else last
        elif rule.system_prompt is not None:
            what = f"prompt parts that {rule.system_prompt.min_sessions} sessions share"
        elif rule.turns:
            what = "the rest of the prompt" if first or len(spec.retention) > 1 else "the prompt"
        elif rule.decode:
            what = "generated tokens"
        where = " and ".join(f"{label} {'/'.join(values)}" for label, values in rule.where.items())
        names.setdefault(rule.priority, []).append(f"{what} of {where}" if where else what)
    if any(rule.duration_s is not None for rule in spec.retention) or DEFAULT_PRIORITY not in names:
        names.setdefault(DEFAULT_PRIORITY, []).append("TensorRT-LLM's default")
    return {priority: ", ".join(words) for priority, words in names.items()}


def thresholds(runs: Runs) -> list[str]:
    """One line for each step of the threshold that changes something."""
    rows = runs.along(THRESHOLD)
    names = rule_names(runs.spec(rows))
    lines = [f"Offload threshold ({_fixed(runs, rows, THRESHOLD)}):" if len(runs.keys) > 1 else "Offload threshold:"]
    for (_, low), (_, high) in itertools.pairwise(rows.iterrows()):
        gone = [p for p in _priorities(rows) if low[THRESHOLD] <= p < high[THRESHOLD] and _of(low, "offload", p)]
        if gone:
            lines.append(f"  {low[THRESHOLD]:g} to {high[THRESHOLD]:g}: " + _step(low, high, gone, names))
    lines.append("  Steps that are not listed change nothing: no block has a priority between them.")
    lines += [line for p in _priorities(rows) if p < DEFAULT_PRIORITY for line in _never_pays(rows.iloc[0], p)]
    if _timed(rows):
        best = rows.iloc[int(rows["ttft_mean_s"].argmin())]
        lines.append(
            f"  First tokens come soonest at {best[THRESHOLD]:g}: {_seconds(best['ttft_mean_s'])} in the mean."
        )
    return lines


def _step(low: pd.Series, high: pd.Series, gone: Sequence[int], names: dict[int, str]) -> str:
    what = " and ".join(f"priority {p} ({names.get(p, 'given by the trace')})" for p in gone)
    offloaded = sum(_of(low, "offload", p) for p in gone)
    back = sum(_of(low, "onboard", p) for p in gone)
    saved, lost = low["moved_bytes"] - high["moved_bytes"], low["hit_tokens"] - high["hit_tokens"]
    text = (
        f"blocks of {what} are dropped when evicted. Of {offloaded:,.0f} offloads {back / offloaded:.1%} had come back."
        f" Traffic falls by {saved / GIB:,.0f} GiB to {high['moved_bytes'] / GIB:,.0f}, tokens found"
        f" {'fall' if lost >= 0 else 'rise'} by {_many(abs(lost))} to {high['hit_rate_tokens']:.1%} of the prompts"
    )
    if not _timed(low):
        return f"{text}."
    return (
        f"{text}; the workers wait {_change(low, high, 'copy_wait_s')} for copies and compute"
        f" {_change(low, high, 'compute_s')}; the mean time to first token goes from {_seconds(low['ttft_mean_s'])} to"
        f" {_seconds(high['ttft_mean_s'])}."
    )


def _never_pays(row: pd.Series, priority: int) -> list[str]:
    """Below 35 host memory is of no use, whatever the threshold: say so where the rows show it."""
    offloaded, back = _of(row, "offload", priority), _of(row, "onboard", priority)
    if offloaded == 0 or back / offloaded >= SELDOM:
        return []
    return [
        f"  Priority {priority} does not pay in host memory: {back:,.0f} of {offloaded:,.0f} blocks came back. Empty"
        f" host slots wait at priority {DEFAULT_PRIORITY}, and the lowest priority is overwritten first: the next"
        " offload takes the place of such a block even while the pool is nearly empty."
    ]


def block_sizes(runs: Runs) -> list[str]:
    """What changes from the smallest to the largest block, at the lowest and the highest threshold."""
    values = sorted(runs.frame[THRESHOLD].unique()) if THRESHOLD in runs.keys else [None]
    lines = []
    for value in dict.fromkeys([values[0], values[-1]]):
        rows = runs.along(BLOCK, **({} if value is None else {THRESHOLD: value}))
        small, large = rows.iloc[0], rows.iloc[-1]
        where = _fixed(runs, rows, BLOCK)
        lines += [f"Block size {small[BLOCK]:g} to {large[BLOCK]:g} tokens{f' ({where})' if where else ''}:"]
        lines += [f"  {text}" for text in _sizes(runs, small, large)]
    return lines


def _sizes(runs: Runs, small: pd.Series, large: pd.Series) -> list[str]:
    both = (small, large)
    spec = Spec.model_validate(runs.specs[int(small["run"])])
    found, gpu, host = (
        _arrow(f"{row[name] / row['prompt_tokens']:.1%}" for row in both)
        for name in ("hit_tokens", "hit_tokens_gpu", "hit_tokens_host")
    )
    taken = [row["prompt_tokens"] + row["output_tokens"] + row["tail_tokens"] for row in both]
    empty = _arrow(f"{row['tail_tokens'] / total:.1%}" for row, total in zip(both, taken, strict=True))
    each = _arrow(f"{row['tail_tokens'] / row['requests']:.0f}" for row in both)
    lines = [
        f"tokens found: {found} of the prompts (on the GPU {gpu}, in host memory {host}).",
        f"part-filled last blocks: {empty} of the space requests take is empty ({each} tokens a request), so the same"
        " pools hold less.",
    ]
    causes = ("misses_dropped_below_threshold_blocks", "misses_evicted_from_host_blocks")
    cut = [sum(float(row.get(cause, 0)) for cause in causes) * row[BLOCK] for row in both]
    if any(cut):
        lines.append(f"recomputed because a block was dropped or lost from the host: {_arrow(map(_many, cut))}.")
    decode = next((rule.priority for rule in spec.retention if rule.decode), DEFAULT_PRIORITY)
    prompt = min((rule.priority for rule in spec.retention if not rule.decode), default=DEFAULT_PRIORITY)
    if decode < prompt and cut[1] < FAR_LESS * cut[0]:
        lines[-1] += (
            f" Generated tokens have priority {decode}, the prompt at least {prompt}, and a block has the priority of"
            " its first token: the larger the block, the more of an answer shares the prompt's last block and is kept"
            " with it."
        )
    if small["moved_bytes"] and large["moved_bytes"]:
        lines.append(_copies(runs, both))
    return lines


def _copies(runs: Runs, both: Sequence[pd.Series]) -> str:
    """How many copies, what of their time is not bytes at full speed, how long the GPU waited."""
    count = [row["offload_blocks"] + row["onboard_blocks"] for row in both]
    size = [row["block_bytes"] / 2**20 for row in both]
    text = (
        f"copies: {_arrow(f'{n:,.0f}' for n in count)} of {_arrow(f'{mib:g}' for mib in size)} MiB;"
        f" {_arrow(f'{_fixed_share(runs, row):.0%}' for row in both)} of their time is fixed cost, not bytes"
    )
    if _timed(both[0]):
        text += f"; the workers wait {_arrow(_seconds(row['copy_wait_s']) for row in both)} for them"
    return f"{text}."


def _fixed_share(runs: Runs, row: pd.Series) -> float:
    """The share of copy time that a link without any cost a descriptor would not need (first window's blocks)."""
    spec = Spec.model_validate(runs.specs[int(row["run"])])
    host, sizes = load_hardware(spec.hardware).link("host"), plan(spec, 1).copy_bytes[0]
    takes = sum(row["offload_blocks"] * descriptor_seconds(host.d2h, size) for size in sizes)
    takes += sum(row["onboard_blocks"] * descriptor_seconds(host.h2d, size) for size in sizes)
    bytes_alone = row["offload_blocks"] / _top(host.d2h) + row["onboard_blocks"] / _top(host.h2d)
    return float(1 - sum(sizes) * bytes_alone / takes)


def _top(direction: LinkDirection) -> float:
    return max([direction.bandwidth_bytes_per_s, *(rate for _, rate in direction.table)])


def other(runs: Runs, key: str) -> list[str]:
    """What another setting changes in hits, traffic and first tokens, at each block size."""
    values = runs.frame[key].drop_duplicates().tolist()
    name, divisor = _named(runs, key), column(key).divisor
    unit = f" {column(key).unit.split()[0]}" if divisor != 1 else ""
    listed = ", ".join(shown(value / divisor if divisor != 1 else value) for value in values)
    lines = [f"{name[0].upper()}{name[1:]} {listed}{unit}:"]
    sizes = sorted(runs.frame[BLOCK].unique()) if BLOCK in runs.keys else [None]
    for size in sizes:
        rows = runs.along(key, **({} if size is None else {BLOCK: size}))
        head = "  " if size is None else f"  at {size:g} tokens a block: "
        lines.append(head + "; ".join(_along(pd.concat([rows[_is(rows[key], value)].head(1) for value in values]))))
    return lines


def _along(rows: pd.DataFrame) -> Iterator[str]:
    """Hits, traffic and the mean time to first token of each row, those that there are."""
    yield "tokens found " + ", ".join(f"{found:.1%}" for found in rows["hit_rate_tokens"])
    if rows["moved_bytes"].any():
        yield "moved " + ", ".join(f"{moved / GIB:,.3g}" for moved in rows["moved_bytes"]) + " GiB"
    if _timed(rows):
        yield "mean time to first token " + ", ".join(map(_seconds, rows["ttft_mean_s"]))


def _is(column: "pd.Series[Any]", value: Any) -> "pd.Series[bool]":
    """Which rows have this value; nothing is the same as nothing."""
    return column.isna() if pd.isna(value) else column == value


def _named(runs: Runs, key: str) -> str:
    """A setting in words; the priority of a retention rule by what the rule is about."""
    parts = key.split(".")
    if parts[0] != "retention" or parts[-1] != "priority":
        return column(key).label
    spec = runs.spec(runs.frame)
    return f"priority of {rule_names(spec)[spec.retention[int(parts[1])].priority]}"


def _fixed(runs: Runs, rows: pd.DataFrame, key: str) -> str:
    """The other keys' values, as words."""
    return ", ".join(f"{column(k).short or column(k).label} {shown(rows[k].iloc[0])}" for k in runs.keys if k != key)


def _priorities(rows: pd.DataFrame) -> list[int]:
    return sorted(int(c.removeprefix("offload_blocks_")) for c in rows.columns if c.startswith("offload_blocks_"))


def _of(row: pd.Series, what: str, priority: int) -> float:
    return float(row.get(f"{what}_blocks_{priority}", 0))


def _timed(row: pd.DataFrame | pd.Series) -> bool:
    return "ttft_mean_s" in row and bool(np.all(pd.notna(row["ttft_mean_s"])))


def _many(tokens: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter} tokens"
    return f"{tokens:.0f} tokens"


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:,.4g} s"


def _change(low: pd.Series, high: pd.Series, name: str) -> str:
    change = high[name] - low[name]
    return f"{_seconds(abs(change))} {'less' if change <= 0 else 'more'}"


def _arrow(texts: Any) -> str:
    return " → ".join(dict.fromkeys(texts))
