"""Logs of nccl-tests: what is read, and what is refused.

Real logs are read from the folder that MESHWRIGHT_SHARED names; without it those tests
are skipped. All other logs are written here.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import SpecError
from meshwright.evidence.link_fit import fit_log, predicted_s
from meshwright.imports.nccl_tests import NcclLog, Timing, parse
from meshwright.imports.registry import detect

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
def test_what_another_tool_prints_is_refused() -> None:
    others = [one for one in samples() if not one["expect"]["rows"]]
    assert others
    for sample in others:
        with pytest.raises(SpecError, match="no row of nccl-tests"):
            read(sample)


# Logs of our own.

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


def test_columns_of_single_iterations_are_passed_over() -> None:
    timing = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    row = "1048576 262144 float sum -1 50 20.97 36.70 0 48 61 60 3.1 "
    row += "49 21.40 37.45 0 47 60 59 3.0 2026-11-22 10:11:12"
    log = parse(f"# size count type redop root {timing} {timing}\n{row}", "x.log")
    assert log.rows[0].out_of_place == Timing(50, 20.97, 36.70)
    assert log.rows[0].in_place == Timing(49, 21.40, 37.45)


def test_json_of_nccl_tests_is_read_as_its_table() -> None:
    timing = {"time": 50.25, "alg_bw": 20.867, "bus_bw": 36.517, "nwrong": 0.0}
    row = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum"}
    devices = [
        {"rank": i, "group": 0, "pid": 7, "hostname": f"h{i // 4}", "device": i % 4,
         "device_hex": "0000:00", "device_info": "NVIDIA Fancy 80GB"} for i in range(8)
    ]  # fmt: skip
    data = {
        "version": 1, "start_time": "now", "env": ["A=[{"], "nccl_version": 22703,
        "args": ["./build/all_reduce_perf", "-J", "x.json"],
        "config": {"nthreads": 1, "devices": devices},
        "results": [row | {"root": "    -1", "out_of_place": timing, "in_place": None}],
        "average_bus_bandwidth": {"bandwidth": 36.517, "okay": "unchecked"},
    }  # fmt: skip
    text = json.dumps(data)
    assert detect(text) == "nccl_tests"
    log = parse(text, "x.json")
    assert (log.op, log.ranks, log.nodes, log.average_gb_s) == (
        "all_reduce", 8, 2, 36.517,
    )  # fmt: skip
    assert log.rows[0].out_of_place == Timing(50.25, 20.867, 36.517)
    assert log.rows[0].in_place is None
    assert log.devices == ("NVIDIA Fancy 80GB",)


def test_json_of_rccl_tests_is_read() -> None:
    row = {"numCycle": 1, "name": "AllGather", "nodes": 1, "ranks": 8,
           "ranksPerNode": 8, "gpusPerRank": 1, "size": 1048576, "type": "float",
           "redop": "none", "algBw": 20.0, "busBw": 17.5, "wrong": "0"}  # fmt: skip
    rows = [row | {"inPlace": 0, "time": 52.4}, row | {"inPlace": 1, "time": 51.0}]
    assert detect(json.dumps(rows)) == "nccl_tests"
    log = parse(json.dumps(rows), "x.json")
    assert (log.op, log.ranks, len(log.rows)) == ("all_gather", 8, 1)
    assert log.rows[0].out_of_place.time_us == 52.4
    assert log.rows[0].in_place is not None
    with pytest.raises(SpecError, match="JSON without results"):
        parse("{}", "x.json")


def test_the_list_of_ranks_tells_hosts_and_devices() -> None:
    listed = "".join(
        f"#  Rank {rank:2} Group  0 Pid   77{rank} on  node{rank // 2} device  "
        f"{rank % 2} [0000:1{rank}:00] NVIDIA Fancy 80GB \n"
        for rank in range(4)
    )
    row = "1024 256 float none 0 9.00 0.11 0.11 0 9.00 0.11 0.11 0\n"
    log = parse(listed + HEADING + row, "x.log")
    assert (log.op, log.ranks, log.nodes) == ("broadcast", 4, 2)
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
        (ROW.replace("50.00", "1e-320"), "x.log:2: time: '1e-320': expected a number "),
        (ROW.replace("20.97", "1e308"), "x.log:2: algbw: '1e308': expected a number f"),
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


def test_bandwidths_that_no_number_of_ranks_has_are_refused() -> None:
    """A bus bandwidth of 36.70 over 20.97 is above the 1 that an all-gather can have,
    and a second row of 40 over 10 above the 2 of an all-reduce.
    """
    rows = (
        "1048576 262144 float none -1 50.00 20.97 36.70 0 49.00 21.40 37.45 0\n"
        "2097152 524288 float none -1 50.00 10.00 40.00 0 49.00 10.00 40.00 0\n"
    )
    with pytest.raises(SpecError):
        parse(HEADING + rows, "log.txt")
