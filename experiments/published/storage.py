"""Files: one submitter and many, by way of host memory and around it (F1)."""

from experiments.published.figure import Figure, Group
from sim.hardware import load_hardware
from sim.transfer import LinkDirection, descriptor_seconds, side_by_side

KIB, MIB, GIB = 1024, 1024**2, 1024**3
DRIVES_READ, DRIVES_WRITE = 53.0 * GIB, 39.5 * GIB
"""Bytes a second of the four drives together, what gdsio reached with four GPUs."""
WORKERS = 4


def groups() -> list[Group]:
    """F1."""
    machine = load_hardware("l40s")
    gds, disk = machine.link("gds"), machine.link("disk")
    pcie = machine.link("host")
    one = side_by_side(gds.h2d, WORKERS, min(pcie.h2d.bandwidth_bytes_per_s, DRIVES_READ))
    four_read = side_by_side(gds.h2d, 4 * WORKERS, min(4 * pcie.h2d.bandwidth_bytes_per_s, DRIVES_READ))
    four_write = side_by_side(gds.d2h, 4 * WORKERS, min(4 * pcie.d2h.bandwidth_bytes_per_s, DRIVES_WRITE))
    posix, alone = gib_per_s(disk.h2d, 16 * MIB), gib_per_s(gds.h2d, 16 * MIB)
    figures = (
        Figure("F1", "GDS, 1 GPU, 4 workers, 8 MiB", "GiB/s", 24.3, gib_per_s(one, 8 * MIB), 0.10),
        Figure("F1", "GDS, 4 GPUs, read", "GiB/s", 53.0, gib_per_s(four_read, 8 * MIB), 0.10, "drives (here)"),
        Figure("F1", "GDS, 4 GPUs, write", "GiB/s", 39.5, gib_per_s(four_write, 8 * MIB), 0.10, "drives (here)"),
        Figure("F1", "POSIX, 1 thread, 16 MiB", "GiB/s", 21.6, posix, 0.10, "h100-sxm links.disk"),
        Figure("F1", "GDS, 1 thread, 16 MiB", "GiB/s", 12.6, alone, 0.10, "h100-sxm links.gds"),
        Figure(
            "F1", "POSIX, 64 KiB", "GiB/s", 10, gib_per_s(disk.h2d, 64 * KIB), 0.0, "h100-sxm links.disk", at_most=True
        ),
        Figure("F1", "GDS, 64 KiB", "GiB/s", 10, gib_per_s(gds.h2d, 64 * KIB), 0.0, "h100-sxm links.gds", at_most=True),
        Figure("F1", "POSIX over GDS, 1 thread", "times", 21.6 / 12.6, posix / alone, 0.10, "both of these"),
        Figure("F1", "GDS 4 workers over POSIX 1", "times", 24.3 / 21.6, gib_per_s(one, 8 * MIB) / posix, 0.10),
    )
    return [
        Group(
            "F1",
            "Four PCIe 5.0 drives in RAID 0, L40S",
            "gds-bench reports (gdsio, nixlbench), Solidigm D7-PS1010",
            figures,
            "One submitter: POSIX is faster. Many: GDS is, until PCIe 4.0 (one GPU) or the drives (four) are full."
            " POSIX here ends in host memory; our `disk` copies go on to the GPU, a second leg. NFS over RDMA is not"
            " modelled.",
        )
    ]


def gib_per_s(direction: LinkDirection, size: int) -> float:
    """GiB/s of descriptors of one size, without what starts a copy."""
    return size / descriptor_seconds(direction, size) / GIB
