"""What sets the degrees: each of the others against a solve of its own.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from meshwright.cost.job import make_job
from meshwright.cost.profile import Profile, load_profile
from meshwright.explanations.degrees import (
    DegreeComparison,
    _neighbours,
    best_at,
    fullest_links,
    shares,
)
from meshwright.loading.load import load_spec
from meshwright.planner.families import prepare
from meshwright.planner.options import PROVEN_WITHIN, Options
from meshwright.planner.solve import solve
from meshwright.report.alternatives import LEAST_SHARE, degree_sections
from meshwright.report.tables import Lines, Table
from meshwright.results.explanation import AxisDegrees, DegreeReasons, OtherDegree
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.legality import rules_of
from meshwright.spec.plan_fields import Pins
from meshwright.spec.run_before import Familiarity
from meshwright.spec.spec import Spec
from tests.helpers.command import run
from tests.helpers.extent import gate
from tests.helpers.strategies import specs

NAMES = ("llama2-13b-8xa100", "gpt2-xl-2x4090-pcie", "gpt-1.3b-dgx-1v")

SMALL: dict[str, Any] = {
    "model": {
        "n_layers": 6, "d_model": 1024, "n_heads": 12, "n_kv_heads": 4,
        "head_dim": 64, "d_ff": 3072, "vocab": 32000,
    },
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 40, "memory_gb_s": 1500, "peak_tflops": {"bf16": 300}
            },
            "levels": [
                {"name": "inner", "size": 4, "gb_s": 300, "latency_us": 1},
                {"name": "outer", "size": 4, "gb_s": 10, "latency_us": 5},
            ],
        }
    },
    "framework": "megatron",
    "training": {"seq_len": 1024, "global_batch": 48},
}  # fmt: skip


def small(**changed: Any) -> Spec:
    return Spec.model_validate(SMALL | changed)


@cache
def bundled(name: str) -> tuple[Spec, PricedPlan, DegreeReasons]:
    return looked_at(load_spec(name))


def looked_at(
    spec: Spec, within: float = PROVEN_WITHIN
) -> tuple[Spec, PricedPlan, DegreeReasons]:
    """Return a spec with its best plan, and what sets its degrees."""
    prepared = None if spec.cluster.parts else prepare(make_job(spec))
    outcome = solve(spec, prepared=prepared)
    best = outcome.best
    assert best is not None
    comparison = DegreeComparison(spec, best)
    options = Options(is_brief=True)
    found = best_at(spec, comparison.parts(), outcome, prepared, options, within)
    return spec, best, comparison.reasons(found)


def pinned(spec: Spec, axis: str, degree: int) -> Spec:
    pins = Pins.model_validate(spec.pins.model_dump() | {axis: degree})
    return spec.model_copy(update={"pins": pins})


def others(degree_reasons: DegreeReasons) -> Iterator[tuple[AxisDegrees, OtherDegree]]:
    for axis in degree_reasons.axes:
        for other in axis.others:
            yield axis, other


def of_axis(degree_reasons: DegreeReasons, name: str) -> AxisDegrees:
    return next(axis for axis in degree_reasons.axes if axis.axis == name)


def check_against_solves(
    spec: Spec, best: PricedPlan, degree_reasons: DegreeReasons
) -> None:
    for axis, other in others(degree_reasons):
        alone = solve(pinned(spec, axis.axis, other.degree)).best
        if alone is None:
            assert (other.plan, other.step_s, other.gap) == (None, None, None)
            continue
        assert other.step_s is not None
        if other.bound_s is not None:
            # Of many plans those far behind are not proven: a bound, and some plan.
            assert other.bound_s <= alone.step_s * (1 + 1e-9)
            assert alone.step_s <= other.step_s * (1 + 1e-9)
            continue
        assert other.step_s == pytest.approx(alone.step_s, rel=1e-9)
        assert other.gap is not None
        assert other.gap.step_s == pytest.approx(alone.step_s - best.step_s, abs=1e-12)
        for name, more in other.gap.terms.items():
            apart = alone.time_parts.get(name, 0.0) - best.time_parts.get(name, 0.0)
            assert more == pytest.approx(apart, abs=1e-9 * best.step_s)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_degree_takes_what_a_solve_with_it_pinned_takes(name: str) -> None:
    check_against_solves(*bundled(name))


@pytest.mark.slow
@settings(
    max_examples=gate(4, everything=15),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(specs(4))
def test_so_it_is_on_any_spec(spec: Spec) -> None:
    assume(solve(spec).best is not None)
    spec, best, found = looked_at(spec)
    check_against_solves(spec, best, found)
    for axis, other in others(found):
        # What is not pinned wins: no other degree is faster.
        is_slower = other.step_s is None or other.step_s >= best.step_s * (1 - 1e-9)
        assert is_slower or axis.is_pinned


@pytest.mark.parametrize("name", NAMES)
def test_every_divisor_of_the_gpus_is_told(name: str) -> None:
    spec, best, found = bundled(name)
    gpus = spec.cluster.gpus
    known = [degree for degree in range(1, gpus + 1) if gpus % degree == 0]
    for axis in ("tp", "pp"):
        degrees = [other.degree for other in of_axis(found, axis).others]
        assert sorted([*degrees, getattr(best.plan, axis)]) == known
    for name, degree in (
        ("cp", best.plan.cp),
        ("dp", best.plan.dp_replicate * best.plan.dp_shard),
    ):
        assert of_axis(found, name).degree == degree
        at = known.index(degree)
        near = [*known[max(at - 1, 0) : at], *known[at + 1 : at + 2]]
        assert [other.degree for other in of_axis(found, name).others] == near


@pytest.mark.parametrize("name", NAMES)
def test_differences_of_parts_add_up(name: str) -> None:
    _, best, found = bundled(name)
    fitting = [other for _, other in others(found) if other.step_s is not None]
    assert fitting
    for other in fitting:
        assert other.gap is not None
        assert other.step_s is not None
        whole = other.step_s - best.step_s
        assert sum(other.gap.terms.values()) == pytest.approx(whole, abs=1e-9)


def test_rules_in_the_way_are_named() -> None:
    """12 heads and 6 layers over 16 GPUs; 48 sequences."""
    _, _, found = looked_at(small())
    rules = {
        (axis.axis, other.degree): [rule.rule for rule in other.rules]
        for axis, other in others(found)
        if other.plan is None
    }
    assert rules.pop(("tp", 8)) == ["heads_divisible"]
    assert rules.pop(("tp", 16)) == ["heads_divisible"]
    assert rules.pop(("pp", 8)) == ["layers_cover_stages"]
    assert rules.pop(("pp", 16)) == ["layers_cover_stages"]
    assert not rules


def test_memory_is_named_and_room_lets_the_degree_in() -> None:
    pins = {"zero": 0, "recompute": "none"}
    spec, _, found = looked_at(small(limits={"memory_gib": 3.5}, pins=pins))
    blamed = [
        (axis.axis, other.degree)
        for axis, other in others(found)
        if "memory" in [rule.rule for rule in other.rules]
    ]
    assert blamed
    roomy = spec.model_copy(
        update={"limits": spec.limits.model_copy(update={"memory_gib": 500.0})}
    )
    for axis, degree in blamed:
        assert solve(pinned(spec, axis, degree)).best is None
        assert solve(pinned(roomy, axis, degree)).best is not None


def test_other_pins_are_named_beside_rules() -> None:
    """Of 16 GPUs 8 are left for stages and copies, and 6 layers make no 16 stages."""
    _, _, found = looked_at(small(pins={"tp": 2, "cp": 1}))
    assert of_axis(found, "tp").is_pinned
    assert not of_axis(found, "pp").is_pinned
    (sixteen,) = (o for o in of_axis(found, "pp").others if o.degree == 16)
    assert [rule.rule for rule in sixteen.rules] == ["layers_cover_stages"]
    near = {other.degree: other for other in of_axis(found, "cp").others}
    assert near[2].plan is not None
    assert near[2].plan.tp == 2


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_names_what_stands_in_its_way(name: str) -> None:
    spec, _, found = bundled(name)
    known = {one.rule.name for one in rules_of(spec.framework)}
    known |= {"memory", "host_memory", "world_size"}
    for axis, other in others(found):
        if other.plan is None:
            names = {rule.rule for rule in other.rules}
            assert names
            assert names <= known | {f"pins.{field}" for field in Pins.model_fields}
            assert f"pins.{axis.axis}" not in names


def test_a_bad_pin_is_told_by_what_others_gain() -> None:
    _, best, found = looked_at(small(pins={"tp": 4}))
    free = solve(small()).best
    assert free is not None
    assert free.step_s < best.step_s
    assert of_axis(found, "tp").is_pinned
    steps = {other.degree: other.step_s for other in of_axis(found, "tp").others}
    assert steps[free.plan.tp] == pytest.approx(free.step_s, rel=1e-9)
    assert any("gains" in line for line in lines(found, best))


def test_names_of_levels_do_not_matter_but_are_told() -> None:
    level = SMALL["cluster"]["topology"]["levels"]
    renamed = [one | {"name": f"x{one['name']}"} for one in level]
    topology = SMALL["cluster"]["topology"] | {"levels": renamed, "name": "mine"}
    _, _, first = looked_at(small())
    _, _, second = looked_at(small(cluster={"topology": topology}))
    text = first.model_dump_json()
    assert "inner0" in text
    assert "outer0" in text
    text = text.replace("inner0", "xinner0").replace("outer0", "xouter0")
    assert second.model_dump_json() == text


def test_links_are_those_that_groups_cannot_do_without() -> None:
    """Tensor groups of two stay in a pair, groups of four span both."""
    _, _, found = looked_at(two_by_two(pins={"dp": 1}))
    tensor = of_axis(found, "tp")
    links = {other.degree: other.links for other in tensor.others}
    assert links[4]["tp"] == "inner0 -> outer0"
    two = tensor.link if tensor.degree == 2 else links[2]["tp"]
    assert two == "gpu0 -> inner0"


def test_shares_of_a_gpu_and_a_stage() -> None:
    """12 heads / 4; 4 KV heads / 4; 3,072 / 4; 6 layers over 4 stages: 1 or 2 each."""
    _, best, found = looked_at(small(pins={"tp": 4, "pp": 4}))
    told = found.shares
    assert (told.heads, told.kv_heads, told.d_ff) == (3, 1, 768)
    assert told.layers == (1, 2)
    assert told.experts == 0
    assert told.bubble == best.time_parts["bubble"] / best.step_s
    assert told.bubble > 0


def test_key_and_value_heads_repeat_beyond_their_number() -> None:
    """Two KV heads over four GPUs: one on each."""
    model = SMALL["model"] | {"n_kv_heads": 2}
    _, _, found = looked_at(small(model=model, pins={"tp": 4}))
    assert found.shares.kv_heads == 1


def test_experts_are_whole() -> None:
    moe = {"n_experts": 8, "top_k": 2, "d_ff": 1536}
    model = SMALL["model"] | {"moe": moe}
    _, _, found = looked_at(small(model=model, pins={"tp": 2, "ep": 4}))
    assert (found.shares.experts, found.shares.d_ff) == (2, 1536)


def test_shares_are_of_experts_where_there_are_some() -> None:
    """64 experts over 8 GPUs, each 1,536 wide over 2; a fifth of the step is bubble."""
    moe = {"n_experts": 64, "top_k": 2, "d_ff": 1536}
    model = small(model=SMALL["model"] | {"moe": moe}).model
    stages = [SimpleNamespace(layers=layers) for layers in (2, 3, 1)]
    plan = SimpleNamespace(tp=2, etp=2, ep=8, stages=stages)
    priced: Any = SimpleNamespace(plan=plan, time_parts={"bubble": 0.5}, step_s=2.5)
    found = shares(model, priced)
    assert (found.heads, found.kv_heads, found.d_ff, found.experts) == (6, 2, 768, 8)
    assert (found.layers, found.bubble) == ((1, 3), 0.2)


def extremes(terms: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the part that grows most and the one that shrinks most, if it matters."""
    by_size = sorted(terms.items(), key=lambda term: term[1])
    largest = max(abs(more) for more in terms.values())
    for part, more in (by_size[0], by_size[-1]):
        if abs(more) > largest / 5:
            yield part, more


