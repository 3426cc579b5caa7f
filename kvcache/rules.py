"""Whose iteration an engine follows: TensorRT-LLM's (`kvcache.engine`) or vLLM's (`kvcache.vllm_engine`).

Only the choice is here, so that machine code is made for the engine in use and no other.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvcache.engine import begin_step, end_step
from kvcache.line import L_POLICY, VLLM, Engine
from kvcache.vllm_engine import vllm_begin, vllm_end


class Iteration(NamedTuple):
    """The two halves of an engine's step."""

    begin: Callable[[Engine, float], bool]
    end: Callable[[Engine, float], int]


def is_vllm(e: Engine) -> bool:
    """The engine follows vLLM's rules."""
    return bool(e.line.limits[L_POLICY] >= VLLM)


def iteration(e: Engine) -> Iteration:
    """The rules that engine `e` was made for."""
    return Iteration(vllm_begin, vllm_end) if is_vllm(e) else Iteration(begin_step, end_step)
