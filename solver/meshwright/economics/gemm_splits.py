"""One matmul split over several GPUs: by columns of W, by its rows, or by both."""

from __future__ import annotations

import math
from typing import Literal

from meshwright.economics.gemm_memory import Matmul, needed, reserved
from meshwright.results.gemm import GemmSplit, Rebuild

MOST_GPUS = 65_536

USUAL_GPUS = 8
"""GPUs of the splits that are shown where none fits: those of one node."""

SplitKind = Literal["column", "row", "2d"]

KINDS: tuple[SplitKind, ...] = ("column", "row", "2d")


def splits(matmul: Matmul, usable: int, gpus: int | None) -> list[GemmSplit]:
    """Return a split of each kind over `gpus`, or over the fewest GPUs that suffice.

    A kind that fits on no number of GPUs is shown on as many as another kind needs.
    """
    if gpus is None:
        grids = {kind: _smallest_grid(matmul, kind, usable) for kind in KINDS}
        counts = [math.prod(grid) for grid in grids.values() if grid]
        gpus = min(counts, default=USUAL_GPUS)
    else:
        grids = dict.fromkeys(KINDS)
    found = ((kind, grids[kind] or _even_grid(matmul, kind, gpus)) for kind in KINDS)
    return [_split(matmul, kind, grid, usable) for kind, grid in found if grid]


def _even_grid(matmul: Matmul, kind: SplitKind, gpus: int) -> tuple[int, int] | None:
    """Return the parts of k and of n, as equal as can be; None if impossible."""
    if kind != "2d":
        grid = (1, gpus) if kind == "column" else (gpus, 1)
    else:
        rows = next(r for r in range(math.isqrt(gpus), 0, -1) if gpus % r == 0)
        grid = (rows, gpus // rows)
    is_2d = grid[0] > 1 and grid[1] > 1
    fits = grid[0] <= matmul.k and grid[1] <= matmul.n
    return grid if fits and is_2d == (kind == "2d") else None


def _smallest_grid(
    matmul: Matmul, kind: SplitKind, usable: int
) -> tuple[int, int] | None:
    """Return the grid over the fewest GPUs on which a kind of split fits."""
    if not _can_fit(matmul, kind, usable):
        return None
    for gpus in range(2, MOST_GPUS + 1):
        grid = _even_grid(matmul, kind, gpus)
        if grid is not None and needed(matmul.shard(*grid)) <= usable:
            return grid
    return None


def _can_fit(matmul: Matmul, kind: SplitKind, usable: int) -> bool:
    """Return whether the smallest shards of a kind fit."""
    parts_of_k = 1 if kind == "column" else matmul.k
    parts_of_n = 1 if kind == "row" else matmul.n
    return needed(matmul.shard(parts_of_k, parts_of_n)) <= usable


def _split(
    matmul: Matmul, kind: SplitKind, grid: tuple[int, int], usable: int
) -> GemmSplit:
    """Return what a GPU of a split holds, and the collectives that make Y whole.

    A part of k gives a partial sum of Y, which an all-reduce over the parts adds up; a
    part of n gives columns of Y, which an all-gather joins (Shoeybi et al. 2019,
    section 3; both: van de Geijn and Watts 1997, SUMMA, without its broadcasts).
    """
    shard = matmul.shard(*grid)
    held, rest = needed(shard), matmul.bytes.y - shard.bytes.y
    reduce = Rebuild(operation="all_reduce", ranks=grid[0], bytes=shard.bytes.y)
    gather = Rebuild(operation="all_gather", ranks=grid[1], bytes=matmul.bytes.y)
    whole = reserved(matmul.bytes.y) if rest else 0
    return GemmSplit(
        kind=kind,
        gpus=grid[0] * grid[1],
        grid=grid,
        a=(shard.m, shard.k),
        w=(shard.k, shard.n),
        y=(shard.m, shard.n),
        bytes=shard.bytes,
        needed=held,
        fits=held <= usable,
        rebuild=tuple(step for step in (reduce, gather) if step.ranks > 1),
        fits_rebuilt=held + whole <= usable,
    )
