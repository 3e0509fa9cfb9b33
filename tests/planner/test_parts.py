"""The best plans of parts: proven where they are near, else bounded."""

from __future__ import annotations

from functools import cache, partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.cost.job import make_job
from meshwright.cost.profile import load_profile
from meshwright.deadline import Deadline
from meshwright.loading.load import load_spec
from meshwright.planner import solve as solving
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.options import Options
from meshwright.planner.parts import KIND, Part, PartPlan, search_parts
from meshwright.planner.solve import best_of_parts, kinds_in, part_plan, solve
from meshwright.report.solve import kind_table
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

NAME = "llama2-13b-8xa100"


@cache
def solved() -> tuple[Prepared, Outcome]:
    prepared = prepare(make_job(load_spec(NAME)))
    return prepared, solve(prepared.job.spec, Options(is_brief=True), prepared)


@cache
def parts_within(within: float) -> dict[Part, PartPlan]:
    prepared, outcome = solved()
    parts = [*kinds_in(prepared.lattice)]
    parts += [Part(axis, n) for axis in ("tp", "pp", "cp", "dp") for n in (1, 2, 4, 8)]
    return best_of_parts(prepared, parts, Options(), Deadline(), outcome, within)


@pytest.mark.parametrize("within", [0.0, 0.02, 0.05])
def test_what_is_not_proven_lies_between_bound_and_constructed_plan(
    within: float,
) -> None:
    every, some = parts_within(inf), parts_within(within)
    assert every.keys() == some.keys()
    _, outcome = solved()
    assert outcome.best is not None
    bounded = 0
    for part, plan in some.items():
        proven = every[part]
        assert proven.is_proven
        if plan.is_proven:
            assert plan.best == proven.best
            continue
        bounded += 1
        assert proven.best is not None
        assert plan.best is not None
        step_s = proven.best.step_s
        assert plan.bound_s * (1 - 1e-9) <= step_s <= plan.best.step_s * (1 + 1e-9)
        assert plan.bound_s >= outcome.best.step_s * (1 + within) * (1 - 1e-9)
    assert bounded


def takes_s(found: PartPlan) -> float:
    return found.best.step_s if found.best else 0.0


def pinned(spec: Spec, part: Part) -> Spec:
    pins = spec.pins.model_dump(exclude_none=True) | {part.column: part.value}
    return spec.model_copy(update={"pins": Pins.model_validate(pins)})


def test_a_part_takes_what_a_solve_of_it_alone_takes() -> None:
    spec, every = load_spec(NAME), parts_within(inf)
    pinnable = [part for part in every if part.column != KIND]
    slowest = max(pinnable, key=lambda part: takes_s(every[part]))
    for part in (Part("tp", 8), Part("pp", 4), Part("dp", 2), slowest):
        alone = solve(pinned(spec, part), Options(is_brief=True))
        best, found = alone.best, every[part].best
        assert best is not None
        assert found is not None
        assert found.step_s == best.step_s
        assert found.plan == best.plan


def test_without_time_bounds_are_still_true() -> None:
    prepared, outcome = solved()
    parts = list(parts_within(inf))
    found = best_of_parts(prepared, parts, Options(), Deadline(0.0), outcome)
    assert outcome.certificate is not None
    rounding_s = outcome.certificate.rounding_s
    for part, plan in found.items():
        proven = parts_within(inf)[part]
        assert proven.best is None or plan.bound_s <= proven.best.step_s + rounding_s


def test_without_time_a_part_is_bounded_by_its_families() -> None:
    prepared, _ = solved()
    families, lattice = prepared.families, prepared.lattice
    first = lattice.unplaced.take(families.start)
    parts = [Part("tp", n) for n in (1, 2, 4, 8)]
    found = search_parts(prepared, parts, [inf] * 4, Options(), Deadline(0.0))
    for part, plan in zip(parts, found, strict=True):
        least = families.lower[first.rows.tp == part.value].min()
        assert (plan.best, plan.is_proven) == (None, False)
        assert plan.bound_s == pytest.approx(least * TICK_S)


