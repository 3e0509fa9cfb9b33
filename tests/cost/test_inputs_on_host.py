"""Recomputation whose inputs wait in host memory: `full-cpu`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.check.check import check
from meshwright.cost.job import Job, make_job
from meshwright.loading.plan_text import read_plan
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Split, to_plan
from meshwright.rules.universal import HOST_PLAN_RULES
from meshwright.spec.plan_fields import FULL, FULL_CPU, Pins
from tests.helpers.oracle import brute_force
from tests.helpers.plans import best_of
from tests.helpers.rows import row
from tests.recomputed.case import Case
from tests.recomputed.memory import GIB, host_bytes, stage_bytes
from tests.recomputed.plans import random_efficiency
from tests.recomputed.specs import random_spec
from tests.recomputed.step import Step

SEEDS = range(80_000, 80_015)


FRAMEWORKS = ("deepspeed", "fsdp")


def drawn(seed: int, framework: str) -> tuple[Job, Plan]:
    """Return a random plan of a random spec; a plan recomputes every layer."""
    random = Random(seed)
    while True:
        spec = random_spec(random, [framework], True)
        pins = Pins(pp=1, recompute="full-cpu")
        job = make_job(
            spec.model_copy(update={"pins": pins}), random_efficiency(random)
        )
        lattice = build_lattice(job)
        found = np.flatnonzero(lattice.rows.recompute == FULL_CPU)
        if len(found):
            one = np.array([random.choice(found.tolist())])
            rows, _ = lattice.on_meshes(one, None)
            row, layers = random.randrange(len(rows)), np.array([spec.model.n_layers])
            place = lattice.table.place(int(rows.mesh[row]))
            return job, to_plan(rows, row, Split(layers, layers), place)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_costs_what_a_second_computation_says(seed: int, framework: str) -> None:
    job, plan = drawn(seed, framework)
    case = Case(job.spec.at(plan.precision), plan, job.efficiency.model_dump())
    priced, stage = check(job, plan), check(job, plan).stages[0]
    gib = {name: size / GIB for name, size in stage_bytes(case, 0).items() if size}
    shown = {name: size for name, size in stage.parts.items() if size}
    assert shown == pytest.approx(gib, rel=1e-9)
    assert stage.host_gib == pytest.approx(host_bytes(case, 0) / GIB, rel=1e-9)
    assert priced.step_s == pytest.approx(Step(case).step_s, rel=1e-9)


def small(framework: str, memory_gib: float, **pins: Any) -> mw.Spec:
    """Return a spec of two GPUs, all of whose plans brute force can try."""
    rates = {"memory_gb_s": 2_000, "peak_tflops": {"bf16": 300}}
    gpu = {"memory_gib": memory_gib, **rates}
    levels = [{"name": "node", "size": 2, "gb_s": 100, "latency_us": 5}]
    host = {"memory_gib": 64, "pcie_gb_s": 20, "memory_gb_s": 100}
    model = {
        "n_layers": 8, "d_model": 512, "n_heads": 8, "n_kv_heads": 8, "d_ff": 1_024,
        "vocab": 1_000, "gated_mlp": True, "bias": "none", "norm": "rmsnorm",
    }  # fmt: skip
    return mw.load(
        {
            "model": model,
            "cluster": {"topology": {"gpu": gpu, "levels": levels, "host": host}},
            "framework": framework,
            "training": {"seq_len": 4_096, "global_batch": 8},
            "pins": {"recompute": ["none", "full", "full-cpu"]} | pins,
        },
        mw.Spec,
    )


@pytest.mark.parametrize(
    ("framework", "memory_gib", "mode"),
    [
        ("deepspeed", 4.0, "full-cpu"),
        ("deepspeed", 4.2, "full"),
        ("deepspeed", 4.3, "full-cpu"),
        ("fsdp", 2.1, "full-cpu"),
        ("fsdp", 2.3, "full-cpu"),
        ("fsdp", 2.35, "full"),
    ],
)
def test_it_is_the_best_where_brute_force_says_so(
    framework: str, memory_gib: float, mode: str
) -> None:
    """Both recompute every layer or none, also with inputs on the host."""
    spec = small(framework, memory_gib)
    best, found = brute_force(spec), solve(spec)
    assert found.best is not None
    assert found.best.step_s == pytest.approx(best.step_s, rel=1e-6)
    assert found.best.plan.recompute == mode


def asked(framework: str = "deepspeed", **pins: Any) -> mw.Spec:
    """Return a long sequence, whose layers' inputs are 48 GiB on each GPU."""
    plan = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "full-cpu"}
    return mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"topology": "dgx-a100"},
            "framework": framework,
            "training": {"seq_len": 196_608, "global_batch": 8, "loss_chunks": 64},
            "pins": plan | pins,
        },
        mw.Spec,
    )


@pytest.fixture(scope="module")
def outcome() -> mw.Outcome:
    return mw.solve(asked(), by_kind=False)


def test_it_fits_where_inputs_on_the_gpu_do_not(outcome: mw.Outcome) -> None:
    assert outcome.best is not None
    assert outcome.best.plan.recompute == "full-cpu"
    assert best_of(asked(recompute="full")) is None


def test_layers_may_hold_nothing() -> None:
    best = best_of(asked(offload="parameters"))
    assert best is not None
    held = best.stages[0].parts
    assert held["weights"] == held["activations"] == 0


