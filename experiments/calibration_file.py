"""The hardware file of a calibration: what was measured in the simulator's terms, and the table the user sees."""

import platform
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments.calibration_fit import Line, direction, fit, rates, short, slowdown
from experiments.version import kvtier_version
from hw.memory import available_bytes
from sim.hardware import MEASURED, Hardware, load_hardware

NOISY_SPREAD, NOISY_LOAD = 0.20, 0.10
STRATEGY_LINKS = {"batch": "host_batched", "gather": "host_gather"}
NAMES = {
    "h2d": "host to gpu",
    "d2h": "gpu to host",
    "d2d": "inside the gpu",
    "read": "file read",
    "write": "file write",
}


class Plain(yaml.SafeDumper):
    """YAML without references from one place of the file to another."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True


def header(device: str, cells: pd.DataFrame, notes: list[str], load: float) -> str:
    """Comments at the top of the file."""
    lines = [
        f"Measured by kvtier {kvtier_version()} calibrate on {platform.node()}, device {device}.",
        f"{len(cells)} cells, {int(cells.repeats.min())} repeats or more each; a cell's repeats spread by"
        f" {100 * float(cells.spread.median()):.0f} % of its median (10 to 90 % quantile, median over cells);"
        f" others took {100 * load:.0f} % of the processors meanwhile.",
        *noise(cells, load),
        *dict.fromkeys(notes),
    ]
    return "".join(f"# {line}\n" for line in lines)


def noise(cells: pd.DataFrame, load: float) -> list[str]:
    """Why these figures are not to be trusted, if so."""
    spread = float(np.median(cells.spread))
    if spread <= NOISY_SPREAD and load <= NOISY_LOAD:
        return []
    return [
        f"too noisy for figures to trust: repeats spread by {100 * spread:.0f} % (limit {100 * NOISY_SPREAD:.0f} %), others"
        f" took {100 * load:.0f} % of the processors (limit {100 * NOISY_LOAD:.0f} %); run it again when nothing else runs"
    ]


def profile(
    name: str, device: str, base: str, cells: pd.DataFrame, facts: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What is written, and what is shown."""
    known = load_hardware(base)
    source = f"measured, device {device}, {facts.get('copies', 'memcpy')}"
    fits: dict[str, Line] = {way: fit(cells, way) for way in ("d2h", "h2d", "d2d")}
    shown = {NAMES[way]: line for way, line in fits.items()}
    duplex, busy, kernels = slowdown(cells, "both"), slowdown(cells, "busy"), slowdown(cells, "busy", ("stamp",))
    links: dict[str, Any] = {"host": _link(fits["h2d"], fits["d2h"], source, duplex)}
    for mode in sorted({*cells["mode"]} & {*STRATEGY_LINKS}):
        down, up = fit(cells, "d2h", (mode,)), fit(cells, "h2d", (mode,))
        links[STRATEGY_LINKS[mode]] = _link(up, down, f"measured, device {device}, {mode}", duplex)
        shown |= {f"{NAMES['d2h']}, {mode}": down, f"{NAMES['h2d']}, {mode}": up}
    if (cells["mode"] == "direct").any():
        one = cells[cells.blocks == 1]
        down, up = fit(one, "write", ("direct",)), fit(one, "read", ("direct",))
        links |= dict.fromkeys(("disk", "gds"), _link(up, down, f"measured, device {device}, O_DIRECT", 1.0))
        shown |= {NAMES["write"]: down, NAMES["read"]: up}
    data: dict[str, Any] = {
        "name": name,
        "base": base,
        "memory": _memory(cells, fits["d2d"], facts, known, source),
        "compute": _compute(cells, fits["d2d"], known, source),
        "links": links,
    }
    return data, [
        *_lines(shown),
        f"share of its speed a direction keeps while the other works: {duplex:.2f};"
        f" while kernels write memory: {busy:.2f}; kernels beside copies: {kernels:.2f}",
        *_file_lines(cells),
        *_kernel_lines(cells),
    ]


