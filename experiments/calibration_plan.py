"""How much a calibration measures: sizes, batches, repeats, and the cells that follow from them."""

import itertools
from dataclasses import dataclass

from hw.measure import Cell

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FILE_MODES = ("direct", "buffered", "cached")


@dataclass(frozen=True)
class Plan:
    """Sizes are of a block or of a file's row; depths are calls in flight."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...]  # blocks, ascending
    batch_bytes: int  # where larger batches are cut, to 8 blocks at least
    file_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    pool_bytes: int
    file_bytes: int
    cell_bytes: int  # moved in one repeat, at least, but for
    most_batches: int  # a repeat: a batch is a run of the device, and short ones are mostly that
    kernels: int  # sizes of each kernel
    repeats: int


FULL = Plan(
    sizes=tuple(KIB * n for n in (4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)),
    batches=(1, 16, 256, 4096),
    batch_bytes=256 * MIB,
    file_sizes=tuple(KIB * n for n in (16, 64, 256, 1024, 4096)),
    depths=(1, 4, 8),
    pool_bytes=1536 * MIB,
    file_bytes=256 * MIB,
    cell_bytes=64 * MIB,
    most_batches=128,
    kernels=8,
    repeats=7,
)
QUICK = Plan(
    sizes=tuple(KIB * n for n in (4, 16, 64, 256, 1024, 4096)),
    batches=(1, 16, 256, 2048),
    batch_bytes=128 * MIB,
    file_sizes=tuple(KIB * n for n in (64, 256, 1024)),
    depths=(1, 8),
    pool_bytes=1536 * MIB,
    file_bytes=32 * MIB,
    cell_bytes=16 * MIB,
    most_batches=64,
    kernels=4,
    repeats=5,
)


def copy_cells(plan: Plan, others: tuple[str, ...]) -> list[Cell]:
    """Alone in every batch; both ways, beside kernels and by the `others` among strategies in the larger ones."""
    cells = []
    for size in plan.sizes:
        batches = list(dict.fromkeys(min(blocks, max(8, plan.batch_bytes // size)) for blocks in plan.batches))
        middle = batches[len(batches) // 2]
        for way, blocks in itertools.product(("d2h", "h2d", "d2d"), batches):
            cells.append(Cell(way, size, blocks, "alone"))
        for mode, way in itertools.product(("both", "busy"), ("d2h", "h2d")):
            cells.append(Cell(way, size, middle, mode))
        cells += [Cell("stamp", size, middle, mode) for mode in ("alone", "busy")]
        for mode, way in itertools.product(others, ("d2h", "h2d")):
            cells.append(Cell(way, size, middle, mode))
    return cells


def batches_a_repeat(plan: Plan, cell: Cell) -> int:
    """So many that `cell_bytes` are moved, or the most there are."""
    return min(plan.most_batches, -(-plan.cell_bytes // (cell.size * cell.blocks)))


def file_cells(plan: Plan) -> list[Cell]:
    """Every size, mode, number of calls in flight and direction."""
    return [
        Cell(way, size, depth, mode)
        for size, mode, depth, way in itertools.product(plan.file_sizes, FILE_MODES, plan.depths, ("write", "read"))
    ]


def calls_a_repeat(plan: Plan, cell: Cell, rows: int) -> int:
    """Two calls a thread at least, no row twice."""
    return min(rows, max(cell.blocks * 2, plan.cell_bytes * 5 // 8 // cell.size))