def lines(degree_reasons: DegreeReasons, best: PricedPlan) -> tuple[str, ...]:
    section = degree_sections(degree_reasons, best)[0]
    assert isinstance(section, Lines)
    return section.lines


@pytest.mark.parametrize("name", NAMES)
def test_sentences_say_the_degree_and_its_neighbours(name: str) -> None:
    _, best, found = bundled(name)
    for axis, line in zip(found.axes, lines(found, best)[1:], strict=True):
        assert line.startswith(f"{axis.axis} is ")
        near = [o for o in axis.others if o.degree > axis.degree][:1]
        near += [o for o in axis.others if o.degree < axis.degree][-1:]
        for other in near:
            if other.step_s is None:
                assert f"{other.degree} does not fit, by {other.rules[0].rule}" in line
                continue
            loss = other.step_s / best.step_s - 1
            verb = "loses" if loss >= 0 else "gains"
            assert f"{other.degree} {verb} {abs(loss):.1%}: " in line
            assert other.gap is not None
            for part, more in extremes(other.gap.terms):
                if abs(more) > LEAST_SHARE * best.step_s:
                    assert f"{part} {more / best.step_s:+.1%}" in line


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_largest_part_of_every_degree(name: str) -> None:
    _, best, found = bundled(name)
    table = degree_sections(found, best)[1]
    assert isinstance(table, Table)
    rows = {degree: (costs, why) for degree, costs, why in table.rows}
    for axis, other in others(found):
        if other.step_s is None or other.gap is None:
            continue
        costs, why = rows[f"{axis.axis} {other.degree}"]
        assert costs == f"{other.step_s / best.step_s - 1:+.1%}"
        part, more = max(other.gap.terms.items(), key=lambda term: abs(term[1]))
        if abs(more) > LEAST_SHARE * best.step_s:
            assert f"{part} {more / best.step_s:+.1%}" in why


