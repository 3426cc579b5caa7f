"""The main job on what comes with kvtier: one replay, then sweeps that show what threshold and block size do.

Each sweep leaves a directory: the table (`sweep.parquet`), a Pareto plot, a plot of each effect. What is printed with
them is the explanation by `experiments.why`. Everything is a sweep that can be run by hand: `about.json`
in each directory holds its command.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments import console, sweeping
from experiments.replay import replayed
from experiments.sweep import TABLE
from experiments.trace import Trace
from experiments.why import why
from reports.choice import Wish, choose, lines
from reports.plots import block_plot, threshold_plot
from reports.table import read_sweep

COMPILED = 20
"""Requests that go through every loop of a run, so that the seconds shown for the first one are no compiler's."""
REPLAY = ("mooncake_arxiv_first1000", "mooncake_minutes")
BLOCKS = "tokens_per_block"
THRESHOLDS = "secondary_offload_min_priority"


@dataclass(frozen=True)
class Show:
    """One sweep: where its results go, what it is about in words, and what `kvtier sweep` is told."""

    name: str
    title: str
    trace: str
    spec: str
    grid: tuple[str, ...]
    limit: int | None = None

    def command(self) -> list[str]:
        """The same sweep by hand."""
        grid = [word for axis in self.grid for word in ("--grid", axis)]
        limit = ["--limit", str(self.limit)] if self.limit else []
        return ["kvtier", "sweep", self.trace, "--spec", self.spec, *grid, *limit, "--out", self.name]


SHOWS = (
    Show(
        "hour",
        "One hour of a chat service, Llama-3.1-70B: which blocks are worth their copy to host memory?",
        "mooncake_conversation",
        "mooncake_hour",
        (f"{BLOCKS}=512,1024", f"{THRESHOLDS}=0:100:20"),
    ),
    Show(
        "blocks",
        "Many tenants, every token known: how large should a block be?",
        "synthetic:multitenant",
        "multitenant_blocks",
        (f"{BLOCKS}=16,32,64,128,256,512", f"{THRESHOLDS}=0:100:20"),
    ),
    Show(
        "matching",
        "The same tenants: whole blocks only, and generated tokens kept like the prompt",
        "synthetic:multitenant",
        "multitenant_blocks",
        (f"{BLOCKS}=16,32,64,128,256,512", "enable_partial_reuse=true,false", "retention.3.priority=15,55"),
    ),
    Show(
        "chat",
        "Short real chats (ShareGPT): little to share",
        "llmservingsim_sharegpt300_blk8",
        "chat_blocks",
        (f"{BLOCKS}=8,16,32,64",),
    ),
    Show(
        "coding",
        "Long real coding sessions (Claude Code): nearly everything shared",
        "claude_code_weka_a",
        "coding_blocks",
        (f"{BLOCKS}=64,128,256,512",),
        limit=1000,
    ),
)


def demo(out: Path) -> None:
    """Run everything and print the explanations and what was written. Results go below `out`."""
    out.mkdir(parents=True, exist_ok=True)  # a place that cannot be written to fails here
    trace, spec = REPLAY
    console.note(["the first run compiles the loops, about a minute, once; after that all of this starts at once"])
    replayed(Trace(trace, limit=COMPILED), spec, [], timing=True)  # also so that the processes of the sweeps need not
    console.heading("Three minutes of chat and agents, Llama-3.1-8B: what one run tells")
    row = replayed(Trace(trace), spec, [], timing=True)
    console.summary(row)
    console.write_json(row, str(out / "replay.json"))
    written = [out / "replay.json"]
    for show in SHOWS:
        console.heading(show.title)
        place = out / show.name
        task = sweeping.Wish(Trace(show.trace, limit=show.limit), show.spec, grid=show.grid).task()
        sweeping.swept(task, place, sweeping.engine_of("local", None, None, place, task), show.command())
        written += [place / TABLE, *plots(place, show.title)]
        for line in why(place):
            console.say(line)
    console.heading("Written")
    for path in written:
        console.say(str(path))


def plots(directory: Path, title: str) -> Iterator[Path]:
    """The Pareto plot of a sweep (named knee and front printed), and one plot for each effect that it varied."""
    frame, about = read_sweep(directory)
    choice = choose(directory, Wish("moved_bytes", "hit_rate_tokens"), directory / "pareto.png")
    for line in lines(choice):
        console.say(line)
    yield choice.plot
    if THRESHOLDS in about["grid"]:
        yield directory / "threshold.png"
        figures = ("hit_rate_tokens", "moved_bytes", "ttft_mean_s")
        threshold_plot(frame, directory / "threshold.png", figures, BLOCKS, title=title)
    group = [key for key in about["grid"] if key != BLOCKS]
    yield directory / "block.png"
    block_plot(frame, directory / "block.png", ("hit_rate_tokens", "moved_bytes", "ttft_mean_s"), group, title=title)
