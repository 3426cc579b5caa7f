"""The seconds of one engine step in the form that all cost models fill in: what the compiled loops read, and how.

It schedules nothing, moves no cache blocks and knows no machine: `sim.roofline`, `sim.measured` and `sim.aiconfigurator`
fill in the figures, `sim.cost_models` picks one of them by name. A step is a sum of kernels that run one after the other:

    dense layers       matrix products, norms apart; experts apart, and only the experts that some token of the batch is
                       expected to reach are read; the output head, for tokens that want it
    activations        what norms, rotary embedding and the gate read and write
    prefill attention  max(FLOPs, cache bytes of the chunks' contexts); a query token costs as much as
                       `half_context_tokens` more of context, which is how short prompts lose efficiency
    decode attention   max(cache bytes, FLOPs), and a fixed time a layer
    all-reduce         by the token; its latency is in `fixed`
    fixed              kernels x their latency, and a step's own overhead

`CostParams` holds figures by name and up to three tables (`sim.surface`). DENSE, seconds a token by tokens of the step, is
always there. PREFILL, seconds a pair and layer by mean context and prefill tokens, and DECODE, seconds a context token and
layer by context tokens and sequences, take the place of the formulas above where they stand.

Pipeline parallelism cuts a step into as many micro-batches as there are stages (fewer if fewer sequences run; prompts
count as one): each passes all layers while the others are on other stages, so a step takes one micro-batch's time through
all of them, and its hidden states' way from stage to stage.

Units of work. `pairs` counts query token x context token: a chunk of c tokens after b others makes c * (b + c / 2);
sum over chunks. Sliding-window layers see less, so the exact form `step_seconds_windowed` takes, beside each sum, the
same sum with every context cut to the window (`context_pairs`); `step_seconds` works it out from the means instead: it
is exact for models without a window, for one chunk beyond the window, and where all sequences are longer (or all
shorter) than it. It takes prefill tokens to be one chunk: with several, their context is read once too few.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import loop
from sim.surface import Numbers, beyond, surface_value

CostParams = NDArray[np.float64]

(
    HEAD_S_PER_SEQ,
    HEAD_READ_S,
    EXPERT_S_PER_TOKEN,
    EXPERT_READ_S,
    EXPERTS,
    LOG_MISS,
    ACTIVATION_S_PER_TOKEN,
    FULL_LAYERS,
    WINDOW_LAYERS,
    WINDOW_TOKENS,
    PAIR_S,
    HALF_CONTEXT,
    CONTEXT_READ_S_FULL,
    CONTEXT_READ_S_WINDOW,
    DECODE_PAIR_S,
    ATTENTION_LATENCY_S,
    DECODE_LATENCY_S,
    REDUCE_S_PER_TOKEN,
    FIXED_S,
    STAGES,
    LIMITED,
    DENSE,
    PREFILL,
    DECODE,
    COUNT,
) = range(25)
"""What each place of `CostParams` holds. Seconds are of one rank, over all its layers, unless the name says layer. STAGES:
pipeline stages. LIMITED: 1 if the tables were measured, so that what lies beyond them is to be told. The last three: where
a table begins; 0: it is not there."""


class CostModel(Protocol):
    """Seconds of the steps of one model on one machine."""

    @property
    def params(self) -> CostParams:
        """What the compiled functions read."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the seconds come from and what they leave out, for whoever reads the results; empty: nothing to say."""


def assembled(figures: Mapping[int, float], tables: Mapping[int, Numbers]) -> CostParams:
    """Figures by place and tables by DENSE, PREFILL, DECODE put into one array."""
    params = np.zeros(COUNT, np.float64)
    params[STAGES] = 1.0
    params[WINDOW_TOKENS] = math.inf
    for place, value in figures.items():
        params[place] = value
    for place, table in tables.items():
        params[place] = len(params)
        params = np.concatenate([params, table])
    return params


@loop
def context_pairs(context_before: float, chunk_tokens: float, window_tokens: float) -> float:
    """Query x context token pairs of one chunk, each context cut to the window (`math.inf`: none)."""
    before, chunk, window = float(context_before), float(chunk_tokens), float(window_tokens)
    if before >= window:
        return chunk * window
    growing = min(chunk, window - before)
    pairs = growing * (before + growing / 2.0)
    if growing < chunk:
        pairs += (chunk - growing) * window
    return pairs


@loop
def dense_seconds(params: CostParams, tokens: float, seqs: float) -> float:
    """What every token passes and attention is not: dense layers, experts, the output head of `seqs` tokens."""
    dense = tokens * surface_value(params, int(params[DENSE]), tokens, 1.0)
    dense += max(seqs * params[HEAD_S_PER_SEQ], params[HEAD_READ_S])
    seconds = dense + tokens * (params[ACTIVATION_S_PER_TOKEN] + params[REDUCE_S_PER_TOKEN])
    experts = params[EXPERTS]
    if experts > 0.0:
        reached = experts
        if params[LOG_MISS] < 0.0:
            reached = experts * (1.0 - math.exp(tokens * params[LOG_MISS]))
        seconds += max(tokens * params[EXPERT_S_PER_TOKEN], reached * params[EXPERT_READ_S])
    return float(seconds)


