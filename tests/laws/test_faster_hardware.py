"""A plan takes no longer on faster hardware, whatever the plan and whatever is faster.

All coarse rows of random specs, each with an even and with an uneven split: the law of
plans, from which that of the optimum follows.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.job import Job, make_job
from meshwright.cost.price import price_time, step_seconds
from meshwright.planner.rows import build_lattice, in_best_case
from meshwright.planner.solve import solve
from meshwright.plans.columns import Bools, Floats, Ints, take
from meshwright.plans.skeletons import Skeletons, Split
from meshwright.spec.plan_fields import SCHEDULES
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.strategies import spec_data

LAWS = settings(
    max_examples=gate(7, everything=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
EXACTLY = 1e-12
NEARLY = 5e-3
"""Shares of a step that a law may be off by: rounding, and a closed form that is no
more than near."""

MOST_ROWS = 2_000
"""Of a spec, drawn evenly: enough to meet every combination of choices."""


def faster_peak(topology: dict[str, Any], factor: float) -> None:
    peaks = topology["gpu"]["peak_tflops"]
    topology["gpu"]["peak_tflops"] = {
        name: factor * peak for name, peak in peaks.items()
    }


def faster_memory(topology: dict[str, Any], factor: float) -> None:
    topology["gpu"]["memory_gb_s"] *= factor


def faster_links(topology: dict[str, Any], factor: float) -> None:
    for level in topology["levels"]:
        level["gb_s"] *= factor


def lower_latency(topology: dict[str, Any], factor: float) -> None:
    for level in topology["levels"]:
        level["latency_us"] /= factor


def faster_host(topology: dict[str, Any], factor: float) -> None:
    for name in ("pcie_gb_s", "memory_gb_s", "nvme_gb_s"):
        if name in topology.get("host", {}):
            topology["host"][name] *= factor


ALONE = [faster_peak, faster_memory, faster_links, lower_latency, faster_host]


def faster_all(topology: dict[str, Any], factor: float) -> None:
    for change in ALONE:
        change(topology, factor)


def some(rows: Skeletons) -> Skeletons:
    """Return at most so many rows as a law looks at."""
    return rows.take(np.arange(0, len(rows), 1 + len(rows) // MOST_ROWS))


def splits(layers: int, lead: int, stages: int) -> list[Ints]:
    """Return an even split, and one whose ends have few layers."""
    even = layers // stages + (np.arange(stages) < layers % stages)
    if stages < 3 or layers < 2 * stages:
        return [even]
    few = np.ones(stages, dtype=np.int64)
    few[0] = max(lead, 1)
    few[1] += layers - few.sum()
    return [even, few]


def step_times(job: Job, rows: Skeletons) -> list[Floats]:
    """Return the step times of rows, of one number of stages and split after another.

    Half of what may be recomputed is.
    """
    model, times = job.spec.model, []
    time = price_time(job, in_best_case(job, rows))
    for stages in np.unique(rows.pp).tolist():
        at = np.flatnonzero(rows.pp == stages)
        for layers in splits(model.n_layers, model.first_dense_layers, stages):
            each = np.tile(layers, (len(at), 1))
            again = np.where(rows.recompute[at, None] > 0, (each + 1) // 2, 0)
            found = step_seconds(rows.take(at), take(time, at), Split(each, again))
            times.append(found)
    return times


def is_cut_short(rows: Skeletons) -> Bools:
    """Return which rows never fill a zero-bubble pipeline.

    Their closed form counts half of what a stage saves where stages are unlike, and all
    of the gradients' traffic that its shorter backward no longer hides.
    """
    is_zero_bubble = rows.schedule == SCHEDULES.index("zb-h1")
    return np.asarray(is_zero_bubble & (rows.microbatches < rows.pp))


def by_split(job: Job, rows: Skeletons, column: Floats) -> list[Floats]:
    """Return a column of rows in the order of `step_times`."""
    model, found = job.spec.model, []
    for stages in np.unique(rows.pp).tolist():
        result = column[rows.pp == stages]
        count = len(splits(model.n_layers, model.first_dense_layers, stages))
        found += [result] * count
    return found


@pytest.mark.slow
@pytest.mark.parametrize("change", [*ALONE, faster_all])
@LAWS
@given(spec_data(), st.floats(1.001, 20.0))
def test_a_plan_takes_no_longer(
    change: Callable[[dict[str, Any], float], None],
    data: dict[str, Any],
    factor: float,
) -> None:
    data["pins"] = {}
    before = make_job(Spec.model_validate(data))
    rows = some(build_lattice(before).rows)
    faster = copy.deepcopy(data)
    change(faster["cluster"]["topology"], factor)
    after = make_job(Spec.model_validate(faster))
    most = np.where(is_cut_short(rows), NEARLY, EXACTLY)
    for quick_s, slow_s, slack in zip(
        step_times(after, rows),
        step_times(before, rows),
        by_split(before, rows, most),
        strict=True,
    ):
        worst = float((quick_s / slow_s - 1 - slack).max(initial=-1.0))
        assert worst <= 0, f"{worst:.2%} slower than allowed"


SPEC = """
model: llama2-13b
cluster:
  topology:
    gpu: {{preset: a100-sxm-80gb, peak_tflops: {{bf16: {peak}}}, memory_gb_s: {rate}}}
    levels:
      - {{name: nvlink, size: 8, gb_s: 300, latency_us: 1}}
      - {{name: fabric, size: 4, gb_s: 12.5, uplink: shared, latency_us: 5}}
training: {{global_batch: 32, seq_len: 2048}}
pins: {pins}
"""


def best_s(folder: Path, peak: float, rate: float, pins: str) -> float:
    """Return the least step time of Llama 2 13B on four hosts of A100s."""
    file = folder / "spec.yaml"
    file.write_text(SPEC.format(peak=peak, rate=rate, pins=pins))
    best = solve(mw.load(str(file), mw.Spec)).best
    assert best is not None
    return best.step_s


def test_a_higher_peak_makes_no_optimum_slower(tmp_path: Path) -> None:
    """Backwards that shrink hide less of the end of the step: no more than that."""
    best = [best_s(tmp_path, peak, 2_039, "{pp: 1}") for peak in (78, 312, 1_248)]
    assert best[0] >= best[1] >= best[2]


def test_nor_does_more_memory_bandwidth_where_a_ring_hides(tmp_path: Path) -> None:
    best = [best_s(tmp_path, 312, rate, "{pp: 1, cp: 4}") for rate in (500, 2_039, 8e3)]
    assert best[0] >= best[1] >= best[2]
