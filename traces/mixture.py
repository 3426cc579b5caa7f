"""Merges several workloads into one by time, and keeps their content, sessions, namespaces and labels apart.

It changes nothing else. Number i of workload k among n becomes i * n + k, so equal numbers never meet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvcache.request import Int32, Labels, Requests
from traces.errors import TraceError
from traces.fields import INT32_MAX
from traces.stream import Stream, joined


def mixed(source: str, streams: Sequence[Stream], names: Sequence[str]) -> Stream:
    """One stream of all; a label `part` says by name where a request comes from."""
    sizes = {stream.unit_tokens for stream in streams}
    if len(sizes) > 1:
        said = ", ".join(f"{name} {stream.unit_tokens}" for name, stream in zip(names, streams, strict=True))
        raise TraceError(
            f"workloads of one mixture need blocks of one size; these have: {said} tokens (--tokens-per-block cuts files)"
        )
    notes = [note for stream in streams for note in stream.notes]
    return Stream(source, streams[0].unit_tokens, _merged(source, streams, tuple(names)), notes)


def _merged(source: str, streams: Sequence[Stream], names: tuple[str, ...]) -> Iterator[Requests]:
    """Pieces up to the time that all workloads have reached."""
    codes: dict[str, dict[str, int]] = {}
    parts = [_in_its_numbers(stream, k, len(streams), names, codes) for k, stream in enumerate(streams)]
    heads: dict[int, Requests] = {}
    while True:
        for k, part in enumerate(parts):
            while k not in heads or len(heads[k]) == 0:
                piece = next(part, None)
                if piece is None:
                    break
                heads[k] = piece
        heads = {k: head for k, head in heads.items() if len(head)}
        if not heads:
            return
        until_s = min(float(head.arrival_s[-1]) for head in heads.values())
        ready = {k: int(np.searchsorted(head.arrival_s, until_s, side="right")) for k, head in heads.items()}
        yield _by_time(source, [heads[k].head(n) for k, n in ready.items()], codes)
        heads = {k: head.take(np.arange(ready[k], len(head))) for k, head in heads.items()}


def _in_its_numbers(
    stream: Stream, k: int, n: int, names: tuple[str, ...], codes: dict[str, dict[str, int]]
) -> Iterator[Requests]:
    for piece in stream.pieces:
        yield _apart(piece, k, n, names, codes)


def _by_time(source: str, pieces: list[Requests], codes: dict[str, dict[str, int]]) -> Requests:
    names = {label: tuple(known) for label, known in codes.items()}
    pieces = [
        replace(p, labels={label: Labels(v.codes, names[label]) for label, v in p.labels.items()}) for p in pieces
    ]
    whole = joined(Stream(source, pieces[0].unit_tokens, iter(pieces)))
    return whole.take(np.argsort(whole.arrival_s, kind="stable"))


def _apart(piece: Requests, k: int, n: int, names: tuple[str, ...], codes: dict[str, dict[str, int]]) -> Requests:
    """A piece in the numbers of the mixture."""
    labels = {label: _recoded(column, codes.setdefault(label, {})) for label, column in piece.labels.items()}
    part = Labels(np.full(len(piece), k, np.int32), names)
    codes.setdefault("part", dict.fromkeys(names, 0))
    return replace(
        piece,
        units=_spread(piece.units, k, n),
        output_units=None if piece.output_units is None else _spread(piece.output_units, k, n),
        session=_spread(piece.session, k, n),
        salt=_spread(piece.salt, k, n),
        lora=_spread(piece.lora, k, n),
        labels=labels | {"part": part},
    )


def _spread(numbers: Int32, k: int, n: int) -> Int32:
    if len(numbers) and (int(numbers.max()) + 1) * n > INT32_MAX:
        raise TraceError(f"the numbers of {n} mixed workloads do not fit: mix fewer, or cut larger blocks")
    return np.where(numbers < 0, numbers, numbers * n + k).astype(np.int32)


def _recoded(column: Labels, known: dict[str, int]) -> Labels:
    codes = np.array([known.setdefault(name, len(known)) for name in column.names] or [0], np.int32)
    return Labels(np.where(column.codes < 0, -1, codes[column.codes]).astype(np.int32), column.names)