@loop
def prefill_seconds(params: CostParams, tokens: float, pairs: float, window_pairs: float, context: float) -> float:
    """Attention of `tokens` > 0 query tokens over contexts of `context` in all."""
    full, sliding = params[FULL_LAYERS], params[WINDOW_LAYERS]
    seen = full * pairs
    read = params[CONTEXT_READ_S_FULL] * context
    if sliding > 0.0:
        seen += sliding * window_pairs
        read += params[CONTEXT_READ_S_WINDOW] * min(context, tokens + params[WINDOW_TOKENS])
    if params[PREFILL] > 0.0:
        mean = seen / (tokens * (full + sliding))
        work = seen * surface_value(params, int(params[PREFILL]), mean, tokens)
    else:
        work = (seen + (full + sliding) * tokens * params[HALF_CONTEXT]) * params[PAIR_S]
    return float(params[ATTENTION_LATENCY_S] + max(work, read))


@loop
def decode_seconds(params: CostParams, seqs: float, context: float, window_context: float) -> float:
    """Attention of `seqs` > 0 sequences that make a token each, over contexts of `context` in all."""
    full, sliding = params[FULL_LAYERS], params[WINDOW_LAYERS]
    pairs = full * context
    if sliding > 0.0:
        pairs += sliding * window_context
    if params[DECODE] > 0.0:
        at = int(params[DECODE])
        read = full * context * surface_value(params, at, context, seqs)
        if sliding > 0.0:
            read += sliding * window_context * surface_value(params, at, window_context, seqs)
    else:
        read = params[CONTEXT_READ_S_FULL] * context
        if sliding > 0.0:
            read += params[CONTEXT_READ_S_WINDOW] * window_context
    return float(params[DECODE_LATENCY_S] + max(pairs * params[DECODE_PAIR_S], read))


@loop
def step_seconds_windowed(
    params: CostParams,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_window_pairs: float,
    prefill_context_tokens: float,
    decode_seqs: float,
    decode_context_tokens: float,
    decode_window_tokens: float,
) -> float:
    """Seconds of one step, exact in all its sums; no token is no time. `prefill_context_tokens` sums the chunks'
    contexts, chunks included; the `_window_` sums cut each context to the window and are unused without one."""
    prefill, seqs = float(prefill_tokens), float(decode_seqs)
    if prefill + seqs <= 0.0:
        return 0.0
    running = seqs + 1.0 if prefill > 0.0 else seqs
    batches = max(1.0, min(params[STAGES], running))
    seconds = params[FIXED_S] + dense_seconds(params, (prefill + seqs) / batches, seqs / batches)
    if prefill > 0.0:
        seconds += prefill_seconds(
            params,
            prefill / batches,
            float(prefill_pairs) / batches,
            float(prefill_window_pairs) / batches,
            float(prefill_context_tokens) / batches,
        )
    if seqs > 0.0:
        contexts, cut = float(decode_context_tokens), float(decode_window_tokens)
        seconds += decode_seconds(params, seqs / batches, contexts / batches, cut / batches)
    return float(seconds)


@loop
def is_beyond(
    params: CostParams, prefill: float, pairs: float, window_pairs: float, seqs: float, contexts: float
) -> bool:
    """Whether a step lies outside what was measured, so that the nearest measurement's rate stood in for it."""
    if params[LIMITED] < 1.0 or prefill + seqs <= 0.0:
        return False
    if beyond(params, int(params[DENSE]), prefill + seqs, 1.0):
        return True
    if prefill > 0.0 and params[PREFILL] > 0.0:
        full, sliding = params[FULL_LAYERS], params[WINDOW_LAYERS]
        mean = (full * pairs + sliding * window_pairs) / (prefill * (full + sliding))
        if beyond(params, int(params[PREFILL]), mean, prefill):
            return True
    return bool(seqs > 0.0 and params[DECODE] > 0.0 and beyond(params, int(params[DECODE]), contexts, seqs))


@loop
def step_seconds(
    params: CostParams,
    prefill_tokens: float,
    prefill_attention_token_pairs: float,
    decode_seqs: float,
    decode_context_tokens: float,
) -> float:
    """`step_seconds_windowed` with what the window leaves taken from the means; see the top of this file."""
    prefill, pairs = float(prefill_tokens), float(prefill_attention_token_pairs)
    seqs, contexts = float(decode_seqs), float(decode_context_tokens)
    window = params[WINDOW_TOKENS]
    window_pairs = 0.0
    context = 0.0
    if prefill > 0.0:
        before = max(pairs / prefill - prefill / 2.0, 0.0)
        context = before + prefill
        window_pairs = context_pairs(before, prefill, window)
    window_tokens = 0.0
    if seqs > 0.0:
        window_tokens = min(contexts, seqs * window)
    return step_seconds_windowed(params, prefill, pairs, window_pairs, context, seqs, contexts, window_tokens)