def test_kinds_that_are_far_say_so_in_words_and_in_data() -> None:
    spec = load_spec(NAME)
    outcome = solve(spec, Options(is_by_kind=True, kinds_within=0.02))
    far = {kind.kind: kind for kind in outcome.by_kind if not kind.is_proven}
    assert far
    assert outcome.optimum is not None
    cells = {row[0]: row for row in kind_table(outcome.optimum, outcome.by_kind).rows}
    for name, kind in far.items():
        assert kind.bound_s is not None
        _, step, loss, _ = cells[name]
        assert step.startswith("<= ")
        assert loss.startswith("at least +")
        told = float(loss.removeprefix("at least ").rstrip("%")) / 100
        assert told <= kind.bound_s / outcome.optimum.step_s - 1 + 1e-9
    printed = {kind["kind"]: kind for kind in outcome.to_dict()["by_kind"]}
    assert all(("bound_s" in printed[kind]) == (kind in far) for kind in printed)
    again = {kind.kind: kind for kind in Outcome.from_json(outcome.to_json()).by_kind}
    assert {name: again[name] for name in far} == far


def test_a_split_may_be_better_than_the_one_that_is_constructed() -> None:
    """Which of four stages has one of seven layers, and not two, is proven."""
    gpu = {"memory_gib": 7.0, "memory_gb_s": 1500, "peak_tflops": {"bf16": 300}}
    level = {"name": "node", "size": 4, "gb_s": 100, "latency_us": 2}
    pins = {"vpp": 1, "cp": 1, "micro_batch": 1, "zero": 0, "offload": "none"}
    data: dict[str, Any] = {
        "model": {
            "n_layers": 7, "d_model": 1024, "n_heads": 8, "n_kv_heads": 8,
            "d_ff": 4096, "vocab": 32000,
        },
        "cluster": {"topology": {"gpu": gpu, "levels": [level]}},
        "framework": "generic",
        "training": {"seq_len": 2048, "global_batch": 16},
        "pins": pins | {"recompute_segment": 1},
    }  # fmt: skip
    spec = Spec.model_validate(data)
    prepared = prepare(make_job(spec))
    outcome = solve(spec, Options(is_brief=True), prepared)
    for parts in ([Part("pp", 4)], [Part("pp", 4), Part("tp", 4)]):
        found = best_of_parts(prepared, parts, Options(), Deadline(), outcome, inf)
        for part, told in found.items():
            alone = solve(pinned(spec, part), Options(is_brief=True)).best
            assert told.is_proven
            assert told.best == alone


def test_sets_of_techniques_without_a_plan_name_the_rule_that_the_nearest_breaks() -> (
    None
):
    """DeepSpeed's context parallelism stands beside data parallelism alone."""
    by_kind = solve(load_spec(NAME), Options(is_by_kind=True)).by_kind
    # 8 GPUs are three factors of 2: all sets of up to three of four techniques.
    assert len(by_kind) == 4 + 6 + 4
    broken = {
        result.kind: [rule.rule for rule in result.near_miss.broken_rules]
        for result in by_kind
        if result.near_miss is not None
    }
    wrong = {kind for kind in broken if "CP" in kind.split(" + ")}
    assert wrong == {*broken}
    assert "DP/ZeRO + CP" not in wrong
    assert all(rules[0] == "context_stands_alone" for rules in broken.values())
    assert len(broken) == 5


def test_parts_that_are_doubted_and_parts_that_are_not_may_be_asked_together() -> None:
    profile = load_profile("measured")
    prepared = prepare(profile.job(profile.applied_to(load_spec(NAME))))
    options = Options(profile=profile, is_brief=True)
    parts = [
        *(Part("tp", n, is_doubted) for n in (1, 2, 8) for is_doubted in (False, True)),
        *kinds_in(prepared.lattice),
    ]
    together = search_parts(prepared, parts, [inf] * len(parts), options, Deadline())
    for part, found in zip(parts, together, strict=True):
        (alone,) = search_parts(prepared, [part], [inf], options, Deadline())
        assert found.is_proven
        assert alone.is_proven
        assert found.best == alone.best
    by_step, by_doubt = together[2], together[3]
    assert by_step.best is not None
    assert by_doubt.best is not None
    assert by_step.best.step_s < by_doubt.best.step_s
    assert by_step.best.doubted_s > by_doubt.best.doubted_s


