"""`meshwright search --clouds` as it is typed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.helpers.command import run

PRICES = str(ROOT / "tests/data/prices.yaml")

ASKED = (
    "search", "--model", "gpt2-xl", "--seq-len", "1024", "--batch", "64", "--tokens",
    "10B", "--prices", PRICES, "--count", "1,2", "--framework", "megatron",
    "--workers", "1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_a_front_is_printed_and_written(folder: Path) -> None:
    done = run(
        *ASKED, "--budget", "$1k", "--deadline", "30d", "-o", "a.csv", "-o", "a.json"
    )
    assert done.code == 0, done.stderr
    assert "Within 1,000 USD and 30 days" in done.stdout
    assert "2026-11-01" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    answer = json.loads((folder / "a.json").read_text())
    rows = list(csv.DictReader((folder / "a.csv").read_text().splitlines()))
    assert len(rows) == len(answer["rentals"]) == 4
    prices = [one["usd"] for one in answer["front"]]
    assert prices == sorted(prices)
    for one in answer["front"]:
        usd = one["days"] * 24 * one["hour_usd"] * one["count"]
        assert one["usd"] == pytest.approx(usd)
        assert one["usd"] <= 1000
        assert one["status"] == "optimal"


def test_what_binds_is_said() -> None:
    done = run(*ASKED, "--budget", "1", "--deadline", "30d")
    assert done.code == 1
    assert "the budget binds" in done.stdout.replace("\n    ", " ")
    assert "The cheapest within the deadline" in done.stdout


def test_a_spec_may_have_machines_and_prices_of_its_own(folder: Path) -> None:
    (folder / "own.yaml").write_text(
        "model: gpt2-xl\n"
        "cluster: {topology: dgx-h100, count: [1, 2]}\n"
        "training: {seq_len: 1024, global_batch: 64}\n"
        "run: {tokens: 10e9, gpu_hour_price: 2}\n"
    )
    done = run("search", "own.yaml", "--budget", "10k", "--format", "json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["front"][0]["hour_usd"] == 16
    told = run("search", "own.yaml", "--budget", "1").stdout
    assert "1 kind of machine at prices of the spec" in told
    assert "\nThe cheapest\n" in told
    assert "dgx-h100  the spec  8 x h100-sxm-80gb" in told
    asked = run("search", "own.yaml")
    assert asked.code == 2
    assert "search within a budget or a deadline ranks all" in asked.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "SWEEP: missing"),
        (("--model", "gpt2-xl"), "SWEEP: missing"),
        (("--clouds",), "--model: missing"),
        (("--model", "gpt2-xl", "--budget", "3"), "what is offered? say --clouds"),
        (("--model", "gpt2-xl", "--clouds"), "--tokens: missing"),
        (("sweep.yaml", "--seq-len", "8"), "--seq-len: for what to rent"),
        ((*ASKED, "--budget", "much"), "--budget much: expected a number above 0"),
        ((*ASKED, "--deadline", "soon"), "--deadline soon: expected a number"),
        ((*ASKED, "--front", "usd,days"), "--front: for sweeps"),
        ((*ASKED, "-o", "rows.html"), "expected NAME.csv or NAME.json"),
    ],
)
def test_what_cannot_be_asked_is_said(words: tuple[str, ...], told: str) -> None:
    asked = words if words[:1] == ("search",) else ("search", *words)
    done = run(*asked)
    assert done.code == 2
    assert told in done.stderr
