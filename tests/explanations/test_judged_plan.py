"""The plan that is judged, who decided its fields, and the nearest one that fits."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.explanations.decisions import with_pins
from meshwright.explanations.explain import Explainer
from meshwright.explanations.judged_plan import judged_plan, rank
from meshwright.loading.plan_text import read_plan
from meshwright.planner.nearest_miss import (
    asked_row,
    asked_rows,
    broken_counts,
    broken_sums,
    sum_rules,
)
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.report.explain import explain_sections, verdict_lines
from meshwright.report.tables import Lines
from meshwright.results.claims import conflict_claim
from meshwright.results.explanation import Explanation
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.spec.plan_fields import FIELD

EXPLAINER = Explainer(Options())
DENSE = "llama2-13b-8xa100"  # deepspeed, 8 GPUs, 64 sequences, 40 layers
TWO = "gpt-1.3b-2xa100-pcie"
EIGHT = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-a100", "count": 1},
    "training": {"seq_len": 4096, "global_batch": 64},
}

RUN = {"seq_len": 1024, "global_batch": 8}


def told(name: str, plan: str) -> Explanation:
    return EXPLAINER.plan(mw.load(name, mw.Spec), read_plan(plan))


def origins(explanation: Explanation, origin: str) -> dict[str, str]:
    return {one.name: one.value for one in explanation.judged if one.origin == origin}


def test_degrees_that_fill_the_cluster_are_told_but_for_data_parallelism() -> None:
    assert (
        "Fits, with pp=2, " in verdict_lines(told("gpt2-xl-2xh100-nvlink", "dp=1"))[0]
    )
    assert "dp" not in verdict_lines(told(TWO, "tp=1,pp=1,cp=1"))[0]


def test_a_plan_that_fits_is_printed_whole() -> None:
    found = told(DENSE, "tp=2,pp=2,micro_batch=2,zero=1")
    assert found.fits
    idle = {"recompute_modules", "recompute_segment"}
    assert {*FIELD, "layers", "recompute_layers", "mesh"} - idle == {
        one.name for one in found.judged
    }
    given = {"tp": "2", "pp": "2", "micro_batch": "2", "zero": "1", "precision": "bf16"}
    assert origins(found, "given") == given
    assert origins(found, "follows") | {"dp_shard": "2", "ep": "1"} == origins(
        found, "follows"
    )
    assert "cp" in origins(found, "chosen")
    whole = ",".join(f"{one.name}={one.value}" for one in found.judged)
    again = told(DENSE, whole)
    assert again.plan == found.plan
    assert origins(again, "chosen") == {}


def test_one_gpu_has_no_mesh() -> None:
    spec = mw.load(
        {"model": "gpt2-xl", "cluster": {"topology": "dgx-spark"}, "training": RUN},
        mw.Spec,
    )
    best = mw.solve(spec, by_kind=False, safety=False).best
    assert best is not None
    names = {one.name for one in judged_plan(spec, best.plan)}
    assert {"layers", "recompute_layers"} <= names
    assert "mesh" not in names


def test_no_rank_is_told_where_only_a_solve_knows_what_a_limit_allows() -> None:
    spec = mw.load(TWO, mw.Spec)
    assert rank(make_job(spec), 1e9) is not None
    limits = spec.limits.model_copy(update={"max_link_utilisation": 0.9})
    assert rank(make_job(spec.model_copy(update={"limits": limits})), 1e9) is None


def test_the_slowest_split_of_the_slowest_skeleton_is_the_last() -> None:
    """It was told to be "rank 3 of 2, ahead of -50%"."""
    pins = ["tp=1", "pp=2", "vpp=1", "micro_batch=1", "recompute=full", "offload=none"]
    spec = mw.load(TWO, mw.Spec, pins=[*pins, "recompute_segment=1"])
    explanation = EXPLAINER.plan(spec, read_plan("layers=[10,14]"))
    assert explanation.standing is not None
    assert (explanation.standing.first, explanation.standing.last) == (2, 2)
    assert (explanation.standing.of, explanation.standing.beaten) == (2, 0.0)


def test_the_last_degree_follows() -> None:
    found = told(TWO, "tp=2")
    follows = origins(found, "follows")
    assert {"pp": "1", "cp": "1", "dp_shard": "1", "zero": "0"}.items() <= (
        follows.items()
    )
    assert "tp" not in follows
    open_own = EXPLAINER.spec(mw.load(TWO, mw.Spec))
    assert origins(open_own, "given") == {"precision": "bf16"}
    assert {"tp", "pp", "cp"} <= set(origins(open_own, "chosen"))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("tp=4,pp=2,dp=2", "tp 4 x pp 2 x dp 2 = 16, the cluster has 8"),
        ("tp=3", "tp 3, 8 GPUs mod 3 = 2"),
        ("tp=8,pp=3", "tp 8 x pp 3 = 24, the cluster has 8"),
        ("ep=2", "ep 2, the model is dense"),
        ("dp=8,micro_batch=3", "64 sequences / (dp 8 x micro_batch 3) = 2.667"),
        ("pp=4,dp=2,zero=3", "zero 3, pp 4"),
        ("pp=2,layers=[20,19]", "20 + 19 = 39, the model has 40"),
    ],
)
def test_the_arithmetic_is_in_the_first_lines(plan: str, why: str) -> None:
    found = told(DENSE, plan)
    first = explain_sections(found)[0]
    assert isinstance(first, Lines)
    assert first.lines[1].endswith(f": {why}.")
    assert found.conflict is not None
    behind = [rule.arithmetic for rule in found.conflict.rules if rule.arithmetic]
    assert behind in ([], [why])
    asked = {part.partition("=")[0] for part in plan.split(",") if "=" in part}
    assert asked <= set(origins(found, "given"))


def test_nothing_is_chosen_where_the_numbers_clash() -> None:
    found = told(DENSE, "tp=4,pp=2,dp=2")
    assert {one.origin for one in found.judged} == {"given"}
    found = told(DENSE, "pp=4,dp=2,micro_batch=5")
    assert origins(found, "follows")["tp"] == "1"
    assert origins(found, "chosen") == {}


@pytest.mark.parametrize(
    ("plan", "is_broken"),
    [
        ("tp=2,pp=1,cp=1,dp=2", True),
        ("tp=2,pp=1,cp=1,dp_shard=2,dp_replicate=1", True),
        ("tp=2,pp=1,cp=1,dp=4", False),
        ("tp=2,pp=1,dp=2", False),
        ("tp=2,pp=1,cp=1,dp_shard=2", False),
        # As many stages as have layers.
        ("tp=8,cp=1,layers=[20,20]", True),
        ("tp=4,cp=1,layers=[20,20]", False),
    ],
)
def test_degrees_that_are_all_given_make_up_the_gpus(
    plan: str, is_broken: bool
) -> None:
    """One that is left open may be what the others lack."""
    spec = with_pins(mw.load(DENSE, mw.Spec), read_plan(plan))
    row = asked_row(spec, 8)
    sums = [] if row is None else [rule.name for rule in broken_sums(spec, row)]
    assert sums == ["world_size"] * is_broken


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("cp=16", "cp 16, the cluster has 8"),
        ("pp=16", "pp 16, the cluster has 8"),
        ("dp=16", "dp 16, the cluster has 8"),
        ("tp=4,cp=4", "tp 4 x cp 4 = 16, the cluster has 8"),
        ("tp=8,pp=2", "tp 8 x pp 2 = 16, the cluster has 8"),
        ("cp=3", "cp 3, 8 GPUs mod 3 = 2"),
    ],
)
def test_degrees_beyond_the_gpus_are_told_by_their_product(
    plan: str, told: str
) -> None:
    spec = with_pins(mw.load(DENSE, mw.Spec), read_plan(plan))
    row = asked_row(spec, 8)
    assert row is not None
    (rule,) = broken_sums(spec, row)
    assert rule.arithmetic(spec, row) == told


def test_a_wrong_product_is_told_before_rules_on_degrees_that_nobody_asked_for() -> (
    None
):
    """DeepSpeed's rules refuse the degrees that would make up for it."""
    spec = mw.load(DENSE, mw.Spec).model_copy(update={"framework": "deepspeed"})
    plan = read_plan("tp=1,pp=1,cp=2,dp_replicate=1,dp_shard=2,zero=1")
    found = EXPLAINER.plan(spec, plan)
    assert found.conflict is not None
    assert "world_size" not in {rule.rule for rule in found.conflict.rules}
    told = conflict_claim(found.conflict, found.broken_rules)
    assert told == "Because of world_size: cp 2 x dp 2 = 4, the cluster has 8."


