"""How far plans are from what was run, and what a profile knows of it."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.profile import Profile, load_profile
from meshwright.plans.plan import Plan, Stage
from meshwright.plans.simplicity import familiarity, percents
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.results.claims import familiarity_claim
from meshwright.spec.run_before import PLAIN, PlanOfMaker, codes_of, text_of
from meshwright.spec.spec import Spec

TEXTS = (
    PLAIN,
    "tp inside a node + pp to 8 + interleaved",
    "cp over 2 on short + few tokens a GPU + ZeRO-3",
    "tp across nodes + pp over 16 + ep across nodes + offload + zero-bubble or GPipe",
)

PLAN = Plan(
    tp=1,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    dp_replicate=1,
    dp_shard=1,
    sequence_parallel=False,
    micro_batch=1,
    microbatches=8,
    zero=1,
    recompute="none",
    schedule="1f1b",
    mesh={},
    stages=(Stage(layers=8, recompute_layers=0),),
)


@pytest.mark.parametrize("text", TEXTS)
def test_combinations_are_read_as_they_are_written(text: str) -> None:
    assert text_of(codes_of(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "'tp' is no decision; expected data parallelism alone, tp inside"),
        ("ZeRO-2 + ZeRO-3", "says zero twice"),
        ("cp 2 + cp 2", "says cp twice"),
    ],
)
def test_what_is_no_combination_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Profile(run_before={"megatron": {text: 2}})


def spec_of(framework: str, **profile: Any) -> Spec:
    spec = mw.load("gpt3-175b-1024xa100", mw.Spec)
    spec = spec.model_copy(update={"framework": framework})
    return Profile(**profile).applied_to(spec)


RUN = {
    "megatron": {"tp inside a node + pp to 8": 7},
    "nanotron": {"cp 2": 2},
    "fsdp": {"ZeRO-3": 5},
}


def test_frameworks_alike_share_what_was_run() -> None:
    shared = spec_of("internevo", run_before=RUN).run_before.combinations
    assert shared == RUN["megatron"] | RUN["nanotron"]
    assert spec_of("torchtitan", run_before=RUN).run_before.combinations == RUN["fsdp"]
    everything = spec_of("generic", run_before=RUN).run_before.combinations
    assert everything == RUN["megatron"] | RUN["nanotron"] | RUN["fsdp"]


PINNED: dict[str, Any] = {
    "model": "llama3-70b",
    "cluster": {"machine": "dgx-a100", "count": 16},
    "framework": "megatron",
    "training": {"seq_len": 8192, "global_batch": 128, "precision": "bf16"},
    "pins": {"tp": 8, "pp": 4, "vpp": 5, "cp": 1, "zero": 1, "offload": "none"},
}


def test_a_plan_is_told_with_the_nearest_run_and_what_is_beyond_it() -> None:
    outcome = mw.solve(mw.load(PINNED, mw.Spec), by_kind=False)
    assert outcome.best is not None
    assert outcome.best.familiarity is not None
    assert outcome.best.familiarity.beyond == ()
    assert outcome.best.doubted_s == outcome.best.step_s
    spec = spec_of("megatron", run_before=RUN, doubt=0.1)
    found = familiarity(spec, outcome.best.plan)
    assert found is not None
    assert found.like == "tp inside a node + pp to 8"
    assert (found.runs, found.beyond) == (7, ("interleaved",))
    assert found.factor == pytest.approx(1.1)


def test_stages_between_those_of_two_runs_are_no_bolder() -> None:
    """16 stages lie between 8 and 32, where all else was run as it is here."""
    ran = {"pp to 8 + interleaved": 3, "pp over 16 + interleaved": 4, "pp to 8": 2}
    known = Profile(run_before={"megatron": ran}, doubt=0.1).runs_like("megatron")
    added = {"pp to 16 + interleaved": 0}
    assert known.combinations == ran | added
    pins = {"tp": 1, "pp": 16, "vpp": 2, "cp": 1, "zero": 1}
    spec = mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"topology": "dgx-h100", "count": 2},
            "framework": "megatron",
            "training": {"seq_len": 4096, "global_batch": 64, "precision": "bf16"},
            "pins": pins,
        },
        mw.Spec,
    )
    best = mw.solve(spec, by_kind=False, profile="unfitted").best
    assert best is not None
    found = familiarity(spec.with_run_before(known), best.plan)
    assert found is not None
    assert (found.like, found.runs, found.beyond) == (*added, 0, ())
    told = familiarity_claim(best.model_copy(update={"familiarity": found}))
    assert told == "run before with fewer stages, and with more"
    alone = Profile(run_before={"megatron": {"pp to 8 + interleaved": 3}}, doubt=0.1)
    spec = spec.with_run_before(alone.runs_like("megatron"))
    found = familiarity(spec, best.plan)
    assert found is not None
    assert found.beyond == ("pp to 16",)


@pytest.mark.parametrize(
    ("mesh", "beyond"), [([8, 1], ()), ([2, 4], ("tp across nodes",))]
)
def test_a_pinned_mesh_that_splits_tensors_over_hosts_is_doubted(
    mesh: list[int], beyond: tuple[str, ...]
) -> None:
    pins = PINNED["pins"] | {"mesh": {"tp": mesh}}
    spec = mw.load(PINNED | {"pins": pins}, mw.Spec)
    known = Profile(run_before=RUN, doubt=0.1).runs_like("megatron")
    best = mw.solve(spec, by_kind=False).best
    assert best is not None
    found = familiarity(spec.with_run_before(known), best.plan)
    assert found is not None
    assert set(found.beyond) == {"interleaved", *beyond}


def beyond_run(
    run: str, model: str, hosts: int, framework: str, **plan: Any
) -> tuple[str, ...]:
    """Return the decisions of a plan on DGX H100 that a run does not have."""
    spec = mw.load(
        {
            "model": model,
            "cluster": {"machine": "dgx-h100", "count": hosts},
            "framework": framework,
            "training": {"seq_len": 4096, "global_batch": 1024, "precision": "bf16"},
        },
        mw.Spec,
    )
    known = Profile(run_before={framework: {run: 9}}, doubt=0.1)
    found = familiarity(known.applied_to(spec), PLAN.model_copy(update=plan))
    assert found is not None
    return found.beyond


@pytest.mark.parametrize(
    ("ep", "beyond"),
    [(8, ("ep inside a node",)), (64, ()), (128, ("ep over 64",))],
)
def test_experts_over_more_gpus_than_anybody_ran_are_a_decision_beyond(
    ep: int, beyond: tuple[str, ...]
) -> None:
    run, stages = "pp to 8 + ep across nodes", PLAN.stages * 8
    plan: dict[str, Any] = {"pp": 8, "stages": stages, "ep": ep, "dp_shard": 128}
    assert beyond_run(run, "deepseek-v3", 128, "megatron", **plan) == beyond


@pytest.mark.parametrize(
    ("dp_shard", "beyond"), [(4, ("hsdp inside a node",)), (8, ()), (64, ())]
)
def test_replicas_of_shards_that_fill_no_node_are_a_decision_beyond(
    dp_shard: int, beyond: tuple[str, ...]
) -> None:
    replicas = 64 // dp_shard
    plan: dict[str, Any] = {"dp_shard": dp_shard, "dp_replicate": replicas, "zero": 3}
    assert beyond_run("ZeRO-3", "llama3-8b", 8, "torchtitan", **plan) == beyond


PUBLISHED = PlanOfMaker(
    model="llama3-8b",
    params=1,
    gpu="h100-sxm-80gb",
    gpus=16,
    framework="megatron",
    precision="bf16",
    seq_len=4096,
    global_batch=64,
    plan={"tp": 2, "pp": 2, "zero": 1, "micro_batch": 1, "recompute": "none"},
    source="drawn",
)


def doubts_unlike(
    published: dict[str, Any], hosts: int, batch: int, **plan: Any
) -> tuple[str, ...]:
    """Return what is doubted of a plan on DGX H100 whose combination was run."""
    spec = mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"machine": "dgx-h100", "count": hosts},
            "framework": "megatron",
            "training": {"seq_len": 4096, "global_batch": batch, "precision": "bf16"},
        },
        mw.Spec,
    )
    known = Profile(run_before={"megatron": {PLAIN: 9, "pp to 8": 9}}, doubt=0.1)
    maker = PUBLISHED.model_copy(update={"plan": PUBLISHED.plan | published})
    told = known.runs_like("megatron").model_copy(update={"published": maker})
    spec, result = spec.with_run_before(told), PLAN.model_copy(update=plan)
    found = familiarity(spec, result)
    assert found is not None
    assert percents(spec, to_unplaced_row(result)) == pytest.approx(
        [100 * found.factor]
    )
    return found.beyond


PIPED = {"pp": 2, "stages": (Stage(layers=16, recompute_layers=0),) * 2}


@pytest.mark.parametrize(
    ("published", "hosts", "batch", "plan", "beyond"),
    [
        ({"tp": 1}, 2, 64, PIPED, ()),
        ({"tp": 1}, 2, 64, PIPED | {"zero": 0, "micro_batch": 2}, ()),
        ({"tp": 1}, 2, 64, {}, ("not pp 2 as published",)),
        ({}, 2, 64, {}, ("not tp 2 and pp 2 as published",)),
        ({"tp": 1, "zero": 2}, 2, 64, PIPED, ("not zero 2 as published",)),
        ({"tp": 1}, 4, 256, {}, ("not pp 2 as published",)),
        ({"tp": 1}, 1, 16, {}, ("not pp 2 as published",)),
        ({"tp": 1}, 5, 160, {}, ()),
        ({"tp": 1}, 2, 136, {}, ()),
        ({"tp": 1}, 2, 31, {}, ()),
    ],
)
def test_degrees_that_a_maker_does_not_publish_for_the_very_job_are_doubted(
    published: dict[str, Any],
    hosts: int,
    batch: int,
    plan: dict[str, Any],
    beyond: tuple[str, ...],
) -> None:
    """It is the very job up to twice as many GPUs, or sequences of each, or half."""
    assert doubts_unlike(published, hosts, batch, **plan) == beyond


def test_a_plan_that_is_only_less_doubted_is_not_called_simpler() -> None:
    """The fastest plan has fewer techniques, but no pipeline, as all that was run."""
    spec = mw.load(
        {
            "model": "gpt-1.3b",
            "cluster": {"topology": "a100-pcie-2"},
            "framework": "megatron",
            "training": {"seq_len": 2048, "global_batch": 512, "precision": "bf16"},
            "objective": [{"step_s": "2%"}, {"simplest": ["techniques"]}],
        },
        mw.Spec,
    )
    profile = Profile(run_before={spec.framework: {"pp to 8": 5}}, doubt=1.0)
    outcome = mw.solve(spec, by_kind=False, profile=profile)
    assert outcome.best is not None
    assert outcome.fastest is not None
    assert (outcome.best.plan.pp, outcome.fastest.plan.pp) == (2, 1)
    assert outcome.simplicity is not None
    assert outcome.simplicity.criterion == "beyond_runs"


def test_nothing_is_doubted_where_nothing_is_known() -> None:
    outcome = mw.solve(mw.load("llama3-70b-128xa100"), profile="unfitted")
    assert isinstance(outcome, mw.Outcome)
    assert outcome.certificate is not None
    assert outcome.certificate.doubt == 0
    assert outcome.best is not None
    assert outcome.best.familiarity is None


def test_the_bundled_profile_knows_what_its_frameworks_ran() -> None:
    profile = load_profile("measured")
    assert profile.doubt > 0
    for framework in ("megatron", "fsdp", "torchtitan", "deepspeed"):
        assert profile.runs_like(framework).percent == round(100 * profile.doubt)
