"""The one door to the compiler: it turns plain loops over integer tables into machine code, cached on disk.

With NUMBA_DISABLE_JIT=1 the same source runs as ordinary Python: that is how it is stepped through and measured for
coverage. Two of numba's habits are changed here:

* Integers of any width arrive as int64. Left alone, numba makes one version for each mix of widths and of literal
  arguments: that took twice as long to compile and made nothing faster.
* Cached code is good only as long as no source file of the function's package and of this one has changed. Left alone,
  numba looks at the function's own file, so a changed rule in another file would live on inside its cached callers.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit, typeof, types

F = TypeVar("F", bound=Callable[..., Any])
HERE = Path(__file__).parent


def compiled(function: F) -> F:
    """Compile `function` on first use; the machine code is kept between runs."""
    return _compiled(function, {})


def loop(function: F) -> F:
    """As `compiled`, for loops that allocate nothing: without reference counts on the tables they run ten times faster.

    A loop whose name starts with an underscore has no door from Python (that saves a fifth of the compile time): only
    other loops may call it.
    """
    return _compiled(function, {"_nrt": False, "no_cpython_wrapper": function.__name__.startswith("_")})


def inlined(function: F) -> F:
    """As `loop`, for what is done once a block: its code is put into its callers.

    A call hands over every field of every table, some 150 words; called a few times a block that took half of all time.
    """
    return _compiled(function, {"_nrt": False, "forceinline": True})


class Address(types.WrapperAddressProtocol):
    """A compiled function to be called by its address: the caller's machine code holds its types, but none of its code.

    What many loops call and few of them often is handed to them so: they are compiled once, whatever it does.
    """

    def __init__(self, function: Callable[..., Any], result: Any, *arguments: Any) -> None:
        """`arguments` are examples (tables) or types; `result` is a type."""
        kinds = [a if isinstance(a, types.Type) else typeof(a) for a in arguments]  # type: ignore[no-untyped-call]
        self._signature = result(*kinds)
        dispatcher: Any = _compiled(function, {"_nrt": False, "no_cfunc_wrapper": False})
        dispatcher.compile(tuple(kinds))
        self._made = dispatcher.overloads[tuple(kinds)]  # kept: it owns the code

    def __wrapper_address__(self) -> int:  # ruff: ignore[bad-dunder-method-name] - numba's name
        """Where the code begins."""
        return int(self._made.library.get_pointer_to_function(self._made.fndesc.llvm_cfunc_wrapper_name))

    def signature(self) -> Any:
        """Result and arguments."""
        return self._signature


def by_address(function: Callable[..., Any], result: Any, *arguments: Any) -> Any:
    """`function` for a table of loops: an `Address`, or without the compiler the function itself."""
    return function if config.DISABLE_JIT else Address(function, result, *arguments)  # type: ignore[attr-defined]


def _compiled(function: F, options: dict[str, Any]) -> F:
    chosen: dict[str, Any] = {"cache": True, "error_model": "numpy", "no_cfunc_wrapper": True} | options
    dispatcher: Any = njit(**chosen)(function)
    if hasattr(dispatcher, "compile"):  # absent with NUMBA_DISABLE_JIT=1
        compile_exactly = dispatcher.compile
        dispatcher.compile = lambda signature: compile_exactly(tuple(_widened(t) for t in signature))
        dispatcher._cache._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
    return cast(F, dispatcher)


def _widened(kind: types.Type) -> types.Type:
    plain: types.Type = types.unliteral(kind)  # type: ignore[no-untyped-call]
    return types.int64 if isinstance(plain, types.Integer) else plain


@cache
def _stamp(package: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every source file that code of `package` may have been compiled from."""
    files = sorted({*HERE.glob("*.py"), *package.glob("*.py")})
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
