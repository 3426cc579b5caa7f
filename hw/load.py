"""How much of this machine others took while something was measured: what makes a figure worthless without anybody noticing.

It changes nothing and names nobody: processor time of everything that is not this process, and time that the machine
below (a hypervisor) did not give at all.
"""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(8)


class Load:
    """Counts from where it was made. Shares are of all processors' time; 0 where the system does not tell (no /proc)."""

    def __init__(self) -> None:
        self._begun, self._stat, self._own = time.monotonic(), _stat(), _own()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._begun

    def taken(self) -> float:
        """Share of all processors' time that went to others or was not given."""
        now = [b - a for a, b in zip(self._stat, _stat(), strict=True)]
        total = sum(now)
        if total <= 0:
            return 0.0
        ticks = os.sysconf("SC_CLK_TCK")
        busy = total - now[IDLE] - now[IOWAIT]
        return max(0.0, busy - (_own() - self._own) * ticks) / total


def _stat() -> list[int]:
    try:
        first = STAT.read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return [0] * (STEAL + 1)
    return [int(word) for word in first[1 : STEAL + 2]]


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
