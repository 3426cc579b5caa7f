"""The hardware file of a calibration: what was measured in the simulator's terms, and the table the user sees."""

import platform
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments.calibration_fit import Line, direction, duplex_factor, fit
from experiments.version import kvtier_version
from hw.memory import available_bytes
from sim.hardware import load_hardware


class Plain(yaml.SafeDumper):
    """YAML without references from one place of the file to another."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True


def header(device: str, cells: pd.DataFrame, notes: list[str]) -> str:
    lines = [
        f"Measured by kvtier {kvtier_version()} calibrate on {platform.node()}, device {device}.",
        f"{len(cells)} cells, {int(cells.repeats.min())} repeats or more each; a cell's repeats spread by"
        f" {100 * float(cells.spread.median()):.0f} % of its median (10 to 90 % quantile, median over cells).",
        *dict.fromkeys(notes),
    ]
    return "".join(f"# {line}\n" for line in lines)


def profile(
    name: str, device: str, base: str, cells: pd.DataFrame, facts: dict[str, Any], files: bool
) -> tuple[dict[str, Any], list[str]]:
    fits: dict[str, Line] = {way: fit(cells, way) for way in ("d2h", "h2d", "d2d")}
    duplex = duplex_factor(cells)
    source = f"measured, device {device}"
    links: dict[str, Any] = {
        "host": {
            "h2d": direction(fits["h2d"], source),
            "d2h": direction(fits["d2h"], source),
            "duplex_factor": round(duplex, 3),
        }
    }
    if files:
        one = cells[cells.blocks == 1]
        fits |= {way: fit(one, way, ("direct",)) for way in ("write", "read")}
        disk = {"h2d": direction(fits["read"], source), "d2h": direction(fits["write"], source), "duplex_factor": 1.0}
        links |= {"disk": disk, "gds": disk}
    inside = fits["d2d"]
    data: dict[str, Any] = {
        "name": name,
        "base": base,
        "memory": facts.get("memory", _host_as_gpu(inside, source)),
        "compute": facts.get("compute", {"kernels": {"latency_s": inside.latency_s, "per_layer": 8, "source": source}}),
        "links": links,
    }
    return data, _lines(fits, duplex, cells)


def gpu_sections(device: str, base: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Memory and compute of a hardware file from kernels run on the GPU. Efficiencies are shares of the base's peaks."""
    from hw.cuda_torch import measure_compute

    known, reached = load_hardware(base), measure_compute(int(device.partition(":")[2] or 0))
    source = f"measured, device {device}"
    peak = max(known.hbm_bytes_per_s, reached["copy_bytes_per_s"])

    def share(flops: float) -> float:
        return round(min(1.0, flops / known.flops["bf16"]), 4)

    return {
        "memory": {
            "size": {"bytes": int(facts["gpu_bytes"]), "source": source},
            "bandwidth": {"bytes_per_s": peak, "source": f"{base}, or what a copy reached if that is more"},
            "efficiency": {"value": round(reached["copy_bytes_per_s"] / peak, 4), "source": f"{source}: a 1 GiB copy"},
        },
        "compute": {
            "linear": {"efficiency": share(reached["gemm_flops_bf16"]), "source": f"{source}: bf16 product of 8192^3"},
            "attention": {
                "efficiency": share(reached["attention_flops_bf16"]),
                "half_context_tokens": known.attention_half_context_tokens,
                "source": f"{source}: causal attention over 8192 tokens; half_context_tokens from {base}",
            },
            "kernels": {
                "latency_s": reached["kernel_latency_s"],
                "per_layer": known.kernels_per_layer,
                "source": source,
            },
        },
    }


def _host_as_gpu(inside: Line, source: str) -> dict[str, Any]:
    """Host memory in the place of a GPU's: copies inside it read and write at this rate."""
    return {
        "size": {"bytes": int(available_bytes()), "source": "memory available when measured"},
        "bandwidth": {
            "bytes_per_s": float(f"{2 * inside.bytes_per_s:.5g}"),
            "source": f"{source}: twice the copy rate",
        },
        "efficiency": {"value": 1.0, "source": "the bandwidth is what copies reached"},
    }


def _lines(fits: dict[str, Line], duplex: float, cells: pd.DataFrame) -> list[str]:
    names = {
        "h2d": "host to gpu",
        "d2h": "gpu to host",
        "d2d": "inside the gpu",
        "read": "file read",
        "write": "file write",
    }
    head = f"{'direction':16}{'latency us':>12}{'GB/s':>9}{'R2':>9}{'worst cell %':>14}{'spread %':>10}"
    lines = [head]
    for way, line in fits.items():
        figures = f"{1e6 * line.latency_s:12.2f}{line.bytes_per_s / 1e9:9.2f}{line.r2:9.4f}"
        lines.append(f"{names[way]:16}{figures}{100 * line.worst_table:14.0f}{100 * line.spread:10.0f}")
    lines.append(f"share of its speed a direction keeps while the other works: {duplex:.2f}")
    noisy = float(np.median(cells.spread))
    if noisy > 0.2:
        lines.append(
            f"this machine was too noisy for figures to trust: repeats spread by {100 * noisy:.0f} % (limit 20 %);"
            " run it again when nothing else runs"
        )
    return lines