def test_far_degrees_say_what_they_lose_at_least() -> None:
    _, best, found = looked_at(small(), 0.0)
    table = degree_sections(found, best)[1]
    assert isinstance(table, Table)
    rows = {degree: (costs, why) for degree, costs, why in table.rows}
    far = [(axis, other) for axis, other in others(found) if other.bound_s is not None]
    assert far
    for axis, other in far:
        assert other.step_s is not None
        assert other.bound_s is not None
        costs, why = rows[f"{axis.axis} {other.degree}"]
        least = float(costs.removeprefix("at least ").rstrip("%")) / 100
        assert 0 <= least <= other.bound_s / best.step_s - 1 + 1e-9
        loss = other.step_s / best.step_s - 1
        assert why.startswith(f"{loss:+.1%} of a plan that was constructed: ")


def test_doubt_is_named_and_explained_where_degrees_lose_by_it() -> None:
    """Without it the fastest plan could have the degree that is said to lose."""
    _, best, changed = looked_at(small(), 0.0)
    known = Familiarity(like="a", runs=1, beyond=("offload",), doubt=0.11)
    best = best.model_copy(update={"familiarity": known})
    doubted = {"beyond": ("offload", "few tokens a GPU")}
    axes = []
    for axis in changed.axes:
        far = (
            other.model_copy(update=doubted | {"doubted_s": 2 * other.step_s})
            if other.bound_s is not None and other.step_s is not None
            else other
            for other in axis.others
        )
        axes.append(axis.model_copy(update={"others": (*far,)}))
    changed = changed.model_copy(update={"axes": tuple(axes), "tolerance": 0.02})
    told = lines(changed, best)
    assert any("%, of it doubt (few tokens a GPU)" in line for line in told)
    assert told[-1].startswith("Doubt: 11% of the step for each decision beyond")


