"""The result table of a sweep: one row a run. Finds columns by name and says which ones come near a wrong name."""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from reports.rows import PLAN, ROWS, joined, plan_of, rows_by_key

SEED = "seed"


def nearest(name: str, known: Iterable[str]) -> str:
    """The words for `known`: the ones like `name`, or all."""
    words = sorted(known)
    close = difflib.get_close_matches(name, words, n=4, cutoff=0.4)
    return f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(words)}"


def require(frame: pd.DataFrame, name: str) -> str:
    """The full name of a numeric column (its last part will do); if none, an error naming the near ones."""
    numbers = frame.select_dtypes("number").columns
    found = [str(c) for c in numbers if name in {c, str(c).rsplit(".", maxsplit=1)[-1]}]
    if found:
        return found[0]
    if name in frame.columns:
        empty = bool(frame[name].isna().all())
        raise ValueError(f"column {name} holds {'nothing (a run without timing?)' if empty else 'no numbers'}")
    raise ValueError(f"no column {name}; {nearest(name, map(str, numbers))}")


def read_sweep(directory: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table of a sweep and what it was made from; of one that was killed, the rows that it kept."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory")
    path = directory / "sweep.parquet"
    if path.exists():
        frame = pd.read_parquet(path)
    elif (directory / PLAN).exists():
        frame = pd.DataFrame(joined(plan_of(directory), rows_by_key(directory / ROWS))).convert_dtypes()
    else:
        raise ValueError(
            f"{directory}: no sweep.parquet in it; `kvtier sweep TRACE --grid ... --out {directory}` makes one"
        )
    about = directory / "about.json"
    if frame.empty:
        raise ValueError(f"{path}: the sweep has no rows")
    return frame, json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}


def averaged(frame: pd.DataFrame, about: dict[str, Any]) -> tuple[pd.DataFrame, list[str]]:
    """The runs that did not fail, repeats of one setting made one by their means, and the settings that were varied.

    Where there are repeats, `repeats` counts those that were averaged; what is not a number is the first one's.
    """
    if "error" in frame.columns:
        frame = frame[frame["error"].isna()]
    keys = [key for key in about.get("grid", {}) if key in frame.columns]
    if about.get("repeats", 1) == 1 or frame.empty:
        return frame.reset_index(drop=True), keys
    keys.remove(SEED)
    groups = frame.groupby(keys, dropna=False, sort=False) if keys else frame.groupby(lambda _: 0)
    numbers = [name for name in frame.select_dtypes("number").columns if name not in {*keys, SEED, "run"}]
    first = groups.first().drop(columns=[SEED, *numbers])
    whole = pd.concat([first, groups[numbers].mean(), groups.size().rename("repeats")], axis=1)
    return whole.reset_index(drop=not keys), keys


def varied(frame: pd.DataFrame, about: dict[str, Any]) -> list[str]:
    """The swept keys that have more than one value in the table, in the order in which they were given."""
    return [key for key in about.get("grid", {}) if key in frame.columns and frame[key].nunique(dropna=False) > 1]
