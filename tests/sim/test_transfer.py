"""Copy times: against the published curve of an H100, and the compiled form against the readable one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.hardware import load_hardware
from sim.transfer import (
    DUPLEX,
    LinkDirection,
    copy_seconds,
    copy_seconds_c,
    descriptor_seconds,
    link_params,
    side_by_side,
    through_host,
)

H100_HOST = load_hardware("h100-sxm").links["host"]
LINE = LinkDirection(latency_s=4e-6, bandwidth_bytes_per_s=50e9, duplex_factor=0.8, start_s=1e-3)
TABLE = LinkDirection(1e-6, 1e9, ((1024, 1e8), (4096, 4e8), (8192, 4e8)))

# vLLM blog of 2026-01-08, H100 with PCIe 5.0, 1,000 blocks a transfer, figures 3 and 4: block KiB, D2H, H2D in GB/s
PUBLISHED = [
    (8, 2.3, 2.2),
    (16, 4.5, 4.3),
    (32, 8.2, 7.5),
    (64, 15.3, 14.4),
    (128, 21.6, 22.8),
    (256, 29.3, 31.8),
    (512, 37.1, 39.5),
    (1024, 42.5, 44.4),
    (2048, 46.2, 47.7),
    (4096, 48.7, 49.8),
    (8192, 50.0, 50.7),
    (16384, 50.7, 51.2),
]


@pytest.mark.parametrize(("kib", "d2h", "h2d"), PUBLISHED)
def test_h100_host_link_meets_the_published_curve(kib: int, d2h: float, h2d: float):
    size = kib * 1024
    for direction, gb_per_s in ((H100_HOST.d2h, d2h), (H100_HOST.h2d, h2d)):
        seconds = copy_seconds(direction, 1000, size)
        assert 1000 * size / seconds / 1e9 == pytest.approx(gb_per_s, rel=0.01)


@pytest.mark.parametrize(("kib", "d2h", "h2d"), PUBLISHED[1:])
def test_latency_and_bandwidth_alone_meet_the_published_curve_within_12_percent(kib: int, d2h: float, h2d: float):
    size = kib * 1024
    line = replace(H100_HOST.h2d, table=())
    assert size / descriptor_seconds(line, size) / 1e9 == pytest.approx(h2d, rel=0.06)
    line = replace(H100_HOST.d2h, table=())
    assert size / descriptor_seconds(line, size) / 1e9 == pytest.approx(d2h, rel=0.13)


def test_both_directions_at_2_mib_reach_the_published_total():
    # the same blog: 83.4 GB/s with copy engines in both directions
    size = 2048 * 1024
    total = sum(size / copy_seconds(way, 1, size, busy_other_direction=True) for way in (H100_HOST.h2d, H100_HOST.d2h))
    assert total / 1e9 == pytest.approx(83.4, rel=0.01)


def test_without_a_table_a_copy_is_start_latency_and_line():
    # 1 ms + 10 x (4 us + 1,000,000 B / 50 GB/s = 20 us) = 1.24 ms
    assert copy_seconds(LINE, 10, 1_000_000) == pytest.approx(1.24e-3)


def test_a_busy_other_direction_slows_a_copy():
    # 1.24 ms / 0.8
    assert copy_seconds(LINE, 10, 1_000_000, busy_other_direction=True) == pytest.approx(1.55e-3)


def test_nothing_to_copy_takes_no_time():
    assert copy_seconds(LINE, 0, 1_000_000) == 0
    assert copy_seconds_c(link_params(LINE), 0, 1, 1_000_000.0) == 0
    assert copy_seconds_c(link_params(LINE), 1, 0, 1_000_000.0) == 0


def test_a_table_is_interpolated_in_log_size_and_log_rate():
    # halfway between 1,024 and 4,096 in log is 2,048; between 1e8 and 4e8 is 2e8
    assert descriptor_seconds(TABLE, 2048) == pytest.approx(2048 / 2e8)


def test_below_the_table_a_descriptor_takes_as_long_as_the_smallest():
    assert descriptor_seconds(TABLE, 1) == descriptor_seconds(TABLE, 1024) == pytest.approx(10.24e-6)


def test_above_the_table_the_bandwidth_stays():
    assert descriptor_seconds(TABLE, 81_920) == pytest.approx(81_920 / 4e8)


@settings(deadline=None)  # the first call compiles
@given(size=st.integers(1, 2**26), more=st.integers(1, 2**20))
def test_a_larger_descriptor_is_never_faster(size: int, more: int):
    for direction in (LINE, TABLE, H100_HOST.h2d, H100_HOST.d2h):
        assert descriptor_seconds(direction, size) <= descriptor_seconds(direction, size + more) * (1 + 1e-12)


@settings(deadline=None)  # the first call compiles
@given(blocks=st.integers(0, 10**6), descriptors=st.integers(1, 4), size=st.integers(1, 2**30))
def test_compiled_copy_agrees_with_the_readable_one(blocks: int, descriptors: int, size: int):
    for direction in (LINE, TABLE, BURST, replace(TABLE, burst=BURST.burst), H100_HOST.h2d, H100_HOST.d2h):
        readable = copy_seconds(direction, blocks * descriptors, size)
        assert copy_seconds_c(link_params(direction), blocks, descriptors, size) == pytest.approx(readable, rel=1e-12)


BURST = LinkDirection(1e-6, 1e9, burst=((1 << 20, 1.0), (1 << 24, 1.44), (1 << 26, 1.5)))


def test_a_long_copy_pays_for_what_caches_swallow_of_a_short_one():
    # 1 us + 1,024 B / 1 GB/s = 2.024 us a descriptor; 4 MiB lie halfway between 1 and 16 MiB in log: sqrt(1.44) = 1.2
    assert copy_seconds(BURST, 10, 1024) == pytest.approx(20.24e-6)
    assert copy_seconds(BURST, 4096, 1024) == pytest.approx(4096 * 2.024e-6 * 1.2)
    assert copy_seconds(BURST, 1 << 20, 1024) == pytest.approx((1 << 20) * 2.024e-6 * 1.5)


@pytest.mark.parametrize("burst", [((2, 1.0), (1, 1.0)), ((1, 0.0),)])
def test_bursts_ascend_and_are_above_0(burst: tuple[tuple[float, float], ...]):
    with pytest.raises(ValueError, match="burst has the sizes"):
        LinkDirection(0.0, 1e9, burst=burst)


def test_flat_parameters_carry_the_duplex_factor():
    assert link_params(LINE)[DUPLEX] == pytest.approx(0.8)


def test_a_bounce_takes_both_legs_one_after_the_other():
    disk = LinkDirection(2e-6, 25e9, start_s=1e-4)
    bounce = through_host(disk, replace(LINE, start_s=0.0))
    # 1,000,000 B: 2 + 40 us from disk, 4 + 20 us to the GPU; 100 us once
    assert copy_seconds(bounce, 1, 1_000_000) == pytest.approx(166e-6)
    tabled = through_host(disk, H100_HOST.h2d)
    legs = copy_seconds(disk, 3, 65_536) + copy_seconds(H100_HOST.h2d, 3, 65_536)
    assert copy_seconds(tabled, 3, 65_536) == pytest.approx(legs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency_s": -1.0}, "latency_s is -1.0"),
        ({"start_s": float("inf")}, "start_s is inf"),
        ({"bandwidth_bytes_per_s": 0.0}, r"bandwidth_bytes_per_s is 0.0; it must be above 0"),
        ({"duplex_factor": 1.5}, r"duplex_factor is 1.5; it must be in \(0, 1\]"),
        ({"table": ((2.0, 1.0), (1.0, 1.0))}, r"sizes \[2.0, 1.0\]; they must ascend"),
        ({"table": ((1.0, 0.0),)}, "sizes and rates be above 0"),
    ],
)
def test_an_impossible_link_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        replace(LINE, **change)


def test_submitters_add_up_until_the_device_behind_them_is_full():
    assert side_by_side(LINE, 1, 10e9) == LINE
    two = side_by_side(LINE, 2, 80e9)
    assert (two.latency_s, two.bandwidth_bytes_per_s) == (2e-6, 80e9)
    assert side_by_side(TABLE, 3, 1e9).table == ((1024, 3e8), (4096, 1e9), (8192, 1e9))
    with pytest.raises(ValueError, match="submitters is 0; it must be at least 1"):
        side_by_side(LINE, 0, 80e9)


def test_batched_copies_step_up_at_28_kib_on_the_h100_only():
    # vLLM pull request 42212, 100,000 pages a call: 24 KiB 6.9 GB/s, 28 KiB 44.1 GB/s
    batched = load_hardware("h100-sxm").links["host_batched"].h2d
    assert [kib * 1024 / descriptor_seconds(batched, kib * 1024) / 1e9 for kib in (24, 28)] == pytest.approx([
        6.9,
        44.1,
    ])
    assert "host_batched" not in load_hardware("l40s").links
