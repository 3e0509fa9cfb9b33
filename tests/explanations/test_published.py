"""Plans and MFUs that makers published, beside the recommended plan."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from benchmarks.experts.__main__ import without
from benchmarks.experts.read import configurations, exceptions

import meshwright as mw
from meshwright.cost import profile as profile_module
from meshwright.cost.profile import PATH, load_profile, nearest_published
from meshwright.explanations import published
from meshwright.explanations.published import with_published
from meshwright.planner.options import Options
from meshwright.results.claims import published_claims
from meshwright.spec.base import MOST_RISK
from meshwright.spec.plan_fields import Pins

TRAINING: dict[str, object] = {
    "seq_len": 8192,
    "global_batch": 128,
    "precision": "bf16",
}

SPEC: dict[str, object] = {
    "model": "llama3-70b",
    "cluster": {"topology": "dgx-h100", "count": 8},
    "framework": "megatron",
    "training": TRAINING,
}


@pytest.fixture(scope="module")
def outcome() -> mw.Outcome:
    return mw.solve(mw.load(SPEC, mw.Spec), by_kind=False)


def _loaded(**changes: object) -> mw.Spec:
    return mw.load({**SPEC, **changes}, mw.Spec)


def test_a_published_plan_is_priced_on_the_spec(outcome: mw.Outcome) -> None:
    published = outcome.published
    assert published is not None
    assert published.priced is not None
    plan = published.priced.plan
    # Other fields are 1 or off, and are not named.
    assert published.plan == "tp=4, pp=4, vpp=5, cp=2, zero=1, micro_batch=1"
    assert (plan.tp, plan.pp, plan.vpp, plan.cp, plan.world_size) == (4, 4, 5, 2, 64)
    alone = mw.solve(
        _loaded(
            pins={"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "zero": 1, "micro_batch": 1},
            training={**TRAINING, "gradients": published.gradients},
        ),
        fastest=True,
        by_kind=False,
    )
    assert alone.best is not None
    assert published.priced.step_s == pytest.approx(alone.best.step_s, rel=0.01)
    assert published.priced.step_s >= alone.best.step_s
    (claim,) = published_claims(outcome)
    assert "Published for 64 GPUs (NVIDIA/dgxc-benchmarking): tp=4, pp=4" in claim


def test_gradients_are_as_published_where_the_spec_does_not_say(
    outcome: mw.Outcome,
) -> None:
    options = Options(profile=load_profile("measured"))

    def held_gib(**training: str) -> float:
        spec = _loaded(training=TRAINING | training)
        told = with_published(outcome, spec, options).published
        assert told is not None
        assert told.priced is not None
        return told.priced.stages[0].parts["gradients"]

    assert outcome.published is not None
    assert outcome.published.gradients == "bf16"
    assert held_gib() == held_gib(gradients="bf16")
    assert held_gib(gradients="fp32") == pytest.approx(2 * held_gib())


def test_what_a_faster_published_plan_asks_for_is_told_and_lets_it_be_chosen() -> None:
    """NVIDIA's recipe fits 405B with gradients in bf16 alone."""
    training = TRAINING | {"global_batch": 512}
    asked = {"model": "llama3-405b", "cluster": {"topology": "dgx-h100", "count": 64}}
    told = mw.solve(_loaded(**asked, training=training), by_kind=False)
    assert told.best is not None
    assert told.published is not None
    assert told.published.priced is not None
    assert told.published.asks_for == ("training.gradients=bf16",)
    assert told.published.priced.step_s < 0.95 * told.best.step_s
    (claim,) = published_claims(told)
    assert "%: solve may choose it with --set training.gradients=bf16." in claim
    training |= {"gradients": "bf16"}
    again = mw.solve(_loaded(**asked, training=training), by_kind=False)
    assert again.best is not None
    assert again.published is not None
    assert again.published.asks_for == ()
    assert again.best.plan == told.published.priced.plan