def test_the_nearest_plan_changes_the_fewest_fields_then_takes_least() -> None:
    found = told(DENSE, "tp=4,pp=2,dp=2,micro_batch=1")
    nearest = found.nearest_plan
    assert nearest is not None
    assert len(nearest.changes) == 1
    assert len(nearest.kept) == 3
    assert nearest.step_s == min(
        one.step_s for one in found.repairs if len(one.edits) == 1
    )
    again = told(DENSE, nearest.text)
    assert again.plan is not None
    assert again.plan.step_s == pytest.approx(nearest.step_s, rel=1e-9)
    changed = nearest.changes[0]
    name, _, value = changed.partition(": ")
    assert origins(again, "given").get(name) == value.partition(" -> ")[2] or name == (
        "dp"
    )


@pytest.mark.parametrize(
    ("pins", "changed"),
    [
        ({"tp": 8, "pp": 1, "vpp": 2}, "vpp: 2 -> 1"),
        ({"tp": 8, "pp": 1, "schedule": "gpipe"}, "schedule: gpipe -> 1f1b"),
        ({"recompute": "none", "recompute_modules": "mlp"}, "recompute_modules: mlp"),
        ({"recompute": "none", "recompute_segment": 2}, "recompute_segment: 2 -> 1"),
        ({"tp": 1, "pp": 8, "zero": 0, "sequence_parallel": True}, "sequence_parallel"),
        ({"tp": 4, "pp": 2, "dp": 2}, ""),
        ({"tp": 4, "pp": 2, "cp": 2, "micro_batch": 1}, ""),
    ],
)
def test_the_nearest_plan_replaces_the_pins_of_the_spec(
    pins: dict[str, object], changed: str
) -> None:
    spec = mw.load({**EIGHT, "pins": pins}, mw.Spec)
    explanation = EXPLAINER.spec(spec)
    assert explanation.nearest_plan is not None
    assert any(one.startswith(changed) for one in explanation.nearest_plan.changes)
    again = EXPLAINER.plan(spec, read_plan(explanation.nearest_plan.text))
    assert again.fits
    assert again.plan is not None
    assert again.plan.step_s == pytest.approx(explanation.nearest_plan.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("pins", "plan", "verdict"),
    [
        (
            {"tp": 8},
            "tp=8,pp=1,zero=1",
            ", as fast as the fastest plan; rank 1 of ",
        ),
        (
            {"tp": 8},
            "tp=1",
            "% faster than the fastest plan of the spec, whose pins it",
        ),
        ({"tp": 8, "vpp": 2}, "vpp=1", ", and replaces pins of the spec, which leave"),
    ],
)
def test_a_plan_may_replace_pins_of_the_spec(
    pins: dict[str, int], plan: str, verdict: str
) -> None:
    spec = mw.load({**EIGHT, "pins": pins}, mw.Spec)
    first = explain_sections(EXPLAINER.plan(spec, read_plan(plan)))[0]
    assert isinstance(first, Lines)
    assert verdict in first.lines[1]


