"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def kvtier_version() -> str:
    """As pip knows it; a source tree that is not installed has none."""
    try:
        return version("kvtier")
    except PackageNotFoundError:
        return "0+unknown"