def test_experts_are_dispatched_as_published() -> None:
    """NVIDIA's recipe for DeepSeek-V3 has DeepEP, without which ep 64 is slow."""
    training = {"seq_len": 4096, "global_batch": 8192, "precision": "fp8"}
    cluster = {"topology": "dgx-h100", "count": 128}
    options = Options(profile=load_profile("measured"))

    def published(dispatch: str, outcome: mw.Outcome | None = None) -> mw.Outcome:
        said = training | {"expert_dispatch": dispatch}
        spec = _loaded(model="deepseek-v3", cluster=cluster, training=said)
        if outcome is None:
            return mw.solve(spec, by_kind=False)
        return with_published(outcome, spec, options)

    one_by_one = published("alltoall")
    as_theirs = published("deepep", one_by_one)
    assert one_by_one.published is not None
    assert one_by_one.published.priced is not None
    assert one_by_one.published.expert_dispatch == "deepep"
    assert as_theirs.published is not None
    assert as_theirs.published.priced is not None
    assert as_theirs.published.expert_dispatch is None
    assert one_by_one.published.priced.step_s == as_theirs.published.priced.step_s
    (claim,) = published_claims(one_by_one)
    assert "expert_dispatch deepep; measured: 1,297 tokens/s/GPU" in claim
    (claim,) = published_claims(as_theirs)
    assert "expert_dispatch" not in claim


def test_where_the_model_is_too_fast_for_the_measured_job_the_answer_says_so(
    outcome: mw.Outcome,
) -> None:
    published = outcome.published
    assert published is not None
    assert published.priced is not None
    step_s, rate = published.priced.step_s, published.tokens_per_s_per_gpu
    # 128 sequences of 8,192 tokens on 64 GPUs, which is the published job.
    assert rate is not None
    assert published.measured_s == pytest.approx(128 * 8192 / 64 / rate)

    def claim(measured_s: float | None) -> str:
        told = published.model_copy(update={"measured_s": measured_s})
        return next(published_claims(outcome.model_copy(update={"published": told})))

    assert claim(1.3 * step_s).endswith(
        "Measured it takes 30% more, and the recommended plan may, too."
    )
    assert "Measured it" not in claim(1.09 * step_s)
    assert claim(None) == claim(step_s)


def test_a_plan_that_its_maker_risked_is_told_with_its_risk() -> None:
    """MosaicML ran micro-batches of 3 sequences, which fill the cards."""
    spec = _loaded(
        model="mpt-30b",
        cluster={"topology": "dgx-h100", "count": 1},
        framework="fsdp",
        training={"seq_len": 2048, "global_batch": 504, "precision": "bf16"},
    )
    told = mw.solve(spec, by_kind=False)
    assert told.best is not None
    assert told.published is not None
    assert told.published.is_risky
    assert told.published.priced is not None
    likely = told.published.priced.fit_probability
    assert 1 - likely > spec.limits.risk >= 1 - told.best.fit_probability
    (claim,) = published_claims(told)
    assert f"It fits with probability {likely:.2f}, less than asked." in claim
    ample = spec.model_copy(
        update={"limits": spec.limits.model_copy(update={"memory_gib": 78.0})}
    )
    options = Options(profile=load_profile("measured"))
    at_ease = with_published(told, ample, options).published
    assert at_ease is not None
    assert not at_ease.is_risky


@pytest.mark.parametrize(
    ("batch", "limits", "why"),
    [
        (64, {}, "(64 sequences / (dp 8 x micro_batch 3) = 2.667)."),
        (96, {"memory_gib": 100.0}, ": stage 0 needs "),
    ],
)
def test_a_published_plan_that_does_not_fit_is_told_with_the_reason(
    batch: int, limits: dict[str, float], why: str
) -> None:
    """AMD publishes micro-batches of 3 on 8 GPUs of 192 GiB."""
    spec = _loaded(
        cluster="mi300x-8",
        training={**TRAINING, "global_batch": batch},
        limits=limits,
    )
    told = mw.solve(spec, by_kind=False)
    assert told.published is not None
    assert told.published.priced is None
    (claim,) = published_claims(told)
    assert "It does not fit here: " in claim
    assert why in claim
    assert mw.Outcome.from_json(told.to_json()).published == told.published


