"""An outcome of serving as titled tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.alternatives import TITLE, degree_table, loss_text
from meshwright.report.solve import alike, conflict_lines, fit_text, size_lines, spans
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.claims import NONE_FITS
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    PricedServing,
    ServingExplanation,
    ServingOutcome,
    ServingPlan,
)
from meshwright.spec.units import counted, few_digits


def serving_sections(outcome: ServingOutcome, is_short: bool = False) -> list[Section]:
    """Return an outcome of serving as sections, the most important first.

    In short, plans are their degrees.
    """
    best = outcome.best
    if best is None:
        return [Lines(outcome.title, _no_plan(outcome))]
    answer = [*size_lines(outcome.model), *_answer(outcome, best)]
    safety = fit_text(best.fit_probability)
    claim = [*_certificate(outcome, best)][:1]
    first = [*answer, safety, *claim] if is_short else answer
    parts: list[Section] = [
        Lines(outcome.title, tuple(first)),
        _time_table(best),
        _memory_table(best),
    ]
    if not is_short:
        parts.append(Lines("How safe", (safety,)))
    if outcome.by_kind:
        parts.append(_kind_table(outcome, best, is_short))
    if outcome.degrees:
        parts.append(_degree_table(outcome, best))
    for title, crossovers in (
        ("Which kind is best as the batch grows", outcome.flips),
        ("Tensors against stages, as the batch grows", outcome.tp_against_pp),
    ):
        if len(crossovers) > 1:
            parts.append(Lines(title, tuple(_crossover_lines(crossovers))))
    if outcome.certificate and not is_short:
        parts.append(Lines("Certificate", tuple(_certificate(outcome, best))))
    return parts


def _answer(outcome: ServingOutcome, best: PricedServing) -> Iterator[str]:
    plan = best.plan
    attends = f"attention dp {plan.attention_dp} · " if plan.attention_dp > 1 else ""
    yield (
        f"tp {plan.tp} · {attends}pp {plan.pp} · "
        f"{counted(plan.dp_replicate, 'replica')} · "
        f"{counted(plan.microbatches, 'group')} of requests"
    )
    if attends:
        yield from (f"{name}: {told}" for name, told in plan.launch_options.items())
    if plan.pp > 1:
        layers = ", ".join(map(str, plan.layers))
        yield f"layers {layers} · bubble {best.bubble:.1%}"
    yield (
        f"first token {seconds_text(best.ttft_s)} · "
        f"{seconds_text(best.tpot_s)} a token · request {seconds_text(best.request_s)}"
    )
    yield (
        f"{best.tokens_per_s:,.0f} tokens/s · {few_digits(best.requests_per_s)} "
        f"requests/s, including prefills{_busy(best)}"
    )
    yield from outcome.remarks
    if outcome.largest:
        most = outcome.largest
        yield (
            f"room for batch {most.batch:,} ({most.tokens_per_s:,.0f} tokens/s), or "
            f"for context {most.context:,} at the batch asked for"
        )


MUCH_LONGER = 1.02
"""Factor by which prefills of others lengthen a request before a line says it."""


def _busy(best: PricedServing) -> str:
    """Return how long a request takes while others are prefilled, if that is longer."""
    took_s = best.busy_request_s or 0.0
    if took_s < MUCH_LONGER * best.request_s:
        return ""
    return f", among which a request takes {seconds_text(took_s)}"


def _time_table(best: PricedServing) -> Table:
    names = dict.fromkeys([*best.ttft_parts, *best.tpot_parts])
    rows = [
        (
            name,
            *_share(best.ttft_parts.get(name, 0.0), best.ttft_s),
            *_share(best.tpot_parts.get(name, 0.0), best.tpot_s),
        )
        for name in names
        if best.ttft_parts.get(name, 0.0) + best.tpot_parts.get(name, 0.0) > 1e-9
    ]
    whole = *_share(best.ttft_s, best.ttft_s), *_share(best.tpot_s, best.tpot_s)
    rows.append(("total", *whole))
    heading = ("part", "first token, ms", "share", "a token, ms", "share")
    return Table("Time by part", heading, tuple(rows))


def _share(part_s: float, whole_s: float) -> tuple[str, str]:
    return f"{part_s * 1e3:,.3f}", f"{part_s / whole_s:.1%}" if whole_s else "-"


def _memory_table(best: PricedServing) -> Table:
    names = list(best.stages[0].parts)
    cells = [
        (
            str(best.plan.layers[e]),
            *(f"{stage.parts[name]:.2f}" for name in names),
            f"{stage.total_gib:.2f}",
            f"{stage.usable_gib - stage.total_gib:.2f}",
        )
        for e, stage in enumerate(best.stages)
    ]
    rows = tuple((spans(stages), *same) for same, stages in alike(cells).items())
    usable = best.stages[0].usable_gib
    title = f"Memory of a GPU by stage, GiB of {usable:.2f} usable"
    return Table(title, ("stage", "layers", *names, "total", "free"), rows)


CELLS = ("first token", "a token", "tokens/s", "plan")


def cells(priced: PricedServing, is_short: bool = False) -> tuple[str, ...]:
    """Return the cells of a plan in a table, under the headings `CELLS`."""
    return (
        seconds_text(priced.ttft_s),
        seconds_text(priced.tpot_s),
        f"{priced.tokens_per_s:,.0f}",
        _degrees(priced.plan) if is_short else str(priced.plan),
    )


def _degrees(plan: ServingPlan) -> str:
    attends = f" dpa{plan.attention_dp}" if plan.attention_dp > 1 else ""
    return f"tp{plan.tp}{attends} pp{plan.pp} x {plan.dp_replicate}"


def _kind_table(outcome: ServingOutcome, best: PricedServing, is_short: bool) -> Table:
    known = [(kind.kind, kind.best) for kind in outcome.by_kind if kind.best]
    rows = []
    for name, priced in sorted(known, key=lambda pair: pair[1].objective_s):
        loss = priced.objective_s / best.objective_s - 1
        told = "wins" if abs(loss) < 1e-9 else f"+{loss:.1%}"
        rows.append((name, told, f"{priced.bubble:.1%}", *cells(priced, is_short)))
    for kind in outcome.by_kind:
        if kind.near_miss and not is_short:
            rules = kind.near_miss.broken_rules
            why = str(rules[0]) if rules else "memory"
            rows.append((kind.kind, "-", "-", "-", "-", "-", f"none fits: {why}"))
    heading = ("kind", "loses", "bubble", *CELLS)
    return Table("What wins, and by how much", heading, tuple(rows))


def _degree_table(outcome: ServingOutcome, best: PricedServing) -> Table:
    def loss(choice: DegreeChoice) -> float | None:
        took_s = choice.objective_s
        return None if took_s is None else took_s / best.objective_s - 1

    rows = (
        (f"{choice.axis} {choice.degree}", loss_text(loss(choice)), choice.because)
        for choice in outcome.degrees
    )
    return degree_table(TITLE.format("fastest"), rows)


def _crossover_lines(crossovers: tuple[KindCrossover, ...]) -> Iterator[str]:
    for one in crossovers:
        yield f"from batch {one.batch:,} on: {one.kind} ({_degrees(one.plan)})"


def _certificate(outcome: ServingOutcome, best: PricedServing) -> Iterator[str]:
    certificate = outcome.certificate
    if certificate is None:
        return
    least = f"no plan takes less than {certificate.bound_s:.6f} s"
    if outcome.status == "optimal":
        claim = f"{least} (gap 0) for {certificate.objective}"
        yield f"Proven optimal in the model: {claim}."
    else:
        yield (
            f"Not proven: {least}, this one {best.objective_s:.6f} s (gap "
            f"{certificate.gap:.2%}) for {certificate.objective}."
        )
    counts = certificate.counts
    yield (
        f"{counts.skeletons:,} legal deployments: {counts.no_memory:,} have no room or "
        f"are too slow, {counts.bounded:,} are bounded out, {counts.survivors:,} left "
        "to CP-SAT."
    )


def _no_plan(outcome: ServingOutcome) -> tuple[str, ...]:
    miss = outcome.near_miss
    if miss is None:
        return ("Undecided: time ran out before any plan was found.",)
    broken = (f"    {rule}" for rule in miss.broken_rules)
    nearest = f"    {miss.description}"
    return (f"{NONE_FITS} The nearest miss", nearest, "breaks", *broken)


def explanation_sections(
    explanation: ServingExplanation, is_short: bool = False
) -> list[Section]:
    """Return an explanation: the verdict, the reason and the best repair first."""
    if explanation.fits:
        return _fitting(explanation, is_short)
    parts: list[Section] = [Lines(explanation.title, tuple(_refusal(explanation)))]
    broken = tuple(_nearest(explanation))
    parts.append(Lines("Broken rules of the plan that comes closest", broken))
    if explanation.conflict and explanation.conflict.rules:
        parts.append(conflict_lines(explanation.conflict))
    if explanation.repairs:
        rows = [
            (repair.edit, *cells(repair.best, is_short))
            for repair in explanation.repairs
        ]
        heading = ("edit", *CELLS)
        parts.append(Table("Repairs, each solved again", heading, tuple(rows)))
    return parts


def _nearest(explanation: ServingExplanation) -> Iterator[str]:
    """Yield the rules that the plan that comes closest breaks, and what it holds."""
    miss, memory = explanation.outcome.near_miss, explanation.memory
    if miss is not None:
        yield f"It is {miss.description}."
    yield from map(str, explanation.broken_rules)
    if memory is not None:
        held = (f"{name} {gib:.2f}" for name, gib in memory.parts.items() if gib)
        yield f"Its fullest GPU, GiB: {', '.join(held)}"


def _fitting(explanation: ServingExplanation, is_short: bool) -> list[Section]:
    priced = explanation.outcome.best
    assert priced is not None
    parts = serving_sections(explanation.outcome, is_short)
    best = explanation.best.best if explanation.best else None
    if best:
        loss = priced.objective_s / best.objective_s - 1
        told = f"{loss:.1%} more than the best plan, {best.plan}"
        verdict = f"It takes {told if loss > 1e-9 else 'as little as any plan'}."
        parts.insert(0, Lines("Does it fit?", ("Fits.", verdict)))
        parts.insert(2, _gap_table(explanation.gap, priced, best))
    rows = tuple(
        (worth.change, *_change(worth.best, priced, is_short))
        for worth in explanation.marginal_values
    )
    heading = ("change", "tokens/s", "request", "plan")
    worth = [Table("What a little more would gain", heading, rows)] if rows else []
    return [*parts, *worth]


def _gap_table(
    gap: dict[str, float], priced: PricedServing, best: PricedServing
) -> Table:
    rows = [
        (name, f"{more:+.4f}", f"{more / best.objective_s:+.1%}")
        for name, more in gap.items()
        if abs(more) > 1e-9
    ]
    whole = priced.objective_s - best.objective_s
    rows.append(("total", f"{whole:+.4f}", f"{whole / best.objective_s:+.1%}"))
    heading = ("part", "s", "of the best")
    return Table("Distance to the best plan, part by part", heading, tuple(rows))


def _change(
    new: PricedServing | None, old: PricedServing, is_short: bool
) -> tuple[str, ...]:
    if new is None:
        return "none fits", "-", "-"
    return (
        f"{new.tokens_per_s / old.tokens_per_s - 1:+.1%}",
        f"{new.request_s / old.request_s - 1:+.1%}",
        "the same" if new.plan == old.plan else cells(new, is_short)[-1],
    )


def _refusal(explanation: ServingExplanation) -> Iterator[str]:
    yield NONE_FITS
    rules = explanation.conflict.rules if explanation.conflict else ()
    names = " and ".join(rule.rule for rule in rules) or "the model and the GPUs alone"
    yield f"Because of {names}."
    first = explanation.repairs[0].edit if explanation.repairs else None
    yield f"Change {first}." if first else "No repair is known."
