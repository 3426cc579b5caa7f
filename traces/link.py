"""Gives answers whose content a trace does not name the content that the next turn's prompt has in their place.

A turn's answer is linked where the next request of its session begins with all whole units of this prompt and is at least
as long as prompt and answer together. That is an inference: a client may strip or rewrite an answer before it sends it
back, so what is found again this way is an upper bound, and without links a lower one. Times are not looked at.
"""

from dataclasses import replace

import numpy as np

from kvcache.compiled import compiled
from kvcache.request import Int32, Int64, Requests
from traces.stream import offsets


def linked(requests: Requests) -> tuple[Requests, int]:
    """The workload with the answers that could be linked, and how many; one that names answers stays as it is."""
    if requests.output_units is not None or not len(requests.units):
        return requests, 0
    following = next_of_session(requests.session)
    start, length = np.zeros(len(requests), np.int64), np.zeros(len(requests), np.int64)
    _spans(
        (requests.unit_offset, requests.units, requests.prompt_tokens, requests.output_tokens),
        following,
        requests.unit_tokens,
        start,
        length,
    )
    if not length.any():
        return requests, 0
    offset = offsets(length)
    at = np.repeat(start - offset[:-1], length) + np.arange(offset[-1])
    linked_ = replace(requests, output_offset=offset, output_units=requests.units[at])
    return linked_, int((length > 0).sum())


def next_of_session(session: Int32) -> Int64:
    """For each request the next one of its session, or -1."""
    order = np.argsort(session, kind="stable")
    following = np.full(len(session), -1, np.int64)
    same = (session[order[:-1]] == session[order[1:]]) & (session[order[:-1]] >= 0)
    following[order[:-1][same]] = order[1:][same]
    return following


@compiled
def _spans(
    columns: tuple[Int64, Int32, Int32, Int32], following: Int64, unit_tokens: int, start: Int64, length: Int64
) -> None:
    """Where in `units` the content of each answer stands, and over how many whole units."""
    offset, units, prompt, output = columns
    for i in range(len(following)):
        j = following[i]
        end = int(prompt[i]) + int(output[i])
        if j < 0 or prompt[j] < end:
            continue
        first = int(prompt[i]) // unit_tokens
        n = end // unit_tokens - first
        if n <= 0 or offset[i] + first > offset[i + 1] or offset[j] + first + n > offset[j + 1]:
            continue
        is_alike = True
        for k in range(first):
            if units[offset[i] + k] != units[offset[j] + k]:
                is_alike = False
                break
        if is_alike:
            start[i] = offset[j] + first
            length[i] = n
