"""The other worker process of the link tests."""

import os
from typing import Any

import numpy as np


def end(kind: str, name: str, ring: Any, pipe: Any) -> Any:
    """One end of a link."""
    if kind == "nixl":
        from hw.nixl_link import NixlLink

        return NixlLink(name, pipe, limit_s=20)
    from hw.link import SharedMemoryLink

    return SharedMemoryLink(ring, pipe, limit_s=20)


def echo(kind: str, ring: Any, pipe: Any, shapes: list[tuple[int, int]], die_at: int, announced: bool = False) -> None:
    """Receive rows of each shape and send them back, each byte plus one; `die_at`: disappear instead of the n-th answer.

    `announced` (NIXL): disappear already when the rows to be written to are known to the sender.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = end(kind, "there", ring, pipe)
    for number, shape in enumerate(shapes):
        rows = np.zeros(shape, np.uint8)
        if announced and number == die_at:
            link._note = lambda: os._exit(9)
        tag = link.receive(rows)
        if number == die_at:
            os._exit(9)
        link.send(rows + np.uint8(1), b"back " + tag)
    link.close()


def store(kind: str, ring: Any, pipe: Any, row_bytes: int, most_blocks: int, die_after: int) -> None:
    """A store of blocks; `die_after`: disappear when so many messages have come."""
    from hw.store import serve

    link, heard = end(kind, "store", ring, pipe), 0
    receive = link.receive

    def count(rows: Any) -> bytes:
        nonlocal heard
        if heard == die_after:
            os._exit(9)
        heard += 1
        return bytes(receive(rows))

    link.receive = count
    serve(link, row_bytes, most_blocks)
    link.close()
