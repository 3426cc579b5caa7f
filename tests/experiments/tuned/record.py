"""Records the whole grid of the bundled tuning problem, so that tests of the search need no runs: a minute of two cores.

python -m tests.experiments.tuned.record
"""

import tempfile
from pathlib import Path

from experiments.sweeping import Wish, engine_of, swept
from experiments.trace import Trace
from reports.table import read_sweep

TABLE = Path(__file__).parent / "grid.csv"
FIGURES = ["ttft_mean_s", "ttft_p99_s", "tpot_p99_s", "host_cache_gib", "hit_rate_tokens", "moved_bytes"]


def record() -> None:
    task = Wish(Trace("tune_multitenant")).task()
    with tempfile.TemporaryDirectory() as place:
        swept(task, Path(place), engine_of("local", None, None, Path(place), task), ["record"])
        frame, about = read_sweep(Path(place))
    assert frame["error"].isna().all()
    frame[[*about["grid"], *FIGURES]].to_csv(TABLE, index=False, float_format="%.9g", lineterminator="\n")


if __name__ == "__main__":
    record()
