"""The outcome of a solve as titled tables and lines, the most important first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meshwright.report.degrees import least_loss_text
from meshwright.report.near_plans import near_sections
from meshwright.report.open_answer import open_sections
from meshwright.report.plan_text import plan_lines
from meshwright.report.proof import proof_sections
from meshwright.report.safety import safety_lines
from meshwright.report.simplicity import simplicity_sections
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    seconds_text,
    short_rule_text,
)
from meshwright.results.claims import familiarity_claim, proof_claim
from meshwright.results.outcome import KindResult, NearMiss, Outcome
from meshwright.results.outcome_parts import ModelSize
from meshwright.results.priced_plan import PricedPlan


def solve_sections(outcome: Outcome) -> list[Section]:
    """Return an outcome as sections: plan, time, memory, links, rivals, certificate."""
    best = outcome.best
    if best is None:
        return [answer_lines(outcome), *open_sections(outcome.open)]
    return [
        answer_lines(outcome),
        *open_sections(outcome.open),
        *simplicity_sections(outcome),
        _time_table(best),
        _memory_table(best),
        safety_lines(best, outcome),
        *([_link_table(best)] if best.links else []),
        *choice_sections(outcome),
        *proof_sections(outcome),
    ]


def answer_lines(outcome: Outcome) -> Lines:
    """Return the recommended plan, its speed and its proof, or why there is none."""
    best = outcome.best
    if best is None:
        return Lines(outcome.title, _no_plan(outcome))
    lines = (*size_lines(outcome.model), *plan_lines(best.plan), _speed(best))
    claims = filter(None, [_familiarity(best), proof_claim(outcome)])
    return Lines(outcome.title, (*lines, *claims))


def _familiarity(best: PricedPlan) -> str:
    """Return how near a plan is to what was run, as a sentence."""
    told = familiarity_claim(best)
    return f"{told[0].upper()}{told[1:]}." if told else ""


def choice_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield the plans that were found beside the recommended one."""
    fastest = outcome.optimum
    if fastest is None:
        return
    if outcome.arrangements:
        yield _arrangement_table(fastest, outcome)
    if outcome.by_kind:
        yield kind_table(fastest, outcome.by_kind)
    if outcome.others:
        yield _plans_table(fastest, outcome.others)
    yield from near_sections(outcome.near)


def size_lines(model: ModelSize | None) -> tuple[str, ...]:
    """Return the size of the model in a line, where it is known."""
    return () if model is None else (model.text,)


def _speed(best: PricedPlan) -> str:
    return (
        f"step {seconds_text(best.step_s)} · MFU {best.mfu:.1%} · "
        f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    )


def _time_table(best: PricedPlan) -> Table:
    unit, per_s = ("s", 1.0) if best.step_s >= 1 else ("ms", 1e3)
    parts = {name: s for name, s in best.time_parts.items() if s > 1e-9 * best.step_s}
    rows = [
        (name, f"{seconds * per_s:,.3f}", f"{seconds / best.step_s:.1%}")
        for name, seconds in {**parts, "step": best.step_s}.items()
    ]
    return Table("Step time by part", ("part", unit, "share"), tuple(rows))


def _memory_table(best: PricedPlan) -> Table:
    names = [
        name
        for name in best.stages[0].parts
        if any(stage.parts[name] > 0 for stage in best.stages)
    ]
    cells = [_memory_cells(best, e, names) for e in range(best.plan.pp)]
    # A column that is empty in every stage is left out.
    shown = [i for i, column in enumerate(zip(*cells, strict=True)) if any(column)]
    heading = ("GPU", "layers", "redone", *names, "total", "free", "host")
    rows, shares = [], []
    for same_cells, group in groupby(range(len(cells)), key=lambda e: cells[e]):
        members = list(group)
        fullest = best.stages[members[0]]
        shares.append(fullest.total_gib / fullest.usable_gib)
        first, last = members[0], members[-1]
        stage = f"{first}" if first == last else f"{first}-{last}"
        rows.append((stage, *(same_cells[i] for i in shown)))
    columns = tuple(heading[i] for i in shown)
    heading = ("stage", *columns)
    return Table(_memory_title(best), heading, tuple(rows), tuple(shares))


def _memory_title(best: PricedPlan) -> str:
    usable = list(dict.fromkeys(f"{stage.usable_gib:.2f}" for stage in best.stages))
    recomputes = any(stage.recompute_layers for stage in best.plan.stages)
    redone = " (redone: recomputed layers)" if recomputes else ""
    return f"Memory of a GPU by stage, GiB of {' or '.join(usable)} usable{redone}"


