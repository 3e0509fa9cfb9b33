"""Small searches and rows that tests of `meshwright search` share."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwright.cost.profile import Profile, load_profile
from meshwright.sweeps import pools
from meshwright.sweeps.cases import Case, Row, SolveSettings
from meshwright.sweeps.pools import InProcessPool
from meshwright.sweeps.run_search import SearchRun
from meshwright.sweeps.store import Store
from meshwright.sweeps.sweep import read_search

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
}
"""In which other processes find this Meshwright, and these tests."""

SWEEP = """\
base:
  model: {n_layers: 4, d_model: 256, n_heads: 4, n_kv_heads: 2, d_ff: 1024, vocab: 8000}
  cluster:
    topology:
      gpu: {memory_gib: 4, memory_gb_s: 500, peak_tflops: {bf16: 50}, tdp_w: 250}
      levels: [{name: pcie, size: 2, gb_s: 20, latency_us: 3}]
      scale_out: {name: eth, gb_s: 2, latency_us: 10, uplink: shared}
  framework: megatron
  training: {seq_len: 512, global_batch: 8}
  limits: {memory_margin: 0.03}
  run: {tokens: 1000000000, gpu_hour_price: 0.5}
sweep:
  cluster.count: [1, 2]
  training.seq_len: {log2: [256, 1024]}
"""
"""Six cases that are solved in a few hundredths of a second each."""


def written(folder: Path, text: str = SWEEP, name: str = "sweep.yaml") -> str:
    """Return the name of a file with some text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def changed(old: str, new: str, text: str = SWEEP) -> str:
    """Return the small sweep with one piece of its text replaced."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def cases(folder: Path, text: str = SWEEP) -> list[Case]:
    """Return the cases of a sweep."""
    return read_search(written(folder, text)).cases


def solved(
    folder: Path,
    text: str = SWEEP,
    name: str = "own.sqlite",
    profile: str | None = None,
) -> list[Row]:
    """Return the rows of a sweep, solved in this process; by default without fits.

    A store that is not there yet is a copy of the one that was filled first.
    """
    if not (folder / name).exists():
        (folder / name).write_bytes(filled_store(text, profile))
    return solved_in(folder, text, name, profile)


@cache
def filled_store(text: str, profile: str | None) -> bytes:
    """Return a store with all rows of a sweep."""
    with TemporaryDirectory() as folder:
        solved_in(Path(folder), text, "own.sqlite", profile)
        assert not Path(folder, "own.sqlite-wal").exists()
        return Path(folder, "own.sqlite").read_bytes()


def solved_in(folder: Path, text: str, name: str, profile: str | None) -> list[Row]:
    """Return the rows of a sweep, of which those are solved that a store lacks."""
    settings = SolveSettings(profile=load_profile(profile) if profile else Profile())
    with Store(folder / name) as store:
        run = SearchRun(cases(folder, text), settings, store)
        run.resume()
        run.solve(InProcessPool())
        return run.rows


class KeptProcesses:
    """Processes of a pool that serve the next pool too; those of a killed pool end."""

    def __init__(self, workers: int) -> None:
        self._executor = START_PROCESSES(workers)

    def submit(self, *work: Any) -> Any:
        return self._executor.submit(*work)

    def shutdown(self, wait: bool, kill_workers: bool = False) -> None:
        if kill_workers:
            kept_for.cache_clear()
            self._executor.shutdown(wait=wait, kill_workers=True)


START_PROCESSES = pools.executor

kept_for = cache(KeptProcesses)