def test_stages_of_the_nearest_plan_are_written_where_they_were_asked_for() -> None:
    found = told(TWO, "pp=2,layers=[13,11],tp=2")
    assert found.nearest_plan is not None
    if "layers: " not in found.nearest_plan.changes[0]:
        assert "layers=[13, 11]" in found.nearest_plan.text


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        ("layers=[3,3]", "3 + 3 = 6, the model has 40"),
        ("recompute=full,recompute_layers=[0,40]", "at least 1 + 40 = 41, the model"),
        ("recompute=full,recompute_layers=[1,0,39,30]", "at least 1 + 1 + 39 + 30 = "),
        ("recompute=full,layers=[2,38],recompute_layers=[3,1]", "3 of a stage with 2"),
    ],
)
def test_stages_that_no_split_has_are_refused_at_once(plan: str, numbers: str) -> None:
    found = told(DENSE, plan)
    assert not found.fits
    broken = [one for one in found.broken_rules if numbers in one.sentence]
    assert len(broken) == 1
    assert found.conflict is not None
    asked = plan.rpartition("=")[0].rpartition(",")[2]
    assert f"pins.{asked}" in [rule.rule for rule in found.conflict.rules]
    assert found.repairs[0].edits[0].startswith(f"{asked}: [")


def test_a_field_that_the_nearest_plan_changes_is_not_said_to_be_given() -> None:
    found = told(DENSE, "recompute=full,recompute_layers=[0,40]")
    assert "recompute_layers" not in origins(found, "given")
    assert origins(found, "given")["recompute"] == "full"