def test_degrees_that_one_rule_bars_share_a_row() -> None:
    _, best, found = looked_at(small())
    table = degree_sections(found, best)[1]
    assert isinstance(table, Table)
    (row,) = (row for row in table.rows if row[0].startswith("tp 8"))
    assert row == (
        "tp 8 to 16", "-", "heads_divisible (tp divides the query heads)"
    )  # fmt: skip


def test_the_command_tells_it() -> None:
    result = run("explain", "llama2-13b-8xa100", "--profile", "unfitted", "-v")
    assert result.code == 0
    spec = load_spec("llama2-13b-8xa100")
    options = Options(profile=load_profile("unfitted"))
    best = solve(spec, options).best
    assert best is not None
    assert "What sets the degrees" in result.stdout
    assert "Other degrees, with everything else chosen again" in result.stdout
    assert f"tp is {best.plan.tp}" in result.stdout


def test_one_gpu_has_no_other_degrees() -> None:
    topology = {
        "gpu": SMALL["cluster"]["topology"]["gpu"],
        "levels": [{"name": "alone", "size": 1, "gb_s": 1, "latency_us": 1}],
    }
    _, best, found = looked_at(small(cluster={"topology": topology}))
    assert not list(others(found))
    assert degree_sections(found, best) == []


def test_degrees_of_the_recommended_plan_are_compared_by_doubted_steps() -> None:
    profile = Profile(run_before={"megatron": {"pp to 8": 5}}, doubt=0.2)
    spec = profile.applied_to(small())
    prepared = prepare(profile.job(spec))
    options = Options(tolerance=1e-9, profile=profile)
    outcome = solve(spec, options, prepared)
    assert outcome.best is not None
    assert outcome.fastest is not None
    comparison = DegreeComparison.of(spec, outcome, prepared)
    assert comparison.best == outcome.best
    found = best_at(spec, comparison.parts(), outcome, prepared, options, math.inf)
    reasons, told = comparison.reasons(found), 0
    for axis, other in others(reasons):
        alone = solve(pinned(spec, axis.axis, other.degree), options).best
        assert (alone is None) == (other.doubted_s is None)
        if alone is not None and other.doubted_s is not None:
            assert other.doubted_s == pytest.approx(alone.doubted_s, rel=1e-8)
            told += other.doubted_s > alone.step_s
    assert told
    section = degree_sections(reasons, outcome.best)[0]
    assert isinstance(section, Lines)
    assert section.title == "What sets the degrees of the recommended plan"
    beyond = {word for _, other in others(reasons) for word in other.beyond}
    lines = " ".join(section.lines)
    assert "doubt +" in lines
    assert any(word in lines for word in beyond)


