"""The best plan of every bundled spec is exported, or refused by name."""

from __future__ import annotations

import re

import pytest
from benchmarks.launch_specs import BUNDLED, TARGETS

import meshwright as mw
from meshwright.exports.files import NotLaunchableError, Refusal
from meshwright.plans.plan import Stage
from tests.helpers.plans import best_of

CHECK = re.compile(
    r"^(megatron|deepspeed|torchtitan|accelerate|verl|slime|nanotron)"
    r"/[\w/]+(\.py)?: \w+"
)


def names_its_check(refusal: Refusal) -> bool:
    """Return whether a refusal names code of the framework, or owns to be ours."""
    if "not written for" in refusal.sentence:
        return refusal.check == "Meshwright's exports"
    return CHECK.match(refusal.check) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_best_plan_is_exported_or_refused_by_name(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    best = best_of(spec)
    assert best is not None
    for target in TARGETS[spec.framework]:
        refused: list[Refusal] = []
        names: set[str] = set()
        try:
            names = {file.name for file in mw.export(spec, best, to=target).files}
        except NotLaunchableError as error:
            refused = [*error.refusals]
        assert refused or "launch.sh" in names
        assert all(map(names_its_check, refused)), refused


def changed(plan: mw.Plan, recompute: str, *layers: int) -> mw.Plan:
    """Return a plan that recomputes so many layers of its stages."""
    found = [
        Stage(layers=stage.layers, recompute_layers=count)
        for stage, count in zip(plan.stages, layers, strict=True)
    ]
    return plan.model_copy(update={"recompute": recompute, "stages": tuple(found)})


def test_megatron_recomputes_one_number_of_whole_layers() -> None:
    spec = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec)
    best = best_of(spec)
    assert best is not None
    text = mw.export(spec, changed(best.plan, "full", 5))["launch.sh"]
    assert "--recompute-method block" in text
    assert "--recompute-num-layers 5 " in text
    text = mw.export(spec, changed(best.plan, "full", 24))["launch.sh"]
    assert "--recompute-method uniform" in text
    whole = changed(best.plan, "full", 24)
    segments = whole.model_copy(update={"recompute_segment": 4})
    assert "--recompute-num-layers 4 " in mw.export(spec, segments)["launch.sh"]
    with pytest.raises(mw.SpecError, match="recompute_scope: selective recomputation"):
        mw.export(spec, changed(best.plan, "selective", 5))


@pytest.mark.parametrize(("batch", "groups"), [(12, None), (10, 5), (13, 7), (6, 6)])
def test_megatron_is_told_groups_that_are_not_of_pp(
    batch: int, groups: int | None
) -> None:
    spec = mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"topology": "dgx-h100"},
            "framework": "megatron",
            "training": {"seq_len": 4096, "global_batch": batch},
            "pins": {"pp": 4, "tp": 2, "vpp": 2, "micro_batch": 1},
        },
        mw.Spec,
    )
    best = best_of(spec)
    assert best is not None
    for target, file, option in (
        ("megatron", "launch.sh", "--microbatch-group-size-per-virtual-pipeline-stage"),
        ("megatron-bridge", "meshwright_plan.py", "microbatch_group_size_per_vp_stage"),
    ):
        text = mw.export(spec, best, to=target)[file]
        found = re.search(rf"{option}[ =]+(\d+)", text)
        assert (int(found[1]) if found else None) == groups


def test_ranks_out_of_order_are_tasks_of_slurm() -> None:
    spec = mw.load(
        "llama3-405b-16384xh100", mw.Spec, pins=["vpp=1", "pp=16", "dp_replicate=2"]
    )
    best = best_of(spec)
    assert best is not None
    exported = mw.export(spec, best.plan)
    assert "exec python" in exported["launch.sh"]
    assert "--ntasks 16384 --distribution arbitrary" in exported["srun.sh"]
    assert exported["hosts"].count("\n") == best.plan.world_size
    assert exported["rankfile"].startswith("rank 0=")
