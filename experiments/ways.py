"""Which links of a machine a run's copies take, as its spec chooses them. It times nothing (`sim.transfer` does)."""

from dataclasses import dataclass

from experiments.pools import Plan
from experiments.spec import Spec
from sim.hardware import Hardware
from sim.transfer import Link, descriptor_seconds, through_host

HOST = {"block": "host", "batched": "host_batched", "gather": "host_gather"}
"""Link of a hardware file by `copies.host`."""


@dataclass(frozen=True)
class Ways:
    """Between GPU and host memory; and of the disk tier: reads end on the GPU, writes leave from host memory."""

    host: Link
    disk: Link


def ways_of(spec: Spec, hardware: Hardware) -> Ways:
    """The links by their names in `spec.copies`; a machine that lacks one is refused."""
    host = hardware.link(HOST[spec.copies.host])
    if spec.copies.disk == "gds":
        return Ways(host, hardware.link("gds"))
    files = hardware.link("disk")
    return Ways(host, Link(through_host(files.h2d, hardware.link("host").h2d), files.d2h))


def disk_share(the_plan: Plan, ways: Ways) -> list[float]:
    """By window: what part of a disk read's time its bytes keep the GPU's link from others."""
    link = the_plan.hardware.link("host").h2d
    shares = []
    for sizes in the_plan.copy_bytes:
        read_s = sum(descriptor_seconds(ways.disk.h2d, size) for size in sizes)
        shares.append(min(0.99, sum(size / link.bandwidth_bytes_per_s for size in sizes) / read_s))
    return shares