def two_by_two(**more: Any) -> Spec:
    """Return four GPUs, in pairs that a slow level joins."""
    levels = [
        {"name": "inner", "size": 2, "gb_s": 300, "latency_us": 1},
        {"name": "outer", "size": 2, "gb_s": 10, "latency_us": 5},
    ]
    topology = SMALL["cluster"]["topology"] | {"levels": levels}
    return small(cluster={"topology": topology}, **more)


def test_limits_that_only_a_solve_tells_of_are_named() -> None:
    """Tensors over all four GPUs keep the outer links busy for over a fifth.

    No GPU waits for its host, which would leave them idle.
    """
    pins = {"micro_batch": 1, "recompute": "none", "vpp": 1, "cp": 1}
    training = SMALL["training"] | {"cuda_graphs": True}
    more = {"pins": pins, "training": training}
    spec = two_by_two(limits={"max_link_utilisation": 0.2}, **more)
    _, _, found = looked_at(spec)
    (four,) = (o for o in of_axis(found, "tp").others if o.degree == 4)
    assert [rule.rule for rule in four.rules] == ["limits.max_link_utilisation"]
    assert solve(pinned(spec, "tp", 4)).best is None
    free = solve(pinned(two_by_two(**more), "tp", 4)).best
    assert free is not None
    assert free.link_utilisation > 0.2


@pytest.mark.slow
def test_rules_are_named_of_unlike_parts_too() -> None:
    """25 heads do not go by two, on whichever of the GPUs."""
    _, best, found = looked_at(load_spec("gpt2-xl-2x3090-2x4090"))
    assert best.plan.tp == 1
    for other in of_axis(found, "tp").others:
        assert "heads_divisible" in [rule.rule for rule in other.rules]


@pytest.mark.parametrize("doubt", [0.0, 0.3])
def test_degrees_are_those_of_the_fastest_plan_where_no_step_is_doubted(
    doubt: float,
) -> None:
    """Nor where the degrees are solved for one by one, as on unlike parts."""
    spec = small()
    job = Options().profile.job(spec)
    outcome: Any = SimpleNamespace(
        best=SimpleNamespace(step_s=2.0),
        optimum=SimpleNamespace(step_s=1.0),
        certificate=SimpleNamespace(doubt=doubt, tolerance=0.05),
    )
    for prepared in (None, prepare(job)):
        told = DegreeComparison.of(spec, outcome, prepared)
        is_doubted = doubt > 0 and prepared is not None
        assert told.best.step_s == (2.0 if is_doubted else 1.0)
        assert told.tolerance == (0.05 if is_doubted else None)


def test_the_fullest_link_is_that_of_the_longest_transfer_of_a_part() -> None:
    """What other groups send counts for no part but their own."""
    loads = [
        SimpleNamespace(phase=phase, link=link, seconds=seconds)
        for phase, link, seconds in (
            ("tp", "nvlink", 2.0),
            ("tp", "pcie", 3.0),
            ("tp", "nic", 1.0),
            ("dp_shard", "nic", 5.0),
            ("expert_replicate", "spine", 9.0),
        )
    ]
    priced: Any = SimpleNamespace(links=loads)
    assert fullest_links(priced) == {"tp": "pcie", "zero": "nic", "dp": "spine"}


@pytest.mark.parametrize(
    ("degree", "told"), [(1, [2]), (2, [1, 4]), (4, [2, 8]), (8, [4]), (3, [2, 4])]
)
def test_neighbours_are_the_next_degrees_below_and_above(
    degree: int, told: list[int]
) -> None:
    assert _neighbours(degree, [1, 2, 4, 8]) == told
