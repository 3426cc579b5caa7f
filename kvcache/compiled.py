"""The one door to the compiler: `@compiled` turns a plain loop over integer tables into machine code, cached on disk.

With NUMBA_DISABLE_JIT=1 the same source runs as ordinary Python: that is how it is stepped through and measured for
coverage. `compiled_inline` is for the few one-line helpers that are called per block.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` on first use; the machine code is kept between runs."""
    return njit(cache=True)(function)  # type: ignore[no-any-return]


def compiled_inline(function: F) -> F:
    """As `compiled`, and copied into its callers."""
    return njit(cache=True, inline="always")(function)  # type: ignore[no-any-return]
