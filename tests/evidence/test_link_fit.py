"""Links fitted to logs of nccl-tests: how well, and what they make of levels.

Real logs are read from the folder that MESHWRIGHT_SHARED names; without it those tests
are skipped. All other logs are written here.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.cost.traffic import all_gather_s, all_reduce_s
from meshwright.errors import SpecError
from meshwright.evidence.fitted_topology import apply
from meshwright.evidence.link_fit import LinkFit, fit_log, predicted_s
from meshwright.imports.nccl_tests import NcclLog, parse
from meshwright.spec.topology import USUAL_BUS_SHARE, Level, ScaleOut
from meshwright.topology.fabric import LevelFabric
from tests.helpers.command import run
from tests.imports.test_nccl_tests_log import (
    HEADING,
    bus,
    each_sample,
    needs_samples,
    read,
    samples,
)

TARGET = 0.10
"""Median relative error from 1 MiB on, as the project promises."""


@needs_samples
@each_sample
def test_a_real_log_is_fitted(sample: dict[str, Any]) -> None:
    log = read(sample)
    fit = fit_log(log)
    errors = {row.size_bytes: abs(error_of(fit, row)) for row in log.timed}
    large = [error for size, error in errors.items() if size >= 2**20]
    small = [error for size, error in errors.items() if size < 2**20]
    below = f"{statistics.median(small):.1%}" if small else "-"
    told = f"{log.name}: {statistics.median(large):.1%} off, below 1 MiB {below}; {fit}"
    assert statistics.median(large) <= TARGET, told
    peak = max(bus(row) for row in log.timed)
    rates = [
        row.out_of_place.bus_gb_s * row.time_s / predicted_s(fit, row.size_bytes)
        for row in log.timed
        if row.size_bytes >= 2**20
    ]
    assert max(rates) <= peak * 1.001, told


def error_of(fit: LinkFit, row: Any) -> float:
    return float(predicted_s(fit, row.size_bytes) / row.time_s - 1)


CAPPED = 0.15
"""Of a log that shows more than the ports carry: its trees send less than a ring."""

ONE_CLUSTER = [("01_8xa100_allreduce", "07_2xp4de"), ("11_1xp5", "09_2xp5")]
"""All-reduces in one node, and over two such nodes."""


@needs_samples
@pytest.mark.parametrize("names", ONE_CLUSTER, ids=lambda names: names[1])
def test_a_topology_with_fits_prices_the_logs_it_was_fitted_to(
    names: tuple[str, str],
) -> None:
    logs = [read(one) for n in names for one in samples() if f"/{n}" in one["file"]]
    nvlink = {**NVLINK, "gb_s": 450 if "p5" in names[0] else 300}
    found = {**FIELDS, "levels": [nvlink]}
    fields, notes = apply(found, [fit_log(log) for log in logs])
    for log, factors in zip(logs, [(8,), (8, 2)], strict=True):
        errors = [
            abs(mesh_s(fields, factors, row.size_bytes, all_reduce_s) / row.time_s - 1)
            for row in log.timed
            if row.size_bytes >= 2**20
        ]
        told = f"{log.name}: {statistics.median(errors):.1%} off; {notes}"
        is_capped = any(log.name in n and "above the rate" in n for n in notes)
        assert statistics.median(errors) <= (CAPPED if is_capped else TARGET), told


SIZES = [2**exponent for exponent in range(10, 35)]


def table(seconds: Any, factor: float, parts: int = 1, redop: str = "sum") -> str:
    """Return a table of float elements, times and bandwidths as printed."""
    lines: list[str] = []
    for size in SIZES:
        time_us = float(seconds(size)) * 1e6
        alg = size / time_us / 1e3
        cells = f"{time_us:.2f} {alg:.2f} {alg * factor:.2f} 0"
        lines.append(f"  {size} {size // 4 // parts} float {redop} -1 {cells} {cells}")
    return HEADING + "\n".join(lines) + "\n"


def ring_s(size: float, ranks: int, gb_s: float, step_us: float) -> float:
    """An all_gather by the book: n - 1 steps of a part each."""
    return (ranks - 1) * (size / ranks / gb_s / 1e9 + step_us * 1e-6)


def all_gather_log(
    ranks: int, gb_s: float, step_us: float, name: str = "all_gather.log"
) -> NcclLog:
    text = table(
        lambda size: ring_s(size, ranks, gb_s, step_us), 1 - 1 / ranks, ranks, "none"
    )
    return parse(text, name)


@pytest.mark.parametrize("step_us", [2.0, 40.0])
@pytest.mark.parametrize(("ranks", "gb_s"), [(2, 12.5), (8, 230.0), (16, 78.0)])
def test_a_ring_by_the_book_is_found_again(
    ranks: int, gb_s: float, step_us: float
) -> None:
    fit = fit_log(all_gather_log(ranks, gb_s, step_us))
    assert fit.gb_s == pytest.approx(gb_s, rel=0.01)
    # A step goes up an uplink and down another; candidates are 4 % apart.
    assert 2 * fit.latency_us == pytest.approx(step_us, rel=0.05)
    assert fit.median_error < 0.01
    assert fit.is_latency_told


def test_a_log_of_many_sizes_is_fitted_too() -> None:
    log = all_gather_log(8, 230.0, 5.0)
    many = replace(log, rows=log.rows * 400)
    assert fit_log(many).gb_s == pytest.approx(230.0, rel=0.01)
    assert len(fit_log(many).errors) == 400 * len(log.rows)


def test_outliers_pull_little() -> None:
    text = table(lambda s: ring_s(s, 8, 230.0, 5.0), 7 / 8, 8, "none")
    lines = text.splitlines()
    for index in (9, 15):
        cells = lines[index].split()
        cells[5] = f"{float(cells[5]) * 4:.2f}"
        lines[index] = " ".join(cells)
    fit = fit_log(parse("\n".join(lines), "all_gather"))
    assert fit.gb_s == pytest.approx(230.0, rel=0.03)
    assert 2 * fit.latency_us == pytest.approx(5.0, rel=0.1)


def test_tests_without_a_formula_are_not_fitted() -> None:
    row = "1024 32 float none 0 9 10.00 8.75 0"
    log = parse(HEADING + row, "x.log", op="gather")
    with pytest.raises(SpecError, match="op: gather: no formula; accepted: all_reduce"):
        fit_log(log)


NVLINK: dict[str, Any] = {"name": "nvlink", "size": 8, "gb_s": 300, "latency_us": 1.5}
LEAF: dict[str, Any] = {
    "name": "leaf",
    "gb_s": "400 Gbit/s",
    "latency_us": 2,
    "uplink": "per_gpu",
}
FIELDS: dict[str, Any] = {
    "name": "own",
    "gpu": "any",
    "levels": [NVLINK],
    "scale_out": LEAF,
}


def mesh_s(
    fields: dict[str, Any],
    factors: tuple[int, ...],
    size: float,
    formula: Any = all_gather_s,
) -> float:
    """Price a collective of one group on levels, as the product does."""
    levels = [Level(**level) for level in fields["levels"]]
    if len(factors) > len(levels):
        levels.append(Level(**fields["scale_out"], size=factors[-1]))
    fabric, meshes = LevelFabric(levels), np.array([[factors]])
    load = fabric.loads(meshes)[0].max(axis=1) / USUAL_BUS_SHARE
    n = np.array([int(np.prod(factors))])
    return float(formula(np.array([size]), n, load, fabric.latency_s(meshes)[0])[0])


def reached(level: dict[str, Any]) -> float:
    """Return the GB/s that collectives reach on a level."""
    found = ScaleOut.model_validate({k: v for k, v in level.items() if k != "size"})
    return found.gb_s * found.bus_share


def test_logs_of_one_node_and_of_several_give_both_levels() -> None:
    fits = [
        fit_log(all_gather_log(16, 160.0, 12.0, "outer all_gather")),
        fit_log(all_gather_log(8, 230.0, 4.0, "inner all_gather")),
    ]
    fields, notes = apply(FIELDS, fits)
    (inner,), outer = fields["levels"], fields["scale_out"]
    assert reached(inner) == pytest.approx(230, rel=0.01)
    assert inner["latency_us"] == pytest.approx(2, rel=0.05)
    # Eight uplinks carry one ring between them: 160 / 8. One of 15 hops leaves a node:
    # 15 x 12 us are 14 x 4 us and one of 124 us, 2 x (2 + 60).
    assert reached(outer) == pytest.approx(20, rel=0.01)
    assert outer["latency_us"] == pytest.approx(60, rel=0.1)
    assert notes[0].startswith("nvlink: bus_share 0.8 -> 0.76")
    assert notes[2].startswith("leaf: bus_share 0.8 -> ")
    assert (inner["gb_s"], outer["gb_s"]) == (300, "400 Gbit/s"), "rates stay"
    assert FIELDS["levels"] == [NVLINK], "what was given stays as it was"
    for size in (2**14, 2**20, 2**28):
        for fit, factors in zip(fits, [(8, 2), (8,)], strict=True):
            predicted = predicted_s(fit, size)
            assert mesh_s(fields, factors, size) == pytest.approx(predicted, rel=0.01)


def test_a_shared_uplink_carries_the_whole_ring() -> None:
    shared = {**FIELDS, "scale_out": {**LEAF, "uplink": "shared"}}
    fields, _ = apply(shared, [fit_log(all_gather_log(16, 20.0, 12.0))])
    assert reached(fields["scale_out"]) == pytest.approx(20, rel=0.01)
    fit = fit_log(all_gather_log(16, 20.0, 12.0))
    assert mesh_s(fields, (8, 2), 2**26) == pytest.approx(predicted_s(fit, 2**26), 0.01)


def test_slow_inner_levels_and_left_out_logs_are_told() -> None:
    fits = [
        fit_log(all_gather_log(16, 700.0, 12.0, "fast all_gather")),
        fit_log(all_gather_log(16, 600.0, 12.0, "slow all_gather")),
    ]
    fields, notes = apply(FIELDS, fits)
    # 600 over eight uplinks are 75 each, and a port of 400 Gbit/s has 50
    assert reached(fields["scale_out"]) == 50
    assert any("GB/s, above the rate of 50, which is kept" in n for n in notes)
    assert notes[0] == "fast all_gather: left out; another log of its level is slower."
    assert any(note.startswith("nvlink: lets 240 GB/s through") for note in notes)


def test_latency_stays_where_a_log_has_large_sizes_only() -> None:
    text = table(lambda s: ring_s(s, 8, 230, 4), 7 / 8, 8, "none")
    fit = fit_log(parse("\n".join(text.splitlines()[-3:]), "all_gather"))
    fields, notes = apply(FIELDS, [fit])
    assert fields["levels"][0]["latency_us"] == 1.5
    assert notes[-1] == "nvlink: latency_us kept: all_gather has large sizes only."


def test_bandwidth_stays_where_a_log_has_small_sizes_only() -> None:
    text = table(lambda s: ring_s(s, 8, 230, 4), 7 / 8, 8, "none")
    lines = text.splitlines()
    small = [line for line in lines if not line.split()[0].isdigit()] + [
        line
        for line in lines
        if line.split()[0].isdigit() and int(line.split()[0]) < 2**20
    ]
    fields, notes = apply(FIELDS, [fit_log(parse("\n".join(small), "all_gather"))])
    assert "bus_share" not in fields["levels"][0]
    assert fields["levels"][0]["latency_us"] == pytest.approx(2, rel=0.3)
    assert notes[0] == (
        "nvlink: bus_share kept: the sizes of all_gather are too small to tell."
    )


def test_one_gpu_a_machine_does_not_tell_what_all_share() -> None:
    shared = {**FIELDS, "scale_out": {**LEAF, "uplink": "shared"}}
    log = replace(all_gather_log(4, 12.0, 12.0), nodes=4)
    fields, notes = apply(shared, [fit_log(log)])
    assert "bus_share" not in fields["scale_out"]
    assert "has one GPU a machine, and 12 GB/s of one do not tell" in notes[0]
    fields, _ = apply(FIELDS, [fit_log(log)])
    assert reached(fields["scale_out"]) == pytest.approx(12, rel=0.01)


def test_ranks_that_no_level_holds_are_refused() -> None:
    log = all_gather_log(12, 50.0, 4.0)
    with pytest.raises(SpecError, match="12 ranks do not fill levels of 8 x any"):
        apply(FIELDS, [fit_log(log)])
    with pytest.raises(SpecError, match="levels: missing"):
        apply({"nodes": []}, [fit_log(log)])
    with pytest.raises(SpecError, match=r"levels\[0\].gb_s: "):
        apply({"levels": [{**NVLINK, "gb_s": "fast"}]}, [fit_log(log)])


def test_an_all_reduce_of_few_bytes_is_a_tree() -> None:
    """Eight ranks by the formula of the product itself: ring or tree."""
    step, gb_s = np.array([8e-6]), 200e9

    def seconds(size: float) -> Any:
        return all_reduce_s(
            np.array([size]), np.array([8]), np.array([1 / gb_s]), step
        )[0]

    fit = fit_log(parse(table(seconds, 1.75), "x.log"))
    # 2 x ceil(log2(8)) = 6 steps of 8 us up and down the tree.
    assert predicted_s(fit, 8) == pytest.approx(48e-6, rel=0.05)
    assert fit.median_error < 0.02


def test_links_slower_than_any_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "slow.log"
    log.write_text("# size count type redop root time algbw busbw #wrong\n"
                   "1048576 262144 float sum -1 9e9 0.01 0.01 0\n")  # fmt: skip
    result = run("import", "nccl_tests", str(log), "--onto", "h100-nvlink-2", "--ranks",
                 "2", "--op", "all_reduce")  # fmt: skip
    assert result.code == 2
    assert f"h100-nvlink-2, fitted to {log}: levels.0.bus_share: " in result.stderr
    assert "expected a number from 0.0001" in result.stderr