def test_it_is_tried_unless_a_pin_leaves_it_out() -> None:
    best = best_of(asked(recompute=None))
    assert best is not None
    assert best.plan.recompute == "full-cpu"
    assert mw.solve(asked(recompute=["none", "selective", "full"])).best is None


def test_kernels_of_fsdp_wait_for_the_inputs_twice() -> None:
    """A copy there and one back, in each of the layers, beside no compute."""
    steps = {}
    for mode in ("full", "full-cpu"):
        pins = {"tp": 1, "dp_shard": 2, "zero": 3, "micro_batch": 1, "recompute": mode}
        best = best_of(small("fsdp", 8.0, offload="none", **pins))
        assert best is not None
        steps[mode] = best.step_s
    inputs = 8 * 4_096 * 512 * 2
    micro_batches, path = 4, 20e9
    longer_s = steps["full-cpu"] - steps["full"]
    assert longer_s == pytest.approx(2 * micro_batches * inputs / path, rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "pins"), [("megatron", {}), ("deepspeed", {"pp": 2})]
)
def test_others_refuse_it(framework: str, pins: dict[str, int]) -> None:
    conflict = mw.explain(asked(framework, **pins)).conflict
    assert conflict is not None
    assert "activations_offloaded" in {rule.rule for rule in conflict.rules}


@pytest.mark.parametrize(
    ("framework", "pp", "recompute", "splits", "is_kept"),
    [
        ("deepspeed", 1, FULL_CPU, False, True),
        ("deepspeed", 2, FULL_CPU, False, False),
        ("deepspeed", 1, FULL_CPU, True, False),
        ("deepspeed", 2, FULL, True, True),
        ("fsdp", 1, FULL_CPU, False, True),
        ("torchtitan", 1, FULL_CPU, False, False),
        ("megatron", 1, FULL_CPU, False, False),
        ("megatron", 2, FULL, False, True),
    ],
)
def test_a_rule_of_its_own(
    framework: str, pp: int, recompute: int, splits: bool, is_kept: bool
) -> None:
    spec = asked(framework)
    training = spec.training.model_copy(update={"partition_activations": splits})
    spec = spec.model_copy(update={"training": training})
    kept = HOST_PLAN_RULES[0].holds(spec, row(pp=pp, recompute=recompute))
    assert kept.tolist() == [is_kept]


def test_it_needs_a_host() -> None:
    spec = asked()
    topology = spec.cluster.topology.model_copy(update={"host": None})
    cluster = spec.cluster.model_copy(update={"topology": topology})
    spec = spec.model_copy(update={"cluster": cluster})
    assert not HOST_PLAN_RULES[0].holds(spec, row(recompute=FULL_CPU)).any()


def test_launches_say_it_and_are_read_back(outcome: mw.Outcome, tmp_path: Path) -> None:
    files = mw.export(asked(), outcome, to="deepspeed").files
    config = next(file for file in files if file.name == "deepspeed.json")
    said = json.loads(config.text)["activation_checkpointing"]
    assert said == {"cpu_checkpointing": True}
    path = tmp_path / config.name
    path.write_text(config.text)
    assert read_plan(str(path), asked()).recompute == ("full-cpu",)
    none = {"stages": 1, "activation_checkpoint_interval": 0}
    path.write_text(json.dumps(json.loads(config.text) | {"pipeline": none}))
    notes: list[str] = []
    assert read_plan(str(path), asked(), notes).recompute == ("none",)
    assert any("no layer is recomputed" in note for note in notes)


@pytest.mark.parametrize(
    ("framework", "zero"), [("fsdp", 0), ("fsdp", 3), ("deepspeed", 3)]
)
@pytest.mark.parametrize("target", ["accelerate", "axolotl", "llama-factory", "trl"])
def test_programs_of_hugging_face_say_it_too(
    target: str, framework: str, zero: int, tmp_path: Path
) -> None:
    """Some file of a launch says it, and no other file contradicts that."""
    if (target, framework) == ("accelerate", "deepspeed"):
        return
    pins = {"tp": 1, "cp": 1, "zero": zero, "offload": "none"}
    spec = small(framework, 40, recompute="full-cpu", **pins)
    found = mw.solve(spec, by_kind=False)
    assert found.best is not None
    said: set[str] = set()
    for file in mw.export(spec, found, to=target).files:
        path = tmp_path / file.name
        path.write_text(file.text)
        if path.suffix in (".yaml", ".json"):
            said |= {*(read_plan(str(path), spec).recompute or ())}
        elif path.suffix == ".py" and "checkpointing_enable(offload=True)" in file.text:
            said.add("full-cpu")
    assert said == {"full-cpu"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_leaves_the_gpu_is_in_host_memory(framework: str) -> None:
    """Inputs leave, by copies that make no step faster.

    On the GPU are those of the layer at work, and of two whose copies are under way.
    """
    pins = {"tp": 1, "cp": 1, "zero": 2, "micro_batch": 1, "offload": "none"}
    kept, left = (
        mw.solve(small(framework, 40, recompute=mode, **pins), by_kind=False).best
        for mode in ("full", "full-cpu")
    )
    assert kept is not None
    assert left is not None
    gib = 8 * 4_096 * 512 * 2 / GIB  # layers x tokens x width x bytes
    assert left.stages[0].host_gib - kept.stages[0].host_gib == pytest.approx(gib)
    freed = sum(kept.stages[0].parts.values()) - sum(left.stages[0].parts.values())
    assert freed == pytest.approx(gib * (8 - 3) / 8)
    assert left.step_s >= kept.step_s
