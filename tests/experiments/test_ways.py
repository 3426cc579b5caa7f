"""Which links a run's copies take."""

import pytest

from experiments.engines import copy_costs
from experiments.pools import plan
from experiments.spec import Spec
from experiments.ways import disk_share, ways_of
from kvcache.tables import DISK_READ, DISK_WRITE, OFFLOAD, ONBOARD, make_state
from sim.hardware import load_hardware

H100 = load_hardware("h100-sxm")
BLOCK = 4_194_304  # 32 tokens of Llama-3.1-8B in 16 bits: 131,072 B each


def costs(hardware: str = "h100-sxm", **copies: str) -> dict[int, float]:
    spec = Spec.model_validate({
        "capacity": {"gpu_blocks": 8, "host_blocks": 8},
        "hardware": hardware,
        "copies": copies,
        "profile": "cascade",
    })
    the_plan = plan(spec, 256)
    state = make_state(the_plan.pools, the_plan.settings)
    cost = copy_costs(the_plan, ways_of(spec, the_plan.hardware), state)
    return {kind: float(cost[kind, 0, 0]) for kind in (OFFLOAD, ONBOARD, DISK_READ, DISK_WRITE)}


def test_blocks_one_by_one_move_at_the_measured_rate_of_their_size() -> None:
    # 4 MiB at 49.8 and 48.7 GB/s (vLLM blog, figures 3 and 4)
    found = costs()
    assert found[ONBOARD] == pytest.approx(BLOCK / 49.8e9)
    assert found[OFFLOAD] == pytest.approx(BLOCK / 48.7e9)


def test_batched_and_gathered_copies_take_their_own_links() -> None:
    # batched: beyond its table (64 KiB) at 51.8 GB/s; gathered: 0.3 us and 50 GB/s, a kernel's 3 us
    assert costs(host="batched")[ONBOARD] == pytest.approx(BLOCK / 51.8e9)
    assert costs(host="gather")[ONBOARD] == pytest.approx(3e-6 + 0.3e-6 + BLOCK / 50e9)


def test_files_by_way_of_host_memory_take_two_legs_to_the_gpu() -> None:
    # GDS: 100 us, 1.3 us and 13.5 GB/s. POSIX: 100 us, 3.3 us and 23.2 GB/s, then the host link's table
    assert costs()[DISK_READ] == pytest.approx(101.3e-6 + BLOCK / 13.5e9)
    assert costs(disk="posix")[DISK_READ] == pytest.approx(103.3e-6 + BLOCK / 23.2e9 + BLOCK / 49.8e9)
    assert costs(disk="posix")[DISK_WRITE] == pytest.approx(103.3e-6 + BLOCK / 17.3e9)


def test_a_gh200_moves_blocks_over_c2c() -> None:
    # 3.51 us and 346 GB/s
    assert costs("gh200")[ONBOARD] == pytest.approx(3.51e-6 + BLOCK / 346e9)


def test_a_machine_without_the_link_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hardware gh200 has no host_gather link; it has host"):
        ways_of(Spec.model_validate({"copies": {"host": "gather"}}), load_hardware("gh200"))


def test_a_disk_read_takes_the_share_of_the_link_that_its_bytes_need() -> None:
    spec = Spec.model_validate({"capacity": {"gpu_blocks": 8}})
    # 4 MiB at 52.5 GB/s are 79.9 us; reading them 1.3 us + 4 MiB at 13.5 GB/s
    [share] = disk_share(plan(spec, 256), ways_of(spec, H100))
    assert share == pytest.approx((BLOCK / 52.5e9) / (1.3e-6 + BLOCK / 13.5e9))