@pytest.mark.parametrize(
    ("status", "is_doubted", "doubt", "is_proven"),
    [
        ("optimal", False, 1.0, True),
        ("optimal", True, 1.0, True),
        ("optimal", True, 1.1, False),
        ("optimal", False, 1.1, True),
        ("feasible", False, 1.0, False),
        ("infeasible", False, None, True),
        ("unknown", False, None, False),
    ],
)
def test_a_part_that_was_solved_alone_is_proven_by_its_step(
    status: str, is_doubted: bool, doubt: float | None, is_proven: bool
) -> None:
    """Of a plan whose step is doubted, another may take longer and be doubted less."""
    step: Any = SimpleNamespace(step_s=2.0, doubted_s=2.0 * (doubt or 0.0))
    step.takes_s = partial(PricedPlan.takes_s, step)
    best = step if doubt else None
    proof = SimpleNamespace(bound_s=1.5) if doubt else None
    result: Any = SimpleNamespace(
        status=status, best=best, certificate=proof, near_miss="a miss"
    )
    found = part_plan(Part("tp", 2, is_doubted), result)
    assert found == PartPlan(best, 1.5 if doubt else 0.0, is_proven, result.near_miss)


def test_parts_without_a_plan_are_solved_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that proves that nothing fits need not be repeated by a solve."""
    spec = load_spec(NAME, {"zero": 0, "cp": 1})
    prepared = prepare(make_job(spec))
    outcome = solve(spec, Options(is_brief=True), prepared)
    parts = [Part("dp", 1), Part("dp", 2), Part("dp", 8), Part("pp", 2)]
    monkeypatch.setattr(solving, "best_outcome", None)
    found = best_of_parts(prepared, parts, Options(), Deadline(), outcome)
    assert [part for part in parts if found[part].best is None] == parts[1:3]
    assert all(one.is_proven for one in found.values())


def test_parts_whose_splits_may_break_a_limit_are_solved_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = load_spec(NAME, {"zero": 1, "cp": 1, "vpp": 1, "micro_batch": 1})
    spec = spec.having("limits", max_link_utilisation=0.4)
    monkeypatch.setattr(solving, "search_parts", None)
    prepared = prepare(make_job(spec))
    outcome = solve(spec, Options(is_brief=True), prepared)
    parts = [Part("tp", 2), Part("tp", 4)]
    found = best_of_parts(prepared, parts, Options(), Deadline(), outcome)
    for part, told in found.items():
        alone = solve(pinned(spec, part), Options(is_brief=True))
        assert told.best == alone.optimum
        assert told.is_proven == (alone.status in ("optimal", "infeasible"))


def test_parts_are_proven_within_a_share_of_the_plan_they_are_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared, outcome = solved()
    assert outcome.best is not None
    doubted = outcome.best.model_copy(update={"step_s": 99.0})
    whole = outcome.model_copy(update={"best": doubted, "fastest": outcome.best})
    asked = list[list[float]]()

    def noted(_: object, parts: list[Part], most_s: list[float], *__: object) -> Any:
        asked.append(most_s)
        return [PartPlan(outcome.best, 1.0, True) for _ in parts]

    monkeypatch.setattr(solving, "search_parts", noted)
    parts = [Part("tp", 8), Part("tp", 4, is_doubted=True)]
    best_of_parts(prepared, parts, Options(), Deadline(), whole, within=0.5)
    step_s = outcome.best.step_s
    assert asked == [[1.5 * step_s, 1.5 * doubted.doubted_s]]
    assert doubted.doubted_s != step_s
