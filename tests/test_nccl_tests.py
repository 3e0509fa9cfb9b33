"""Logs of nccl-tests: what is read, what is refused, and how well links are fitted.

Real logs are read from the folder that MESHWRIGHT_SHARED names; without it those tests
are skipped. All other logs are written here.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.collectives import all_gather_s, all_reduce_s
from meshwright.errors import SpecError
from meshwright.imports.link_fit import LinkFit, fit_log, predicted_s
from meshwright.imports.link_levels import apply
from meshwright.imports.nccl_tests import NcclLog, parse
from meshwright.spec.links import Level
from meshwright.topology.levels import LevelFabric

TARGET = 0.10
"""Median relative error from 1 MiB on, as the project promises."""

HEADING = (
    "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
)


def samples() -> list[dict[str, Any]]:
    shared = os.environ.get("MESHWRIGHT_SHARED")
    index = Path(shared or "", "samples", "INDEX.yaml")
    if not shared or not index.is_file():
        return []
    data = yaml.safe_load(index.read_text(encoding="utf-8"))["samples"]
    return [one for one in data if one["kind"] == "nccl_tests"]


def read(sample: dict[str, Any]) -> NcclLog:
    path = Path(os.environ["MESHWRIGHT_SHARED"], "samples", sample["file"])
    return parse(path.read_text(encoding="utf-8"), sample["file"])


needs_samples = pytest.mark.skipif(
    not samples(), reason="MESHWRIGHT_SHARED names no folder with samples/INDEX.yaml"
)
each_sample = pytest.mark.parametrize(
    "sample",
    [one for one in samples() if one["expect"]["rows"]] or [{}],
    ids=lambda one: one.get("file", "none"),
)


@needs_samples
@each_sample
def test_a_real_log_is_read(sample: dict[str, Any]) -> None:
    log, expect = read(sample), sample["expect"]
    first, last, peak = log.rows[0], log.rows[-1].out_of_place, max(log.timed, key=bus)
    large = log.timed[-1].out_of_place
    seen = {
        "rows": len(log.rows),
        "ranks_listed": log.ranks_listed,
        "devices": list(log.devices),
        "first_size": first.size_bytes,
        "last_size": log.rows[-1].size_bytes,
        "last_oop_us": last.time_us,
        "last_oop_algbw": last.alg_gb_s,
        "last_oop_busbw": last.bus_gb_s,
        "dtype": first.dtype,
        "busbw_over_algbw": round(large.bus_gb_s / large.alg_gb_s, 4),
        "avg_busbw": log.average_gb_s,
        "peak_oop_busbw": bus(peak),
        "op": f"{log.op}_perf",
        "ranks": log.ranks,
    }
    known = {name: value for name, value in expect.items() if name in seen}
    assert {name: seen[name] for name in known} == known
    if "median_us_8B_to_4KiB" in expect:
        small = [r.time_s * 1e6 for r in log.timed if 8 <= r.size_bytes <= 4096]
        middle = statistics.median_high(small)
        assert middle == pytest.approx(expect["median_us_8B_to_4KiB"])


def bus(row: Any) -> float:
    return float(row.out_of_place.bus_gb_s)


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


ONE_CLUSTER = [("01_8xa100_allreduce", "07_2xp4de"), ("11_1xp5", "09_2xp5")]
"""All-reduces in one node, and over two such nodes."""


@needs_samples
@pytest.mark.parametrize("names", ONE_CLUSTER, ids=lambda names: names[1])
def test_a_topology_with_fits_prices_the_logs_it_was_fitted_to(
    names: tuple[str, str],
) -> None:
    logs = [read(one) for n in names for one in samples() if f"/{n}" in one["file"]]
    fields, notes = apply(FIELDS, [fit_log(log) for log in logs])
    for log, factors in zip(logs, [(8,), (8, 2)], strict=True):
        errors = [
            abs(mesh_s(fields, factors, row.size_bytes, all_reduce_s) / row.time_s - 1)
            for row in log.timed
            if row.size_bytes >= 2**20
        ]
        told = f"{log.name}: {statistics.median(errors):.1%} off; {notes}"
        assert statistics.median(errors) <= TARGET, told


@needs_samples
def test_what_another_tool_prints_is_refused() -> None:
    others = [one for one in samples() if not one["expect"]["rows"]]
    assert others
    for sample in others:
        with pytest.raises(SpecError, match="no row of nccl-tests"):
            read(sample)


# Logs of our own.

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


ROW = "1048576 262144 float sum -1 50.00 20.97 36.70 0 49.00 21.40 37.45 0"


@pytest.mark.parametrize(
    "prefix",
    ["", "      ", "0: ", " 3: ", "[1,0]<stdout>:", "    [1,12]<stdout>:  ", "> ",
     "launcher-abc12 | ", "|", "2024-05-01T10:00:00.123Z ", "\x1b[32m", "# "],
)  # fmt: skip
def test_whatever_stands_before_a_row_does_not_matter(prefix: str) -> None:
    log = parse(f"{prefix}{HEADING}{prefix}{ROW}\n", "x.log")
    (row,) = log.rows
    # 36.70 / 20.97 = 1.7501 = 2 x 7 / 8
    assert (log.op, log.ranks, row.size_bytes) == ("all_reduce", 8, 1048576)
    assert (row.out_of_place.time_us, row.root) == (50.0, -1)
    assert row.in_place is not None
    assert row.in_place.time_us == 49.0


def test_a_table_of_a_page_is_read() -> None:
    log = parse("| " + ROW.replace(" ", " | ") + " |", "x.md")
    assert (log.op, log.rows[0].out_of_place.bus_gb_s) == ("all_reduce", 36.70)


@pytest.mark.parametrize(
    ("heading", "row"),
    [
        # old: no root, error for wrong; middle and new; no heading at all
        ("# size count type redop time algbw busbw error time algbw busbw error",
         "1048576 262144 float sum 50 20.97 36.70 1e-06 49 21.40 37.45 N/A"),
        ("size count type redop root time algbw busbw wrong time algbw busbw wrong",
         ROW.replace(" 0 ", " N/A ")),
        ("", ROW),
        ("", "1048576 262144 float sum 50 20.97 36.70 0 49 21.40 37.45 0"),
        ("", "1048576 524288 bfloat16 sum -1 50 20.97 36.70 0 N/A N/A N/A N/A"),
        ("", "1048576 524288 half sum -1 50 20.97 36.70 0"),
    ],
)  # fmt: skip
def test_old_and_new_columns_are_read(heading: str, row: str) -> None:
    noise = "host:1:1 [0] NCCL INFO Channel 00/08 : 0 1 2 3\n...\n"
    log = parse(f"{heading}\n{noise}{row}\n{noise}", "x.log")
    timing = log.rows[0].out_of_place
    assert (timing.time_us, timing.alg_gb_s, timing.bus_gb_s) == (50.0, 20.97, 36.70)
    assert (log.op, log.ranks) == ("all_reduce", 8)


def test_the_list_of_ranks_tells_hosts_and_devices() -> None:
    listed = "".join(
        f"#  Rank {rank:2} Group  0 Pid   77{rank} on  node{rank // 2} device  "
        f"{rank % 2} [0000:1{rank}:00] NVIDIA Fancy 80GB \n"
        for rank in range(4)
    )
    row = "1024 256 float none 0 9.00 0.11 0.11 0 9.00 0.11 0.11 0\n"
    log = parse(listed + HEADING + row, "x.log")
    assert (log.op, log.ranks, log.nodes, log.ranks_listed) == ("broadcast", 4, 2, 4)
    assert log.devices == ("NVIDIA Fancy 80GB",)


def test_groups_side_by_side_are_not_one() -> None:
    listed = "".join(
        f"#  Rank {rank} Group {rank // 8} Pid 7 on h device {rank} [0x00] G\n"
        for rank in range(16)
    )
    assert parse(listed + HEADING + ROW, "x.log").ranks == 8


def test_a_list_cut_to_its_last_line_still_counts() -> None:
    listed = "#  Rank 71 Group 0 Pid 7 on h device 3 [0x01] G\n"
    # 2 x 71 / 72 = 1.97222; to two decimals 71 to 73 ranks print 100.00 and 197.22
    row = "1000000000 250000000 float sum -1 10000 100.00 197.22 0\n"
    assert parse(listed + HEADING + row, "x.log").ranks == 72


OPS_BY_COLUMNS = [
    ("1024 256 float sum -1 9 10.00 17.50 0", "all_reduce", 8),
    ("1024 32 float sum -1 9 10.00 8.75 0", "reduce_scatter", 8),
    ("1024 32 float none -1 9 10.00 8.75 0", None, 8),
    ("1024 256 float sum 2 9 10.00 10.00 0", "reduce", None),
    ("1024 256 float none -1 9 10.00 10.00 0", "sendrecv", None),
]


@pytest.mark.parametrize(("row", "op", "ranks"), OPS_BY_COLUMNS)
def test_columns_tell_the_test_or_the_user_is_asked(
    row: str, op: str | None, ranks: int | None
) -> None:
    text = HEADING + row
    if op is None:
        with pytest.raises(SpecError, match=r"op: the log does not say; .*alltoall"):
            parse(text, "x.log")
        assert parse(text, "x.log", op="alltoall_perf").op == "alltoall"
        assert parse(text, "8-gpu-AllGather.log").op == "all_gather"
        assert parse("$ ./build/all_gather_perf_mpi -b\n" + text, "").op == "all_gather"
        return
    if ranks is None:
        with pytest.raises(SpecError, match="ranks: the log does not say"):
            parse(text, "x.log")
    log = parse(text, "x.log", ranks=ranks or 4)
    assert (log.op, log.ranks) == (op, ranks or 4)


def test_two_ranks_reduce_or_send_and_the_log_says_which_it_was_taken_for() -> None:
    log = parse(HEADING + "1024 256 float sum -1 9 10.00 10.00 0", "x.log")
    assert (log.op, log.ranks) == ("all_reduce", 2)
    assert log.notes == (
        "Taken for all_reduce; sendrecv would print the same columns.",
    )


def test_one_test_of_several_is_chosen_by_the_user() -> None:
    gather = "1024 32 float none -1 9 10.00 8.75 0\n"
    text = (
        f"# Collective test starting: all_reduce_perf\n{HEADING}{ROW}\n"
        f"# Collective test concluded: all_reduce_perf\n"
        f"# Collective test starting: all_gather_perf\n{HEADING}{gather}"
    )
    with pytest.raises(SpecError, match=r"several tests.*all_reduce, all_gather"):
        parse(text, "x.log")
    assert [row.count for row in parse(text, "", op="all_gather").rows] == [32]
    assert [row.count for row in parse(text, "", op="all_reduce").rows] == [262144]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (ROW.replace("50.00", "XXX.XX"), "x.log:2: time: 'XXX.XX'"),
        (ROW.replace("36.70", "N/A"), "x.log:2: busbw: 'N/A'"),
        (ROW.replace("50.00", "nan"), "x.log:2: time: 'nan'"),
        (ROW.replace("50.00", "-5"), "x.log:2: time: '-5'"),
        (ROW.replace("50.00", "0.00"), "x.log:2: time: '0.00': expected a number abov"),
        (ROW.replace("49.00", "inf"), "x.log:2: time: 'inf'"),
        ("1048576 262144 float sum -1 50.00", "x.log:2: cut off"),
        (ROW + "\n# Avg bus bandwidth : XX.X", "x.log:3: average: 'XX.X'"),
        ("0 0 float sum -1 0.1 0.00 0.00 0", "x.log: op: None: no row moves a byte"),
        (ROW.replace("36.70", "0.00").replace("37.45", "0.00"), "x.log: busbw is 0"),
        (f"{ROW}\n{HEADING}{ROW}", "x.log:3: a second table; expected the log of one"),
        ("size 3 GB: 200 GB/s", "x.log: no row of nccl-tests; expected size, count"),
    ],
)
def test_what_is_no_log_is_refused_with_its_line(row: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(HEADING + row, "x.log")
    assert str(error.value).startswith(told)


def test_what_the_user_says_must_agree_with_the_columns() -> None:
    with pytest.raises(SpecError, match="op: 'allreduse': expected all_reduce, all_"):
        parse(HEADING + ROW, "x.log", op="allreduse")
    with pytest.raises(SpecError, match="op: all_gather: the columns are those of"):
        parse(HEADING + ROW, "x.log", op="all_gather")
    log = parse(HEADING + ROW, "x.log", ranks=16)
    assert log.ranks == 16
    assert log.notes == ("16 ranks are given, but the columns are those of 8.",)


WORDS = [
    "1048576", "262144", "0", "-1", "float", "half", "sum", "none", "N/A", "50.00",
    "1e400", "nan", "#", "Rank", "Pid", "on", "device", "[0x00]", "algbw", "busbw",
    "redop", "root", "\n", "\n", "Avg bus bandwidth :", "all_reduce_perf", "9" * 30,
    "Collective test starting: all_gather_perf", "\x1b[4m", "Group",
]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join), st.text())
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        log = parse(text, name)
        fit = fit_log(log)
    except SpecError:
        return
    assert log.timed
    assert all(predicted_s(fit, row.size_bytes) > 0 for row in log.timed)


def test_long_lines_take_no_time() -> None:
    for line in ("1 " * 200_000, "9" * 400_000, " " * 400_000, "Rank 1 Pid" * 50_000):
        with pytest.raises(SpecError):
            parse(line, "x.log")


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
    load = fabric.loads(meshes)[0].max(axis=1)
    n = np.array([int(np.prod(factors))])
    return float(formula(np.array([size]), n, load, fabric.latency_s(meshes)[0])[0])


def test_logs_of_one_node_and_of_several_give_both_levels() -> None:
    fits = [
        fit_log(all_gather_log(16, 160.0, 12.0, "outer all_gather")),
        fit_log(all_gather_log(8, 230.0, 4.0, "inner all_gather")),
    ]
    fields, notes = apply(FIELDS, fits)
    (inner,), outer = fields["levels"], fields["scale_out"]
    assert inner["gb_s"] == pytest.approx(230, rel=0.01)
    assert inner["latency_us"] == pytest.approx(2, rel=0.05)
    # Eight uplinks carry one ring between them: 160 / 8. Steps: 2 x (2 + 4) us.
    assert outer["gb_s"] == pytest.approx(20, rel=0.01)
    assert outer["latency_us"] == pytest.approx(4, rel=0.1)
    assert notes[0].startswith("nvlink: gb_s 300 -> 2")
    assert notes[2].startswith("leaf: gb_s 400 Gbit/s -> ")
    assert FIELDS["levels"] == [NVLINK], "what was given stays as it was"
    for size in (2**14, 2**20, 2**28):
        for fit, factors in zip(fits, [(8, 2), (8,)], strict=True):
            predicted = predicted_s(fit, size)
            assert mesh_s(fields, factors, size) == pytest.approx(predicted, rel=0.01)


def test_a_shared_uplink_carries_the_whole_ring() -> None:
    shared = {**FIELDS, "scale_out": {**LEAF, "uplink": "shared"}}
    fields, _ = apply(shared, [fit_log(all_gather_log(16, 20.0, 12.0))])
    assert fields["scale_out"]["gb_s"] == pytest.approx(20, rel=0.01)
    fit = fit_log(all_gather_log(16, 20.0, 12.0))
    assert mesh_s(fields, (8, 2), 2**26) == pytest.approx(predicted_s(fit, 2**26), 0.01)


def test_slow_inner_levels_and_left_out_logs_are_told() -> None:
    fits = [
        fit_log(all_gather_log(16, 700.0, 12.0, "fast all_gather")),
        fit_log(all_gather_log(16, 600.0, 12.0, "slow all_gather")),
    ]
    fields, notes = apply(FIELDS, fits)
    assert fields["scale_out"]["gb_s"] == pytest.approx(75, rel=0.01)
    assert notes[0] == "fast all_gather: left out; another log of its level is slower."
    assert any(note.startswith("nvlink: lets 300 GB/s through") for note in notes)


def test_latency_stays_where_a_log_has_large_sizes_only() -> None:
    text = table(lambda s: ring_s(s, 8, 230, 4), 7 / 8, 8, "none")
    fit = fit_log(parse("\n".join(text.splitlines()[-3:]), "all_gather"))
    fields, notes = apply(FIELDS, [fit])
    assert fields["levels"][0]["latency_us"] == 1.5
    assert notes[-1] == "nvlink: latency_us kept: all_gather has large sizes only."


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