def test_limits_are_kept_by_the_nearest_plan() -> None:
    spec = mw.load(DENSE, mw.Spec)
    limits = spec.limits.model_copy(update={"tp_min_link_gb_s": 1e4})
    limited = spec.model_copy(update={"limits": limits})
    explanation = EXPLAINER.plan(limited, read_plan("tp=8"))
    assert any("limits." in edit for one in explanation.repairs for edit in one.edits)
    assert explanation.nearest_plan is not None
    assert explanation.nearest_plan.changes[0].startswith("tp: 8 -> ")


def test_where_no_plan_fits_that_is_said_too() -> None:
    found = told("llama3-8b-2x4090-pcie", "ep=2")
    assert found.nearest_plan is None
    assert found.conflict is not None
    assert [rule.rule for rule in found.conflict.rules] == ["pins.ep", "experts_exist"]
    assert found.conflict_alone is not None
    assert "memory" in {rule.rule for rule in found.conflict_alone.rules}
    assert found.repairs


def test_the_frameworks_words_are_printed_with_their_source() -> None:
    changed = told(DENSE, "pp=4,dp=2,zero=3")
    rule = next(r for r in changed.broken_rules if r.rule == "zero_with_pipeline")
    assert rule.compared == ("zero", "pp")
    assert rule.source
    said = rule.model_copy(update={"fails_with": "it asserts", "source": "engine.py"})
    changed = changed.model_copy(update={"broken_rules": (said,)})
    lines = next(
        part.lines
        for part in explain_sections(changed)
        if isinstance(part, Lines) and part.title == "Broken rules"
    )
    assert lines[1:3] == (
        "  given: zero, pp",
        "  the framework says: it asserts (engine.py)",
    )
    read = Explanation.from_json(changed.to_json())
    assert (read.judged, read.nearest_plan) == (changed.judged, changed.nearest_plan)
    assert read.broken_rules == changed.broken_rules
    assert read.conflict == changed.conflict


def test_both_parts_of_data_parallelism_are_its_degree() -> None:
    """4 x 2 of 8 GPUs: the other degrees follow, as after dp=8."""
    follows = [
        {*origins(told(DENSE, plan), "follows")} & {"tp", "pp", "cp"}
        for plan in ("dp_shard=4,dp_replicate=2", "dp=8", "dp_shard=4")
    ]
    assert follows == [{"tp", "pp", "cp"}, {"tp", "pp", "cp"}, set()]


def test_no_modules_is_a_value_that_may_be_given() -> None:
    spec = mw.load(TWO, mw.Spec, pins=["recompute_modules=''"])
    plan = asked_plan(spec, Options())
    for modules, origin in (("", "given"), ("mlp", "chosen")):
        fields = {"recompute": "selective", "recompute_modules": modules}
        kept = plan.model_copy(update=fields)
        judged = {one.name: one for one in judged_plan(spec, kept)}
        assert judged["recompute_modules"].origin == origin


@pytest.mark.parametrize(("tp", "products"), [(2, {8}), (3, {3})])
def test_degrees_that_were_asked_for_are_completed_where_they_can_be(
    tp: int, products: set[int]
) -> None:
    spec = with_pins(mw.load(DENSE, mw.Spec), read_plan(f"tp={tp}"))
    rows = asked_rows(spec, 8)
    assert {*rows.tp.tolist()} == {tp}
    assert {*(rows.tp * rows.cp * rows.pp * rows.dp).tolist()} == products
    assert {*rows.pp.tolist()} == ({1, 2, 4} if tp == 2 else {1})


