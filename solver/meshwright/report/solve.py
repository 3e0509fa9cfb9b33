"""The outcome of a solve as titled tables and lines, the most important first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from meshwright.report.near_plans import near_sections
from meshwright.report.plan_text import plan_lines
from meshwright.report.safety import safety_lines
from meshwright.report.simplicity import simplest_lines, simplicity_sections
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    seconds_text,
    short_rule_text,
)
from meshwright.results.model_size import ModelSize
from meshwright.results.outcome import Band, Certificate, KindResult, NearMiss, Outcome
from meshwright.results.priced_plan import PricedPlan


def solve_sections(outcome: Outcome) -> list[Section]:
    """Return an outcome as sections: plan, time, memory, links, rivals, certificate."""
    best = outcome.best
    if best is None:
        return [answer_lines(outcome)]
    return [
        answer_lines(outcome),
        *simplicity_sections(outcome),
        _time_table(best),
        _memory_table(best),
        safety_lines(best, outcome.safety, outcome.fastest),
        *([_link_table(best)] if best.links else []),
        *choice_sections(outcome),
        *proof_sections(outcome),
    ]


def answer_lines(outcome: Outcome) -> Lines:
    """Return the best plan and its speed, or why there is none."""
    best = outcome.best
    if best is None:
        return Lines(outcome.title, _no_plan(outcome))
    lines = (*size_lines(outcome.model), *plan_lines(best.plan), _speed(best))
    return Lines(outcome.title, lines)


def choice_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield the plans that were found beside the best one."""
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


def proof_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield how far the answer may be off, and its certificate."""
    best, fastest = outcome.best, outcome.optimum
    if best is None or fastest is None:
        return
    if outcome.band:
        yield Lines("How sure", tuple(_band_lines(outcome, best, outcome.band)))
    if outcome.certificate:
        yield Lines("Certificate", tuple(_certificate(outcome, best, fastest)))


def size_lines(model: ModelSize | None) -> tuple[str, ...]:
    """Return the size of the model in a line, where it is known."""
    return () if model is None else (model.text,)


def _speed(best: PricedPlan) -> str:
    return (
        f"step {seconds_text(best.step_s)} · MFU {best.mfu:.1%} · "
        f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    )


def _band_lines(outcome: Outcome, best: PricedPlan, band: Band) -> Iterator[str]:
    low, high = best.step_s * math.exp(-band.p90), best.step_s * math.exp(band.p90)
    told = "of {} runs of {} that were measured, nine in ten lay within {:.0%}"
    if not band.is_measured:
        told = "calibrated on {} runs of {}, nine in ten are expected within {:.0%}"
    yield (
        f"Between {seconds_text(low)} and {seconds_text(high)}: "
        f"{told.format(band.runs, band.runs_of, math.expm1(band.p90))}."
    )
    next_best = outcome.runner_up
    if outcome.fastest:
        # The plan is compared with the fastest one already.
        return
    if next_best and next_best.step_s <= best.step_s * math.exp(band.median):
        loss = next_best.step_s / best.step_s - 1
        simpler = "simpler, " if next_best.is_simpler else ""
        yield f"Within that error ({simpler}{loss:+.1%}): {next_best.plan.brief}"


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


def kind_table(best: PricedPlan, kinds: tuple[KindResult, ...]) -> Table:
    """Return a table of the best plan of every kind, with its loss."""
    known = sorted(
        (kind for kind in kinds if kind.best), key=lambda kind: _step_s(kind.best)
    )
    rows = [
        (
            kind.kind,
            seconds_text(_step_s(kind.best)),
            _kind_loss(best, kind),
            _plan_of(kind),
        )
        for kind in known
    ]
    for kind in kinds:
        if kind.near_miss:
            why = short_rule_text(kind.near_miss.broken_rules[0])
            rows.append((kind.kind, "-", "-", f"none fits: {why}"))
    heading = ("kind", "step", "loses", "best plan of the kind")
    return Table("What wins, and by how much", heading, tuple(rows))


def _kind_loss(best: PricedPlan, kind: KindResult) -> str:
    """Return the loss of a kind's best plan, as an upper bound if it is not proven."""
    loss = _loss(best, kind.best)
    return loss if kind.is_proven else f"<= {loss}"


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
    return Table("Best plans", ("rank", "step", "loses", "plan"), rows)


def _certificate(
    outcome: Outcome, best: PricedPlan, fastest: PricedPlan
) -> Iterator[str]:
    certificate = outcome.certificate
    if certificate is None:
        return
    if certificate.levels:
        yield f"Best by {', then '.join(certificate.levels)} of all uses of the parts."
    yield from claim_lines(outcome.status, certificate, fastest.step_s)
    yield from simplest_lines(outcome)
    if best.plan.pp > 1:
        gap = best.schedule_s / best.step_s - 1
        difference = f"{abs(gap):.2%} {'more' if gap > 0 else 'less'}"
        yield (
            f"What was minimised: {certificate.objective}. The schedule's task graph "
            f"takes {seconds_text(best.schedule_s)}, "
            f"{difference if abs(gap) > 5e-5 else 'the same'}."
        )
    if outcome.rival:
        yield (
            f"By the task graph {outcome.rival.plan} is faster: "
            f"{seconds_text(outcome.rival.schedule_s)}."
        )


def claim_lines(status: str, certificate: Certificate, step_s: float) -> Iterator[str]:
    """Yield what was proven of a plan, and how all other skeletons were ruled out."""
    least = f"no plan takes less than {certificate.bound_s:.6f} s"
    if status == "optimal":
        yield f"Proven optimal in the model: {least} (gap 0)."
    else:
        gap = f"(gap {certificate.gap:.2%})"
        yield f"Not proven: {least}, this one {step_s:.6f} s {gap}."
        yield certificate.left_open
    counts = certificate.counts
    yield (
        f"{counts.skeletons:,} legal skeletons: {counts.bounded:,} are bounded out, "
        f"{counts.no_memory:,} others cannot fit, {counts.survivors:,} left to CP-SAT."
    )


def _no_plan(outcome: Outcome) -> tuple[str, ...]:
    miss = outcome.near_miss
    if miss is None:
        return ("Undecided: no plan was found, and not all were looked at.",)
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
