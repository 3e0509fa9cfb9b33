"""One matmul over several GPUs: columns of W, rows of it, or both."""

from __future__ import annotations

import math
from typing import Literal

from meshwright.economics.gemm_memory import Matmul, needed, reserved
from meshwright.results.gemm import Rebuild, Split

MOST_GPUS = 65_536

USUAL_GPUS = 8
"""What is told of where no split fits: a node."""

Kind = Literal["column", "row", "2d"]


KINDS: tuple[Kind, ...] = ("column", "row", "2d")


def splits(own: Matmul, usable: int, gpus: int | None) -> list[Split]:
    """Return a split of each kind over `gpus`, or over the fewest on which it fits.

    A kind that fits on no number of GPUs is told of on those of another kind.
    """
    if gpus is None:
        grids = {kind: _fewest(own, kind, usable) for kind in KINDS}
        counts = [math.prod(grid) for grid in grids.values() if grid]
        gpus = min(counts, default=USUAL_GPUS)
    else:
        grids = dict.fromkeys(KINDS)
    found = ((kind, grids[kind] or _split(own, kind, gpus)) for kind in KINDS)
    return [_told(own, kind, grid, usable) for kind, grid in found if grid]


def _split(own: Matmul, kind: Kind, gpus: int) -> tuple[int, int] | None:
    """Return the parts of k and of n, as even as they can be; None without any."""
    if kind != "2d":
        grid = (1, gpus) if kind == "column" else (gpus, 1)
    else:
        rows = next(r for r in range(math.isqrt(gpus), 0, -1) if gpus % r == 0)
        grid = (rows, gpus // rows)
    is_2d = grid[0] > 1 and grid[1] > 1
    fits = grid[0] <= own.k and grid[1] <= own.n
    return grid if fits and is_2d == (kind == "2d") else None


def _fewest(own: Matmul, kind: Kind, usable: int) -> tuple[int, int] | None:
    """Return the grid of the fewest GPUs on which a kind fits."""
    if not _can_fit(own, kind, usable):
        return None
    for gpus in range(2, MOST_GPUS + 1):
        grid = _split(own, kind, gpus)
        if grid is not None and needed(own.shard(*grid)) <= usable:
            return grid
    return None


def _can_fit(own: Matmul, kind: Kind, usable: int) -> bool:
    """Return whether the thinnest shards fit: all of A or all of Y stays with them."""
    parts_of_k = 1 if kind == "column" else own.k
    parts_of_n = 1 if kind == "row" else own.n
    return needed(own.shard(parts_of_k, parts_of_n)) <= usable


def _told(own: Matmul, kind: Kind, grid: tuple[int, int], usable: int) -> Split:
    """Return what each GPU of a split holds, and what makes Y whole.

    A part of k gives a partial sum of Y, which an all-reduce over those parts adds up;
    a part of n gives columns of Y, which an all-gather joins (Shoeybi et al. 2019,
    section 3; both: van de Geijn and Watts 1997, SUMMA, without its broadcasts).
    """
    shard = own.shard(*grid)
    held, rest = needed(shard), own.bytes.y - shard.bytes.y
    reduce = Rebuild(operation="all_reduce", ranks=grid[0], bytes=shard.bytes.y)
    gather = Rebuild(operation="all_gather", ranks=grid[1], bytes=own.bytes.y)
    whole = reserved(own.bytes.y) if rest else 0
    return Split(
        kind=kind,
        gpus=grid[0] * grid[1],
        grid=grid,
        a=(shard.m, shard.k),
        w=(shard.k, shard.n),
        y=(shard.m, shard.n),
        bytes=shard.bytes,
        needed=held,
        fits=held <= usable,
        rebuild=tuple(own for own in (reduce, gather) if own.ranks > 1),
        fits_rebuilt=held + whole <= usable,
    )
