"""What a cache without limit could find of a workload: an edge that no run crosses, whatever its pools, policy or workers.

A unit of content (a token, or a block of hashes) that prompts ask for and no answer ever holds has to be computed once. So
the prompts' tokens less one of each such unit is the most that can be found; and the last token of a prompt is always
computed. It says nothing of what a cache of a given size can find: that is `kvcache.bound`.
"""

from dataclasses import replace

import numpy as np

from kvcache.curve import prefix_blocks
from kvcache.request import Int64, Requests

MOST_UNITS = 20_000_000
"""Beyond so many units (1 GiB of tables) nothing is said."""


def unlimited_hit_rate(requests: Requests) -> float | None:
    """The most of all prompt tokens that can be found, 0 to 1; None for a workload too large to look at."""
    total = int(requests.prompt_tokens.sum(dtype=np.int64))
    units = len(requests.units) + (0 if requests.output_units is None else len(requests.output_units))
    if units > MOST_UNITS or not total:
        return None
    whole, tokens = _with_answers(requests)
    blocks, _ = prefix_blocks(whole)
    cost = np.full(int(blocks.max(initial=0)) + 1, requests.unit_tokens, np.int64)
    np.minimum.at(cost, blocks, tokens)
    wanted = np.zeros(len(cost), np.bool_)
    wanted[blocks] = True
    return (total - max(int(cost[wanted].sum()), len(requests))) / total


def _with_answers(requests: Requests) -> tuple[Requests, Int64]:
    """Prompts and known answers as one row of units a request, and the prompt tokens in each unit: 0 for an answer's."""
    unit = requests.unit_tokens
    if requests.output_offset is None or requests.output_units is None:
        units = np.diff(requests.unit_offset)
        at = _slices(np.zeros(len(units), np.int64), units)
        left = np.repeat(requests.prompt_tokens.astype(np.int64), units) - at * unit
        return requests, np.minimum(left, unit)
    full = requests.prompt_tokens.astype(np.int64) // unit
    prompts = _slices(requests.unit_offset[:-1], full)
    answers = np.diff(requests.output_offset)
    offset = np.concatenate([[0], np.cumsum(full + answers)])
    units, tokens = np.empty(int(offset[-1]), np.int32), np.zeros(int(offset[-1]), np.int64)
    place = _slices(offset[:-1], full)
    units[place], tokens[place] = requests.units[prompts], unit
    units[tokens == 0] = requests.output_units
    return replace(requests, unit_offset=offset, units=units, output_offset=None, output_units=None), tokens


def _slices(start: Int64, length: Int64) -> Int64:
    """The indices start[i], start[i] + 1, ... of every i, one after the other."""
    before = np.cumsum(length) - length
    places: Int64 = np.arange(int(length.sum()), dtype=np.int64) + np.repeat(start - before, length)
    return places
