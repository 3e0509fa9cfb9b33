"""A metric is one entry, and rows of other code are never served from a store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright import catalog
from meshwright.sweeps import cases as case_module
from meshwright.sweeps import metrics as metrics_module
from meshwright.sweeps.cases import Row, SolveSettings, fingerprint
from meshwright.sweeps.metrics import METRICS
from tests.helpers.searches import ENVIRONMENT, cases, solved, written

NEW = """\
    "bound_s": Metric(
        unit="s",
        description="Time that no plan can beat.",
        better="min",
        take=lambda answer: answer.outcome.certificate.bound_s,
        text="<{:.3f}>".format,
    ),
    "ways": Metric("""
"""One more entry, in front of the last one."""


def package(folder: Path, old: str, new: str) -> dict[str, str]:
    """Return the environment in which Meshwright's metrics differ in one place."""
    found = Path(metrics_module.__file__).parents[1]
    copy = folder / "changed" / "solver" / "meshwright"
    shutil.copytree(found, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ("profiles", "specs", "topologies"):
        (folder / "changed" / kind).symlink_to(str(catalog.folder(kind)))
    path = copy / "sweeps" / "metrics.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    return ENVIRONMENT | {"PYTHONPATH": str(copy.parent)}


FAST = ("--profile", "unfitted", "--workers", "1")


def searched(folder: Path, environment: dict[str, str], *options: str) -> str:
    """Return what a search prints that uses the store of the folder."""
    words = ["search", written(folder), "--store", str(folder / "own.sqlite")]
    command = [sys.executable, "-m", "meshwright", *words, *FAST]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=folder,
    ).stdout


def rows_in(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["rows"])


@pytest.mark.slow
def test_a_metric_is_one_entry(tmp_path: Path) -> None:
    """It is stored, best, in fronts, tables and exports; old rows are solved again."""
    assert len(solved(tmp_path)) == 6
    other = package(tmp_path, '    "ways": Metric(', NEW)
    options = ("--best", "bound_s", "--front", "bound_s,gpus", "-o", "rows.csv")
    table = searched(tmp_path, other, *options)
    assert "Best bound_s" in table
    assert "Front of bound_s and gpus" in table
    assert "<0.0" in table
    header = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()[0]
    assert ",train_days,bound_s,ways," in header
    rows = rows_in(searched(tmp_path, other, "--format", "json"))
    assert all(row["bound_s"] > 0 for row in rows)
    assert (
        "bound_s" not in rows_in(searched(tmp_path, ENVIRONMENT, "--format", "json"))[0]
    )


@pytest.mark.slow
def test_rows_of_another_definition_are_not_served(tmp_path: Path) -> None:
    before = solved(tmp_path)
    other = package(tmp_path, "answer.best.mfu", "answer.best.mfu / 2")
    after = rows_in(searched(tmp_path, other, "--format", "json"))
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert old.mfu is not None
        assert new["mfu"] == old.mfu / 2
        assert new["key"] != old.key


def test_keys_have_a_hash_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cases(tmp_path)
    keys = SolveSettings().keys(found)
    assert not {*SolveSettings(code="other").keys(found)} & {*keys}
    copy = tmp_path / "meshwright" / "sweeps"
    copy.mkdir(parents=True)
    monkeypatch.setattr(case_module, "__file__", str(copy / "search_case.py"))
    seen = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        (copy / name).write_text(text)
        seen.add(fingerprint.__wrapped__())
    assert len(seen) == 3


def test_every_metric_prints_what_it_measures() -> None:
    for name, metric in METRICS.items():
        assert name in Row.model_fields
        assert metric.text(1 if metric.number is not float else 1.5)
        description = str(Row.model_fields[name].description)
        assert metric.unit in description
