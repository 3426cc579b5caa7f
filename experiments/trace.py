"""Which trace to replay: its name, how to read it, how much of it. Small enough to send to a worker process."""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvcache.request import Requests
from traces.options import ReadOptions
from traces.stream import Stream, first


@dataclass(frozen=True)
class Trace:
    """A file, a bundled sample or a generator by name."""

    name: str
    format: str | None = None
    options: ReadOptions = field(default_factory=ReadOptions)
    limit: int | None = None
    """Keep the first so many requests; None: all."""

    def requests(self) -> Requests:
        """The workload. Read once a process, however often it is asked for."""
        return _read(self)

    def stream(self) -> Stream:
        """The workload in pieces, for what need not hold it whole. Read anew each time."""
        from traces.read import opened

        stream = opened(self.name, format=self.format, options=self.options)
        return stream if self.limit is None else first(stream, self.limit)

    def about(self) -> dict[str, Any]:
        """What to note down beside results: the name, the SHA-256 of the file, the settings that are not defaults."""
        from traces.read import samples

        path = Path(self.name)
        path = path if path.exists() else samples().get(self.name, path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        usual = asdict(ReadOptions())
        given = {name: value for name, value in asdict(self.options).items() if value != usual[name]}
        return {
            "trace": self.name,
            "sha256": sha256,
            "trace_options": given | ({"format": self.format} if self.format else {}),
            "limit": self.limit,
        }


@lru_cache(maxsize=1)
def _read(trace: Trace) -> Requests:
    from traces.read import read

    requests = read(trace.name, format=trace.format, options=trace.options)
    return requests if trace.limit is None else requests.head(trace.limit)
