"""What `kvtier curve` does once its options are read: one point for each policy and capacity, or for all sizes.

LRU's hits at every size come from one pass (`kvcache.distances`, exact); each other policy is replayed at each size, on
all blocks or on samples of them. `min` is the clairvoyant bound, and head-room says how far between LRU and it a policy is.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import console
from experiments.trace import Trace
from kvcache.bound import min_hits
from kvcache.curve import CurveRow, prefix_blocks, tokens_of_units
from kvcache.curve import curve as point
from kvcache.distances import hits_by_size, lru_distances, sampled
from kvcache.policies import POLICIES
from kvcache.request import Requests

Rows = list[dict[str, Any]]
MIN = "min"
SIZES = 24  # of a curve over all sizes, evenly spread on a logarithmic axis
SAMPLES = 4


class Tiers(NamedTuple):
    """A second tier in trace blocks (None: there is none), what it has in common with the first, and where evicting stops."""

    host_capacity: int | None = None
    inclusion: str = "exclusive"
    low_watermark: float = 1.0


ALONE = Tiers()


def curves(trace: Trace, view: str, policies: str, capacities: str, tiers: Tiers) -> tuple[Rows, list[str]]:
    """The points as plain rows, and what there is to note about the trace."""
    sizes = [_blocks(text) for text in _words(capacities)]
    if not sizes or not _words(policies):
        raise ValueError("--capacity and --policy need at least one value each")
    requests = trace.requests()
    rows = [
        _row(_point(requests, view, policy, size, tiers), requests.unit_tokens)
        for policy in _words(policies)
        for size in sizes
    ]
    return _with_headroom(rows), list(requests.notes)


def all_sizes(trace: Trace, view: str, policies: str, sample: float | None) -> tuple[Rows, list[str]]:
    """Curves from one block to all blocks of the trace; with `sample` those of other policies than LRU from samples."""
    if sample is not None and (view != "flat" or not 0 < sample < 1):
        raise ValueError(f"--sample {sample}: a share of the blocks between 0 and 1, and only with --view flat")
    if not _words(policies):
        raise ValueError("--policy needs at least one value")
    requests = trace.requests()
    _, parents = prefix_blocks(requests)
    sizes = np.unique(np.geomspace(1, len(parents), SIZES).round().astype(np.int64)).tolist()
    rows: Rows = []
    for policy in _words(policies):
        if policy == "lru":
            rows += _lru_rows(requests, view, sizes)
        elif sample is None or policy == MIN:
            found = (_point(requests, view, policy, size, ALONE) for size in sizes)
            rows += [_row(row, requests.unit_tokens) for row in found]
        else:
            rows += _sampled_rows(requests, policy, sizes, sample)
    return _with_headroom(rows), list(requests.notes)


def _point(requests: Requests, view: str, policy: str, size: int | None, tiers: Tiers) -> CurveRow:
    host, inclusion = tiers.host_capacity, tiers.inclusion
    if policy != MIN:
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; known are {', '.join((*POLICIES, MIN))}")
        return point(
            requests,
            view=view,
            policy=policy,
            capacity_blocks=size,
            host_capacity_blocks=host,
            inclusion=inclusion,
            low_watermark=tiers.low_watermark,
        )
    blocks, parents = prefix_blocks(requests)
    room = len(parents) if size is None else size
    looked_up = np.ones(len(blocks), np.bool_)
    warm = min_hits(blocks, looked_up, room)
    hit = (
        warm
        if host is None
        else min_hits(blocks, looked_up, max(room, host) if inclusion == "inclusive" else room + host)
    )
    return CurveRow(
        view=view,
        policy=MIN,
        capacity_blocks=-1 if size is None else size,
        host_capacity_blocks=host or 0,
        inclusion="none" if host is None else inclusion,
        hit_blocks=int(hit.sum()),
        lookup_blocks=len(blocks),
        hit_blocks_by_tier=(int(warm.sum()), int(hit.sum() - warm.sum())),
        evictions=0,
        hit_tokens=int(tokens_of_units(requests)[hit].sum(dtype=np.int64)),
        prompt_tokens=int(requests.prompt_tokens.sum(dtype=np.int64)),
        copied_down=0 if host is None else None,
    )


def _lru_rows(requests: Requests, view: str, sizes: list[int]) -> Rows:
    """LRU at all sizes from one pass."""
    if view not in {"flat", "tree"}:
        raise ValueError(f"view is {view!r}; known are flat, tree")
    blocks, parents = prefix_blocks(requests)
    offset = requests.unit_offset if view == "tree" else np.arange(len(blocks) + 1)
    distance = lru_distances(blocks, offset, len(parents))
    hits, tokens = hits_by_size(distance), hits_by_size(distance, tokens_of_units(requests).astype(np.int64))
    prompt_tokens = int(requests.prompt_tokens.sum(dtype=np.int64))
    rows = []
    for size in sizes:
        at = min(size, len(hits) - 1)
        found = CurveRow(
            view,
            "lru",
            size,
            0,
            "none",
            int(hits[at]),
            len(blocks),
            (int(hits[at]), 0),
            0,
            int(tokens[at]),
            prompt_tokens,
        )
        rows.append(_row(found, requests.unit_tokens))
    return rows


def _sampled_rows(requests: Requests, policy: str, sizes: list[int], rate: float) -> Rows:
    """Rates from samples of the blocks, each row with the standard error of its mean over the samples.

    A sample has too many or too few accesses by the hottest blocks that are in it or not; as SHARDS_adj does, the difference
    to the expected number counts as hits.
    """
    blocks, _ = prefix_blocks(requests)
    parts = [sampled(requests, blocks, rate, seed) for seed in range(SAMPLES)]
    rows = []
    for size in sizes:
        room = max(1, round(size * rate))
        found = [_point(part, "flat", policy, room, ALONE) for part in parts]
        expected = rate * len(blocks)
        rates = np.array([max(0.0, 1 - (row.lookup_blocks - row.hit_blocks) / expected) for row in found])
        row = _row(found[0], requests.unit_tokens)
        row |= {
            "capacity_blocks": size,
            "hit_rate_blocks": float(rates.mean()),
            "hit_rate_tokens": None,
            "hit_rate_blocks_error": float(rates.std(ddof=1) / np.sqrt(len(rates))),
            "sample": rate,
        }
        for counted in (
            "hit_blocks",
            "lookup_blocks",
            "hit_tokens",
            "prompt_tokens",
            "evictions",
            "hit_blocks_by_tier",
        ):
            del row[counted]
        rows.append(row)
    return rows


def _with_headroom(rows: Rows) -> Rows:
    """Adds (policy - LRU) / (bound - LRU) of the block hit rate, where both are there and differ."""
    by_size = {(row["policy"], row["capacity_blocks"]): row["hit_rate_blocks"] for row in rows}
    for row in rows:
        lru, bound = (by_size.get((name, row["capacity_blocks"])) for name in ("lru", MIN))
        if lru is not None and bound is not None and bound > lru:
            row["headroom"] = (row["hit_rate_blocks"] - lru) / (bound - lru)
    return rows


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _blocks(text: str) -> int | None:
    """A capacity; None for inf."""
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if size == float("inf"):
        return None
    if size < 1 or not size.is_integer():
        raise ValueError(f"--capacity {text}: must be a whole number of trace blocks, 1 or more, or inf")
    return int(size)


def _row(found: CurveRow, block_tokens: int) -> dict[str, Any]:
    warm, cold = found.hit_blocks_by_tier
    return {
        **asdict(found),
        "capacity_blocks": None if found.capacity_blocks < 0 else found.capacity_blocks,
        "block_tokens": block_tokens,
        "hit_blocks_by_tier": {"warm": warm, "cold": cold},
        "hit_rate_blocks": found.hit_rate_blocks,
        "hit_rate_tokens": found.hit_rate_tokens,
    }


def show(rows: Rows, notes: list[str], json: str | None, plot: Path | None) -> None:
    """Notes, then the table; with `--json FILE` the rows go there, and with `-` they take the table's place."""
    console.note(notes)
    if json is not None:
        console.write_json(rows, json)
    if json != "-":
        console.curve_table(rows)
    for written in _files(rows, json, plot):
        console.say(written)


def _files(rows: Rows, json: str | None, plot: Path | None) -> Iterator[str]:
    if json not in {None, "-"}:
        yield str(json)
    if plot is not None:
        from reports.curves import plot_curves

        yield str(plot_curves(rows, plot))
