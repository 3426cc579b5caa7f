"""Whose iteration an engine follows: TensorRT-LLM's (`kvcache.engine`, or `kvcache.overlap` with its overlap scheduler) or
vLLM's (`kvcache.vllm_engine`).

Only the choice is here, so that machine code is made for the engine in use and no other.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvcache.engine import begin_step, end_step
from kvcache.line import L_OVERLAP, L_POLICY, VLLM, Engine
from kvcache.overlap import overlap_ahead, overlap_begin, overlap_end
from kvcache.vllm_engine import vllm_begin, vllm_end


class Iteration(NamedTuple):
    """The two halves of an engine's step, and what is scheduled between them, once the step's copies have been taken."""

    begin: Callable[[Engine, float], bool]
    end: Callable[[Engine, float], int]
    ahead: Callable[[Engine, float], None] | None = None


def is_vllm(e: Engine) -> bool:
    """The engine follows vLLM's rules."""
    return bool(e.line.limits[L_POLICY] >= VLLM)


def overlaps(e: Engine) -> bool:
    """The engine follows TensorRT-LLM's overlap scheduler."""
    return bool(e.line.limits[L_OVERLAP])


def iteration(e: Engine) -> Iteration:
    """The rules that engine `e` was made for."""
    if is_vllm(e):
        return Iteration(vllm_begin, vllm_end)
    return Iteration(overlap_begin, overlap_end, overlap_ahead) if overlaps(e) else Iteration(begin_step, end_step)
