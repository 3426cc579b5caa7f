"""The one door to the compiler: it turns plain loops over integer tables into machine code, cached on disk.

With NUMBA_DISABLE_JIT=1 the same source runs as ordinary Python: that is how it is stepped through and measured for
coverage.

Integers of any width arrive as int64. Left alone, numba makes one version for each mix of widths and of literal
arguments: that took twice as long to compile and made nothing faster.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` on first use; the machine code is kept between runs."""
    return _compiled(function, {})


def loop(function: F) -> F:
    """As `compiled`, for loops that allocate nothing: without reference counts on the tables they run ten times faster."""
    return _compiled(function, {"_nrt": False})


def _compiled(function: F, options: dict[str, Any]) -> F:
    options |= {"cache": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    dispatcher: Any = njit(**options)(function)
    if hasattr(dispatcher, "compile"):  # absent with NUMBA_DISABLE_JIT=1
        compile_exactly = dispatcher.compile
        dispatcher.compile = lambda signature: compile_exactly(tuple(_widened(t) for t in signature))
    return cast(F, dispatcher)


def _widened(kind: types.Type) -> types.Type:
    plain: types.Type = types.unliteral(kind)  # type: ignore[no-untyped-call]
    return types.int64 if isinstance(plain, types.Integer) else plain
