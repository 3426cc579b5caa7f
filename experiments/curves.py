"""What `kvtier curve` does once its options are read: one point for each policy and capacity."""

from dataclasses import asdict
from typing import Any

from experiments import console
from experiments.trace import Trace
from kvcache.curve import CurveRow
from kvcache.curve import curve as point

Rows = list[dict[str, Any]]


def curves(
    trace: Trace, view: str, policies: str, capacities: str, host_capacity: int | None, inclusion: str
) -> tuple[Rows, list[str]]:
    """The points as plain rows, and what there is to note about the trace."""
    sizes = [_blocks(text) for text in _words(capacities)]
    if not sizes or not _words(policies):
        raise ValueError("--capacity and --policy need at least one value each")
    requests = trace.requests()
    rows = [
        _row(
            point(
                requests,
                view=view,
                policy=policy,
                capacity_blocks=size,
                host_capacity_blocks=host_capacity,
                inclusion=inclusion,
            ),
            requests.unit_tokens,
        )
        for policy in _words(policies)
        for size in sizes
    ]
    return rows, list(requests.notes)


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


def show(rows: Rows, notes: list[str], json: str | None) -> None:
    """Notes, then the table; with `--json FILE` the rows go there, and with `-` they take the table's place."""
    console.note(notes)
    if json is not None:
        console.write_json(rows, json)
    if json != "-":
        console.curve_table(rows)
    if json not in {None, "-"}:
        console.say(str(json))