def _memory_cells(best: PricedPlan, e: int, names: list[str]) -> tuple[str, ...]:
    stage, memory = best.plan.stages[e], best.stages[e]
    recomputes = any(one.recompute_layers for one in best.plan.stages)
    return (
        stage.gpu,
        str(stage.layers),
        str(stage.recompute_layers) if recomputes else "",
        *(f"{memory.parts[name]:.2f}" for name in names),
        f"{memory.total_gib:.2f}",
        f"{memory.usable_gib - memory.total_gib:.2f}",
        f"{memory.host_gib:.2f}" if _uses_host(best) else "",
    )


def _uses_host(best: PricedPlan) -> bool:
    return any(stage.host_gib > 0 for stage in best.stages)


def _link_table(best: PricedPlan) -> Table:
    rows = tuple(
        (
            load.phase,
            load.link,
            f"{load.gb:,.1f}",
            seconds_text(load.seconds),
            f"{load.utilisation:.1%}",
        )
        for load in best.links
    )
    heading = ("axis", "link", "GB", "at full rate", "of the step")
    return Table("Most loaded link of each axis, per step and way", heading, rows)


def _arrangement_table(best: PricedPlan, outcome: Outcome) -> Table:
    fastest_s = outcome.arrangements[0].step_s or best.step_s
    rows = tuple(
        (way.sentence, *_step_and_loss(fastest_s, way.step_s))
        for way in outcome.arrangements
    )
    heading = ("the job", "step", "loses")
    return Table("What to do with unlike parts", heading, rows)


def _step_and_loss(fastest_s: float, step_s: float | None) -> tuple[str, str]:
    if step_s is None:
        return "-", "none fits"
    return seconds_text(step_s), _loss_text(step_s / fastest_s - 1)


def kind_table(fastest: PricedPlan, kinds: tuple[KindResult, ...]) -> Table:
    """Return a table of the fastest plan of every kind, with its loss."""
    known = sorted(
        (kind for kind in kinds if kind.best), key=lambda kind: _step_s(kind.best)
    )
    rows = [
        (
            kind.kind,
            *_kind_cells(fastest, kind),
            _plan_of(kind),
        )
        for kind in known
    ]
    for kind in kinds:
        if kind.near_miss:
            why = short_rule_text(kind.near_miss.broken_rules[0])
            rows.append((kind.kind, "-", "-", f"none fits: {why}"))
    heading = ("kind", "step", "loses", "fastest plan of the kind")
    return Table("What wins, and by how much", heading, tuple(rows))


def _kind_cells(best: PricedPlan, kind: KindResult) -> tuple[str, str]:
    """Return the step and the loss of a kind's plan, and by how much it loses at least.

    They are upper bounds where that plan is not proven to be the fastest.
    """
    step, loss = seconds_text(_step_s(kind.best)), _loss(best, kind.best)
    if kind.is_proven:
        return step, loss
    least = (kind.bound_s or 0.0) / best.step_s - 1
    return f"<= {step}", least_loss_text(least) if least > 0 else f"<= {loss}"


def _plan_of(kind: KindResult) -> str:
    return kind.best.plan.brief if kind.best else ""


def _step_s(priced: PricedPlan | None) -> float:
    return priced.step_s if priced else float("inf")


def _loss(best: PricedPlan, other: PricedPlan | None) -> str:
    return _loss_text(_step_s(other) / best.step_s - 1)


def _loss_text(loss: float) -> str:
    return "wins" if abs(loss) < 1e-12 else f"+{loss:.1%}"


def _plans_table(best: PricedPlan, others: tuple[PricedPlan, ...]) -> Table:
    rows = tuple(
        (str(rank), seconds_text(plan.step_s), _loss(best, plan), plan.plan.brief)
        for rank, plan in enumerate((best, *others), 1)
    )
    return Table("The fastest plans", ("rank", "step", "loses", "plan"), rows)


def _no_plan(outcome: Outcome) -> tuple[str, ...]:
    miss = outcome.near_miss
    if miss is None:
        undecided = "Undecided: no plan was found, and not all were looked at."
        return (undecided, *([outcome.left_open] if outcome.left_open else []))
    return (
        "No plan fits. The nearest miss",
        f"    {miss.description}",
        "breaks",
        *(f"    {rule}" for rule in miss.broken_rules),
        *_fullest_gpu(miss),
    )


def _fullest_gpu(miss: NearMiss) -> Iterator[str]:
    """Yield the memory of the nearest miss by part, if it breaks the memory rule."""
    if miss.memory is not None and any(r.rule == "memory" for r in miss.broken_rules):
        parts = [f"{k} {v:.2f}" for k, v in miss.memory.parts.items() if v > 0]
        yield f"Its fullest GPU holds {miss.memory.total_gib:.2f} GiB: " + ", ".join(
            parts
        )