@pytest.mark.parametrize(
    ("asked", "micro_batch", "microbatches"),
    [
        ("microbatches=2", 4, 2),
        ("microbatches=3", 1, 3),
        ("micro_batch=2", 2, 4),
        ("tp=1", 1, 8),
    ],
)
def test_a_batch_is_completed_where_its_parts_are_whole(
    asked: str, micro_batch: int, microbatches: int
) -> None:
    """64 sequences are 8 for each of 8 ranks."""
    pins = read_plan(f"dp=8,{asked}")
    rows = asked_rows(with_pins(mw.load(DENSE, mw.Spec), pins), 8)
    assert {*rows.micro_batch.tolist()} == {micro_batch}
    assert {*rows.microbatches.tolist()} == {microbatches}


@pytest.mark.parametrize(
    ("plan", "follows"),
    [
        ("dp=8,dp_shard=4", True),
        ("dp=8", False),
        ("dp=1,tp=8", True),
        ("tp=2,pp=1,cp=1", True),
    ],
)
def test_replicas_follow_from_all_else_of_data_parallelism(
    plan: str, follows: bool
) -> None:
    assert ("dp_replicate" in origins(told(DENSE, plan), "follows")) is follows


def test_repairs_of_a_plan_are_priced_against_the_fastest_plan_of_the_spec() -> None:
    found = told(DENSE, "tp=4,pp=2,dp=2,micro_batch=1")
    assert found.best is not None
    fastest = found.best.optimum
    assert fastest is not None
    assert found.repairs
    for repair in found.repairs:
        assert repair.against == "the fastest plan"
        assert repair.price == pytest.approx(repair.step_s / fastest.step_s - 1)


def test_two_gpus_have_a_mesh() -> None:
    spec = mw.load(TWO, mw.Spec, pins={"tp": 2})
    fields = {one.name: one for one in judged_plan(spec, asked_plan(spec, Options()))}
    assert fields["mesh"].value == "{tp: [2]}"
    assert fields["mesh"].origin == "follows"


@pytest.mark.parametrize(
    "plan",
    [
        "tp=3",
        "tp=8,pp=3",
        "tp=4,pp=2,dp=2",
        "dp=8,micro_batch=3",
        "cp=2,micro_batch=5,microbatches=7",
        "pp=4,layers=[10,10,10,9],micro_batch=3",
        "zero=3,microbatches=3",
    ],
)
def test_the_plan_asked_for_breaks_the_fewest_sums_then_the_fewest_rules(
    plan: str,
) -> None:
    """Of equals it is the one with the fewest stages, then with the fewest copies."""
    spec = with_pins(mw.load(DENSE, mw.Spec), read_plan(plan))
    rows = asked_rows(spec, 8)
    sums = broken_counts(spec, sum_rules(spec), rows)
    rules = [*framework_degree_rules(spec), *framework_rules(spec)]
    others = broken_counts(spec, rules, rows)
    keys = [*zip(sums, others, rows.pp, rows.dp, strict=True)]
    found = asked_row(spec, 8)
    if not sums.min():
        assert found is None
        return
    assert found is not None
    first = keys.index(min(keys))
    for name in ("tp", "pp", "cp", "dp_shard", "micro_batch", "sequence_parallel"):
        assert getattr(found, name)[0] == getattr(rows, name)[first]


def test_counts_that_were_asked_for_stand_in_place_of_any() -> None:
    found = told(DENSE, "recompute=full,recompute_layers=[9,8],pp=2,tp=2,dp=4")
    assert found.nearest_plan is not None
    text = found.nearest_plan.text
    assert "recompute_layers=[" in text
    assert "recompute_layers=any" not in text
    again = told(DENSE, text)
    assert again.plan is not None
    assert again.plan.step_s == pytest.approx(found.nearest_plan.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "follows"),
    [
        ("tp=2,pp=2,recompute=full", True),
        ("tp=2,pp=2,recompute=none", True),
        ("tp=2,pp=2,recompute=full,recompute_layers=any", False),
        ("tp=2,pp=2", False),
    ],
)
def test_counts_of_recomputed_layers_follow_from_one_mode_for_all(
    plan: str, follows: bool
) -> None:
    spec = with_pins(mw.load(DENSE, mw.Spec), read_plan(plan))
    found = asked_plan(spec, Options(is_brief=True))
    some = found.model_copy(update={"recompute": "full"})
    judged = {
        one.name: one.origin
        for one in judged_plan(spec, found if "none" in plan else some)
    }
    assert (judged["recompute_layers"] == "follows") is follows
