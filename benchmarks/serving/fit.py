"""Fits the numbers of engines to throughputs: `python -m benchmarks.serving.fit`.

It prints what a fit to all rows gives, which is what the product ships, and judges
every source by a fit to the other sources.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.serving.by_source import CLOSE, by_source
from benchmarks.serving.rows import Row, errors, rows
from meshwright.plans.columns import Floats
from meshwright.serving.deployment import Engine

ESTIMATED = Engine(memory=0.85, pass_s=1e-3, unpack_bytes=0.42, reread=2.5)
"""The numbers without any fit.

Copies reach 80-90 % of memory bandwidth. A millisecond between passes is an estimate:
vLLM 0.5 spent 29 % of the time of Llama 3 8B on H100 on scheduling (vLLM blog,
September 2024, v0.6.0). Two instructions a weight, at 64 lanes of 108 multiprocessors
and 1.41 GHz, take as long as 0.42 bytes at 2.04 TB/s (NVIDIA A100 whitepaper). An L2
cache that is read 2.5 times as fast as memory is an estimate.
"""

GRID: dict[str, tuple[float, ...]] = {
    "memory": (0.70, 0.72, 0.74, 0.76, 0.78, 0.80, 0.82, 0.85, 0.88),
    "pass_s": (1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.25e-3, 1.5e-3, 2e-3, 3e-3),
    "reread": (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0),
}
"""The values that a fit tries, in every combination.

`Engine.unpack_bytes` is not among them: without gpt-fast one row has int8 weights.
"""

CAUTION = 0.01
"""Mean error that a number must save to move by a factor of e from its estimate;
twice the logarithm of the factor, four times as much."""


def fit(found: list[Row], off: list[Floats]) -> Engine:
    """Return the numbers of the least mean error of rows, with their `tried` errors.

    The rows of a source of n weigh n^-0.5, so that a long table counts for more than a
    short one, and not for everything.
    """
    sources = [row.source for row in found]
    weights = np.array([sources.count(source) ** -0.5 for source in sources])
    mean = np.array(_moved())
    for weight, one in zip(weights / weights.sum(), off, strict=True):
        mean = mean + weight * abs(one)
    best = np.unravel_index(int(mean.argmin()), mean.shape)
    chosen = zip(GRID.items(), best, strict=True)
    return replace(ESTIMATED, **{name: one[at] for (name, one), at in chosen})


def _moved() -> Floats:
    """Return the caution that every combination of values is charged."""
    logs = (np.log(np.array(v) / getattr(ESTIMATED, name)) for name, v in GRID.items())
    moved = np.meshgrid(*logs, indexing="ij")
    return np.asarray(CAUTION * sum(axis**2 for axis in moved))


def tried(row: Row) -> Floats:
    """Return the errors of a row at all combinations of values.

    The array has an axis per number, of length one where the row does not depend on it.
    Seconds grow in proportion to the host's, so that they are priced for none and one.
    """
    inference, model = row.spec.inference, row.spec.model
    is_reread = inference.decode_attention == "per_head"
    is_reread &= model.n_heads > model.n_kv_heads
    rereads = GRID["reread"] if is_reread else (ESTIMATED.reread,)
    quiet = replace(ESTIMATED, pass_s=0)
    gpu = [
        1 / row.predicted(replace(quiet, memory=memory, reread=reread))
        for memory, reread in itertools.product(GRID["memory"], rereads)
    ]
    base = np.array(gpu).reshape(len(GRID["memory"]), 1, len(rereads))
    slope = 1 / row.predicted(ESTIMATED) - 1 / row.predicted(quiet)
    host = slope * np.array(GRID["pass_s"])[None, :, None] / ESTIMATED.pass_s
    return np.asarray(-np.log((base + host) * row.measured))


def left_out(found: list[Row], off: list[Floats]) -> dict[str, Engine]:
    """Return for every source the fit to all others."""
    result = {}
    for source in dict.fromkeys(row.source for row in found):
        kept = [i for i, row in enumerate(found) if row.source != source]
        result[source] = fit([found[i] for i in kept], [off[i] for i in kept])
    return result


def main() -> None:
    """Fit and print."""
    found = [row for row in rows() if row.metric == "tokens_per_s"]
    off, console = [tried(row) for row in found], Console(width=150)
    others = left_out(found, off)
    console.print(_numbers({"(estimated)": ESTIMATED, "": fit(found, off), **others}))
    columns = {
        "estimated": errors(found, ESTIMATED),
        "others": np.array([row.error(others[row.source]) for row in found]),
    }
    console.print(_steps(found))
    title = "Numbers as estimated, and as fitted to the other sources"
    console.print(by_source(title, found, columns))


def _steps(found: list[Row]) -> Table:
    """Return how close predictions come with one effect after the other."""
    none = replace(ESTIMATED, pass_s=0, unpack_bytes=0, reread=math.inf)
    unpacked = replace(none, unpack_bytes=ESTIMATED.unpack_bytes)
    reread = replace(unpacked, reread=ESTIMATED.reread)
    steps = {
        "nothing of this": none,
        "int8 and int4 are unpacked": unpacked,
        "per-head kernels reread": reread,
        "the GPU waits for the host": ESTIMATED,
        "fitted": Engine(),
    }
    table = Table("with", "within 20 %", "median", title="One effect after the other")
    for name, engine in steps.items():
        off = abs(errors(found, engine))
        median = f"{np.expm1(np.median(off)):.1%}"
        table.add_row(name, str(int((off <= CLOSE).sum())), median)
    return table


def _numbers(fits: dict[str, Engine]) -> Table:
    table = Table(title="Numbers fitted to all sources but one")
    table.add_column("all but")
    for name in GRID:
        table.add_column(name, justify="right")
    for source, engine in fits.items():
        table.add_row(source, *(f"{getattr(engine, name):g}" for name in GRID))
    return table


if __name__ == "__main__":
    main()