def _link(up: Line, down: Line, source: str, duplex: float) -> dict[str, Any]:
    return {"h2d": direction(up, source), "d2h": direction(down, source), "duplex_factor": round(duplex, 3)}


def _memory(cells: pd.DataFrame, inside: Line, facts: dict[str, Any], known: Hardware, source: str) -> dict[str, Any]:
    """A GPU's own figures; on the cpu device, host memory in the place of a GPU's: what copies inside it reach, twice."""
    large = rates(cells, "copy")
    reached = large[0][1] if large else short(2 * inside.bytes_per_s)
    peak = max(known.hbm_bytes_per_s, reached) if large else reached
    return {
        "size": {"bytes": int(facts.get("gpu_bytes", available_bytes())), "source": source},
        "bandwidth": {
            "bytes_per_s": peak,
            "source": f"{known.name}, or what a copy reached if that is more"
            if large
            else f"{source}: twice the copy rate",
        },
        "efficiency": {"value": round(reached / peak, 4), "source": f"{source}: what copies reached"},
    }


def _compute(cells: pd.DataFrame, inside: Line, known: Hardware, source: str) -> dict[str, Any]:
    """Rates by size; and, of a GPU, the roofline's efficiencies: shares of the base's peaks at the largest size."""
    tables = {kernel: rates(cells, kernel) for kernel in MEASURED}
    launch = rates(cells, "launch")
    compute: dict[str, Any] = {
        "kernels": {
            "latency_s": short(1 / launch[0][1]) if launch else short(inside.latency_s),
            "per_layer": known.kernels_per_layer,
            "source": source,
        }
    }
    if all(tables.values()):
        compute["measured"] = {kernel: {"table": table, "source": source} for kernel, table in tables.items()}
    if launch:
        for name, kernel in (("linear", "linear"), ("attention", "prefill_attention")):
            share = round(min(1.0, tables[kernel][-1][1] / known.flops["bf16"]), 4)
            compute[name] = {"efficiency": share, "source": f"{source}: {kernel} at its largest size"}
        compute["attention"]["half_context_tokens"] = known.attention_half_context_tokens
    return compute


def _lines(shown: dict[str, Line]) -> list[str]:
    lines = [
        f"{'direction':24}{'latency us':>12}{'GB/s':>9}{'long GB/s':>11}{'R2':>9}{'worst cell %':>14}{'spread %':>10}"
    ]
    for name, line in shown.items():
        long = line.bytes_per_s / line.burst[-1][1] / 1e9
        figures = f"{1e6 * line.latency_s:12.2f}{line.bytes_per_s / 1e9:9.2f}{long:11.2f}{line.r2:9.4f}"
        lines.append(f"{name:24}{figures}{100 * line.worst_table:14.0f}{100 * line.spread:10.0f}")
    return lines


def _file_lines(cells: pd.DataFrame) -> list[str]:
    """The best of each way and mode of files, and how many calls in flight it took."""
    lines = []
    for mode, words in (("direct", "O_DIRECT"), ("buffered", "page cache, cold"), ("cached", "page cache, warm")):
        for way in ("write", "read"):
            mine = cells[(cells["mode"] == mode) & (cells.way == way)]
            if len(mine):
                rate = mine["size"] / mine.typical_s / 1e9
                best = mine.iloc[int(rate.argmax())]
                lines.append(
                    f"file {way}, {words}: at best {rate.max():.2f} GB/s ({best['size'] >> 10} KiB, {best['blocks']} in flight)"
                )
    return lines


def _kernel_lines(cells: pd.DataFrame) -> list[str]:
    lines = []
    for kernel, unit in (("linear", "FLOPs/s"), ("prefill_attention", "FLOPs/s"), ("decode_attention", "bytes/s")):
        table = rates(cells, kernel)
        if table:
            low, high = table[0], table[-1]
            lines.append(
                f"{kernel.replace('_', ' ')}: {low[1]:.3g} {unit} at {low[0]:,.0f}, {high[1]:.3g} at {high[0]:,.0f}"
            )
    return lines