def test_steps_of_another_batch_are_not_compared(outcome: mw.Outcome) -> None:
    options = Options(profile=load_profile("measured"))
    spec = _loaded(training=TRAINING | {"global_batch": 256})
    told = with_published(outcome, spec, options).published
    assert told is not None
    assert told.tokens_per_s_per_gpu is not None
    assert told.measured_s is None


def test_a_measured_step_has_the_tokens_of_its_batch_at_the_published_rate(
    outcome: mw.Outcome,
) -> None:
    """128 sequences of 8,192 tokens on 64 GPUs: 16,384 tokens on each."""
    told = outcome.published
    assert told is not None
    assert told.tokens_per_s_per_gpu is not None
    assert told.measured_s == pytest.approx(16_384 / told.tokens_per_s_per_gpu)


def test_adapters_are_compared_with_adapters() -> None:

    def adapted(weights: str) -> mw.Spec:
        lora = {"rank": 16, "weights": weights}
        return _loaded(
            cluster={"topology": "dgx-h100", "count": 1},
            framework="fsdp",
            training={**TRAINING, "seq_len": 512, "lora": lora},
        )

    found = nearest_published(adapted("nf4"))
    assert found is not None
    assert found.frozen == "nf4"
    assert nearest_published(adapted("bf16")) is None


def test_what_publications_leave_open_is_no_part_of_their_plans() -> None:
    told = json.loads(PATH.read_text(encoding="utf-8"))["plans"]
    kinds = {one["framework"] for one in told if "Automodel" in one["source"]}
    # NeMo AutoModel launches PyTorch's FSDP2 and pipelines, not Megatron's.
    assert kinds == {"torchtitan"}
    recomputes = [one["plan"] for one in told if "dropless-h100-1024g" in one["source"]]
    # Its table does not say what is recomputed.
    assert recomputes
    assert not any("recompute" in plan for plan in recomputes)


def test_it_is_recommended_where_the_model_cannot_tell_it_apart(
    outcome: mw.Outcome,
) -> None:
    assert outcome.best is not None
    assert outcome.published is not None
    assert outcome.published.priced is not None
    assert outcome.best.plan == outcome.published.priced.plan


def test_the_answer_says_the_same_as_json(outcome: mw.Outcome) -> None:
    again = mw.Outcome.from_json(outcome.to_json())
    assert again.published == outcome.published
    assert [*published_claims(again)] == [*published_claims(outcome)]


def test_explain_names_it_as_solve_does(outcome: mw.Outcome) -> None:
    told = mw.explain(_loaded())
    assert told.best is not None
    assert told.best.published == outcome.published
    (claim,) = published_claims(outcome)
    assert claim in " ".join(str(told).split())


def test_other_jobs_have_no_published_plan() -> None:
    assert nearest_published(_loaded()) is not None
    assert nearest_published(_loaded(training={**TRAINING, "seq_len": 2048})) is None
    assert nearest_published(_loaded(model="llama2-13b")) is None
    far = {"topology": "dgx-h100", "count": 2048}
    assert nearest_published(_loaded(cluster=far)) is None
    assert nearest_published(_loaded(framework="deepspeed")) is None


def test_models_with_and_without_experts_are_never_alike() -> None:
    """Of as many parameters; a dense model has no use for expert parallelism."""
    spec = _loaded(
        model="deepseek-v3",
        cluster={"topology": "dgx-h100", "count": 128},
        training={**TRAINING, "seq_len": 4096, "global_batch": 8192},
    )
    found = nearest_published(spec)
    assert found is not None
    assert found.plan["ep"] > 1
    dense = spec.model.model_copy(update={"moe": None})
    with patch.object(profile_module, "stated_params", lambda _: found.params):
        assert nearest_published(spec.model_copy(update={"model": dense})) is None


def test_no_configuration_is_judged_beside_a_plan_of_its_source() -> None:
    """Plans of its source are there, and only those of others are known."""
    seen, others = 0, 0
    for one in configurations():
        if one.lacks or not one.framework or one.id in exceptions():
            continue
        source = one.source.get("repo") or one.from_
        spec = mw.load(one.spec, mw.Spec)
        found = without(one, []).applied_to(spec).run_before.published
        others += found is not None
        assert found is None or source.lower() not in found.source.lower()
        known = load_profile("measured").applied_to(spec).run_before.published
        seen += known is not None and source.lower() in known.source.lower()
    assert seen > 50
    assert others > 10


