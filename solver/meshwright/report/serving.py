"""An outcome of serving as titled tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.degrees import TITLE, degree_table, loss_text
from meshwright.report.safety import fit_text
from meshwright.report.solve import size_lines
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.serving import (
    DegreeChoice,
    KindCrossover,
    PricedServing,
    ServingOutcome,
)


def serving_sections(outcome: ServingOutcome) -> list[Section]:
    """Return an outcome of serving as sections, the most important first."""
    best = outcome.best
    if best is None:
        return [Lines(outcome.title, _no_plan(outcome))]
    parts: list[Section] = [
        Lines(outcome.title, (*size_lines(outcome.model), *_answer(outcome, best))),
        _time_table(best),
        _memory_table(best),
        Lines("How safe", (fit_text(best.fit_probability),)),
    ]
    if outcome.by_kind:
        parts.append(_kind_table(outcome, best))
    if outcome.degrees:
        parts.append(_degree_table(outcome, best))
    for title, crossovers in (
        ("Which kind is best as the batch grows", outcome.flips),
        ("Tensors against stages, as the batch grows", outcome.tp_against_pp),
    ):
        if len(crossovers) > 1:
            parts.append(Lines(title, tuple(_crossover_lines(crossovers))))
    if outcome.certificate:
        parts.append(Lines("Certificate", tuple(_certificate(outcome, best))))
    return parts


def _answer(outcome: ServingOutcome, best: PricedServing) -> Iterator[str]:
    plan = best.plan
    yield (
        f"tp {plan.tp} · pp {plan.pp} · {_counted(plan.dp_replicate, 'replica')} · "
        f"{_counted(plan.microbatches, 'group')} of requests"
    )
    if plan.pp > 1:
        layers = ", ".join(map(str, plan.layers))
        yield f"layers {layers} · bubble {best.bubble:.1%}"
    yield (
        f"first token {seconds_text(best.ttft_s)} · "
        f"{seconds_text(best.tpot_s)} a token · request {seconds_text(best.request_s)}"
    )
    yield (
        f"{best.tokens_per_s:,.0f} tokens/s · {best.requests_per_s:,.3g} requests/s, "
        "prefills counted in"
    )
    if outcome.largest:
        most = outcome.largest
        yield (
            f"room for batch {most.batch:,} ({most.tokens_per_s:,.0f} tokens/s), or "
            f"for context {most.context:,} at the batch asked for"
        )


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" + ("s" if count != 1 else "")


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
    rows.append(("total", *_share(best.ttft_s, best.ttft_s), *_share(1, 1)))
    rows[-1] = ("total", *rows[-1][1:3], *_share(best.tpot_s, best.tpot_s))
    heading = ("part", "first token, ms", "share", "a token, ms", "share")
    return Table("Time by part", heading, tuple(rows))


def _share(part_s: float, whole_s: float) -> tuple[str, str]:
    return f"{part_s * 1e3:,.3f}", f"{part_s / whole_s:.1%}" if whole_s else "-"


def _memory_table(best: PricedServing) -> Table:
    names = list(best.stages[0].parts)
    rows = tuple(
        (
            str(e),
            str(best.plan.layers[e]),
            *(f"{stage.parts[name]:.2f}" for name in names),
            f"{stage.total_gib:.2f}",
            f"{stage.usable_gib - stage.total_gib:.2f}",
        )
        for e, stage in enumerate(best.stages)
    )
    usable = best.stages[0].usable_gib
    title = f"Memory of a GPU by stage, GiB of {usable:.2f} usable"
    return Table(title, ("stage", "layers", *names, "total", "free"), rows)


CELLS = ("first token", "a token", "tokens/s", "plan")


def cells(priced: PricedServing) -> tuple[str, ...]:
    """Return the cells of a plan in a table, under the headings `CELLS`."""
    return (
        seconds_text(priced.ttft_s),
        seconds_text(priced.tpot_s),
        f"{priced.tokens_per_s:,.0f}",
        str(priced.plan),
    )


def _kind_table(outcome: ServingOutcome, best: PricedServing) -> Table:
    rows = []
    known = [kind for kind in outcome.by_kind if kind.best]
    for kind in sorted(known, key=lambda kind: _objective_s(kind.best)):
        assert kind.best is not None
        loss = kind.best.objective_s / best.objective_s - 1
        told = "wins" if abs(loss) < 1e-9 else f"+{loss:.1%}"
        bubble = f"{kind.best.bubble:.1%}"
        rows.append((kind.kind, told, bubble, *cells(kind.best)))
    for kind in outcome.by_kind:
        if kind.near_miss:
            rules = kind.near_miss.broken_rules
            why = str(rules[0]) if rules else "memory"
            rows.append((kind.kind, "-", "-", "-", "-", "-", f"none fits: {why}"))
    heading = ("kind", "loses", "bubble", *CELLS)
    return Table("What wins, and by how much", heading, tuple(rows))


def _objective_s(priced: PricedServing | None) -> float:
    return priced.objective_s if priced else float("inf")


def _degree_table(outcome: ServingOutcome, best: PricedServing) -> Table:
    def loss(choice: DegreeChoice) -> float | None:
        took_s = choice.objective_s
        return None if took_s is None else took_s / best.objective_s - 1

    rows = (
        (f"{choice.axis} {choice.degree}", loss_text(loss(choice)), choice.because)
        for choice in outcome.degrees
    )
    return degree_table(TITLE, rows)


def _crossover_lines(crossovers: tuple[KindCrossover, ...]) -> Iterator[str]:
    for one in crossovers:
        yield f"from batch {one.batch:,} on: {one.kind} ({one.plan})"


def _certificate(outcome: ServingOutcome, best: PricedServing) -> Iterator[str]:
    certificate = outcome.certificate
    if certificate is None:
        return
    if outcome.status == "optimal":
        claim = f"no plan takes less than {certificate.bound_s:.6f} s (gap 0)"
        yield f"Proven optimal in the model: {claim}."
    else:
        yield (
            f"Not proven: no plan takes less than {certificate.bound_s:.6f} s, this "
            f"one {best.objective_s:.6f} s (gap {certificate.gap:.2%})."
        )
    counts = certificate.counts
    yield (
        f"{counts.skeletons:,} legal deployments: {counts.no_memory:,} have no room or "
        f"are too slow, {counts.bounded:,} are bounded out, {counts.survivors:,} left "
        "to CP-SAT."
    )
    yield f"What was minimised: {certificate.objective}."


def _no_plan(outcome: ServingOutcome) -> tuple[str, ...]:
    miss = outcome.near_miss
    if miss is None:
        return ("Undecided: time ran out before any plan was found.",)
    broken = (f"    {rule}" for rule in miss.broken_rules)
    nearest = f"    {miss.description}"
    return ("No plan fits. The nearest miss", nearest, "breaks", *broken)
