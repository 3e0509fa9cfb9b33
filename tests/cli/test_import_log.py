"""`meshwright import nccl_tests`: a log on a topology, and a table of its errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.cli.test_import_command import LOG, content, notes_of, refused, solved
from tests.helpers.command import run


def test_log_is_put_on_a_topology(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    result = run(
        "import", "nccl_tests", str(LOG), "--onto", "dgx-a100", "-o", str(output)
    )
    assert result.code == 0
    comments, data = content(tmp_path)
    assert comments == [f"Made from {LOG} (nccl_tests) on dgx-a100.", *notes_of(result)]
    (level,) = data["levels"]
    # The log says of itself: 232 GB/s, 2.6 us an uplink.
    assert level["gb_s"] == 300
    bus_gb_s = level["gb_s"] * level["bus_share"]
    assert bus_gb_s == pytest.approx(232, rel=0.03)
    assert level["latency_us"] == pytest.approx(2.6, rel=0.1)
    rows = [line.split() for line in result.stdout.splitlines() if "%" in line]
    rows = [row for row in rows if len(row) == 5]
    assert len(rows) == 10
    for size, unit, logged, predicted, error in rows:
        logged_us, predicted_us = (
            float(word.replace(",", "")) for word in (logged, predicted)
        )
        scale = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
        ring_us = 14 * (int(size) * scale / 8 / bus_gb_s / 1e3
                        + 2 * level["latency_us"])  # fmt: skip
        tree_us = 2 * int(size) * scale / bus_gb_s / 1e3 + 12 * level["latency_us"]
        assert predicted_us == pytest.approx(min(ring_us, tree_us), rel=0.01, abs=0.06)
        off = predicted_us / logged_us - 1
        assert float(error.rstrip("%")) / 100 == pytest.approx(off, abs=0.004)
    medians = re.search(r"median error ([\d.]+)% from 1 MiB on", result.stdout)
    assert medians is not None
    assert float(medians[1]) < 5
    assert solved(tmp_path).code == 0


def test_table_leaves_stdout_to_the_topology() -> None:
    result = run("import", "nccl_tests", str(LOG), "--onto", "dgx-a100")
    assert yaml.safe_load(result.stdout)["name"] == "dgx-a100"
    assert "predicted us" in result.stderr


def test_log_says_what_it_does_not_know(tmp_path: Path) -> None:
    heading = "# size count type redop root time algbw busbw #wrong\n"
    path = tmp_path / "x.log"
    row = "1048576 32768 float none -1 50.00 20.97 18.35 0\n"
    path.write_text(heading + row, encoding="utf-8")
    words = ("nccl_tests", str(path), "--onto", "dgx-a100")
    assert "op: the log does not say" in refused(*words)
    result = run("import", *words, "--op", "alltoall")
    assert result.code == 0
    assert "fitted to alltoall over 8 GPUs" in result.stderr