def test_the_answer_says_how_much_faster_other_degrees_must_be(
    outcome: mw.Outcome,
) -> None:
    (claim,) = published_claims(outcome)
    assert "For this very job other degrees or another ZeRO stage must be 11%" in claim
    published = outcome.published
    assert published is not None
    fewer = published.model_copy(update={"is_for_job": False})
    (claim,) = published_claims(outcome.model_copy(update={"published": fewer}))
    assert "very job" not in claim


def test_of_several_published_plans_the_one_with_most_tokens_is_taken() -> None:
    """Two runs of GPT-3 on 384 A100, the slower one listed first."""
    spec = _loaded(
        model="gpt3-175b",
        framework="generic",
        cluster={"topology": "dgx-a100", "count": 48},
        training={"seq_len": 2048, "global_batch": 1536, "precision": "fp16"},
    )
    plans = json.loads(PATH.read_text(encoding="utf-8"))["plans"]
    rates = [
        one["tokens_per_s_per_gpu"]
        for one in plans
        if (one["gpus"], one["gpu"], one["seq_len"]) == (384, "a100-sxm-80gb", 2048)
    ]
    assert rates[0] < max(rates)
    found = nearest_published(spec)
    assert found is not None
    assert found.tokens_per_s_per_gpu == max(rates)


def test_pins_that_forbid_it_leave_it_out() -> None:
    outcome = mw.solve(_loaded(pins={"pp": 8}), by_kind=False)
    assert outcome.published is None
    same = mw.solve(_loaded(pins={"pp": 4}), by_kind=False)
    assert same.published is not None


def test_an_mfu_above_all_published_ones_is_said() -> None:
    outcome = mw.solve(mw.load("llama3-70b-128xa100", mw.Spec), by_kind=False)
    highest = outcome.highest_mfu
    assert highest is not None
    assert outcome.best is not None
    assert outcome.best.mfu > highest.mfu
    told = [claim for claim in published_claims(outcome) if "MFU" in claim]
    assert len(told) == 1
    assert f"{highest.mfu:.1%}" in told[0]


def test_every_published_plan_can_be_pinned() -> None:
    rows = json.loads(PATH.read_text(encoding="utf-8"))
    assert len(rows["plans"]) > 100
    for row in rows["plans"]:
        Pins.model_validate(row["plan"])
        assert row["source"]
    keys = [
        (one["gpu"], one["precision"], one["kin"], one["has_experts"])
        for one in rows["highest_mfu"]
    ]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"training": TRAINING | {"global_batch": 256}}, True),
        ({"cluster": {"topology": "dgx-h100", "count": 16}}, False),
    ],
)
def test_a_plan_that_no_memory_holds_is_told_for_its_own_job_alone(
    changes: dict[str, object],
    is_told: bool,
    outcome: mw.Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(profile=load_profile("measured"))
    spec = _loaded(**changes)
    assert with_published(outcome, spec, options).published is not None
    none = SimpleNamespace(best=None, near_miss=None)
    monkeypatch.setattr(published, "solve", lambda *_: none)
    told = with_published(outcome, spec, options).published
    assert (told is not None) is is_told
    assert told is None or (told.priced, told.is_risky) == (None, False)


def test_a_limit_on_memory_itself_has_no_risk_to_take() -> None:
    limited = _loaded().having("limits", memory_gib=60.0)
    assert published._at_most_risk(limited) is limited
    assert published._at_most_risk(_loaded()).limits.risk == MOST_RISK


def test_an_answer_that_was_stopped_has_no_plan_beside_it(outcome: mw.Outcome) -> None:
    options = Options(profile=load_profile("measured"))
    bare = {"published": None, "highest_mfu": None}
    for more in ({"is_stopped": True}, {"best": None}):
        stopped = outcome.model_copy(update=bare | more)
        assert with_published(stopped, _loaded(), options) is stopped
