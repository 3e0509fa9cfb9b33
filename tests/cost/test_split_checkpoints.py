"""Checkpoints split over a tensor-parallel group: bytes, the gather, and who has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.cost.price import Prices, price
from meshwright.cost.traffic import hidden_bytes, seconds, tensor_parallel
from meshwright.planner.rows import build_lattice
from meshwright.spec.spec import Spec
from tests.helpers.plans import best_of

PINS: dict[str, Any] = {
    "tp": 4, "pp": 1, "zero": 1, "micro_batch": 1, "sequence_parallel": False,
    "recompute": "full", "recompute_segment": 1, "dp_replicate": 1,
}  # fmt: skip


def spec_of(is_split: bool, framework: str = "deepspeed", **pins: Any) -> Spec:
    training = {"seq_len": 2048, "global_batch": 16, "partition_activations": is_split}
    spec = {
        "model": "llama3-8b",
        "cluster": {"topology": "dgx-h100"},
        "framework": framework,
        "training": training,
        "pins": PINS | pins,
    }
    return mw.load(spec, Spec)


def priced(spec: Spec) -> tuple[Prices, float]:
    """Return the prices of the first row, and the seconds of an all-gather of it."""
    job = make_job(spec)
    rows, _ = build_lattice(job).on_meshes(np.arange(1), None)
    whole, gathered, _ = tensor_parallel(job, rows, 1)
    gather = type(gathered)(
        gathered.group, "all_gather", hidden_bytes(job, rows), rows.tp
    )
    assert whole.whole_bytes[0]
    return price(job, rows), float(seconds(job, rows, [gather])[0])


@pytest.mark.parametrize("framework", ["deepspeed", "megatron", "generic"])
def test_a_quarter_of_each_input_stays_and_all_of_it_is_gathered(
    framework: str,
) -> None:
    usual, gather_s = priced(spec_of(False, framework))
    split, _ = priced(spec_of(True, framework))
    kept = [one.memory.activations - one.memory.freed for one in (usual, split)]
    assert kept[0][0] == 2048 * 4096 * 2
    assert kept[1][0] == kept[0][0] / 4
    more_s = split.time.recompute_s[0] - usual.time.recompute_s[0]
    assert more_s == pytest.approx(gather_s)


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan"])
def test_frameworks_without_it_say_so(framework: str) -> None:
    spec = spec_of(True, framework)
    free = spec.model_copy(update={"pins": mw.load(EMPTY, Spec).pins})
    conflict = mw.explain(free).conflict
    assert conflict is not None
    assert "activations_partitioned" in {rule.rule for rule in conflict.rules}


EMPTY: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-h100"},
    "training": {"seq_len": 2048, "global_batch": 16},
}


def test_sequence_parallelism_has_split_them_already() -> None:
    spec = spec_of(True, "megatron", sequence_parallel=True)
    assert best_of(spec) is None
