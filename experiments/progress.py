"""Shows on stderr how far a long run is: a bar with rate and time left on a terminal, else a line now and then."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from experiments.sweep import Tally

PLAIN_EVERY_S = 10.0

Report = Callable[[int, int | None], None]
"""Called with how many are done and how many there are, where that is known."""


class _Rate(ProgressColumn):
    """How many a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The rate so far, as text."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.3g} {self.unit}/s" if speed else "")


@contextmanager
def progress(unit: str, console: Console | None = None) -> Generator[Report, None, None]:
    """A function to report to while the block runs."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Plain(unit, console)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), _Rate(unit), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Plain:
    """A line every ten seconds, so that a short run says nothing and a log stays short."""

    def __init__(self, unit: str, console: Console) -> None:
        self.unit, self.console = unit, console
        self.start_s = self.last_s = time.monotonic()

    def __call__(self, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        if done and now_s - self.last_s >= PLAIN_EVERY_S:
            self.last_s = now_s
            rate = done / (now_s - self.start_s)
            of, left = ("", "") if total is None else (f" of {total}", f", {(total - done) / rate:.0f} s left")
            self.console.print(f"{done}{of} {self.unit}, {rate:.3g} {self.unit}/s{left}", highlight=False)


@contextmanager
def sweep_progress(console: Console | None = None) -> Generator[Callable[["Tally"], None], None, None]:
    """The same for a sweep: one live line with runs, rate, time left, failures. Quiet when nobody looks."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda tally: None
        return
    start_s = time.monotonic()
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda tally: bar.update(
            task, completed=tally.spent_s, total=tally.expected_s, description=_line(tally, time.monotonic() - start_s)
        )


def _line(tally: "Tally", passed_s: float) -> str:
    """Runs done and wanted, rate, time left, failures. Time left goes by the runs' estimated seconds, not their number."""
    parts = [f"{tally.kept + tally.done} of {tally.runs} runs"]
    if tally.done:
        parts.append(f"{tally.done / passed_s:.3g} runs/s")
        parts.append(f"{duration(passed_s * (tally.expected_s / tally.spent_s - 1))} left")
    if tally.errors:
        parts.append(f"[red]{len(tally.errors)} failed[/red]")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds for people: 40 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
