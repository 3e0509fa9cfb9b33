"""An explanation of serving as titled tables and lines: the answer first, then why."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.serving import CELLS, cells, serving_sections
from meshwright.report.tables import Lines, Section, Table
from meshwright.results.serving import PricedServing
from meshwright.results.serving_explanation import ServingExplanation


def explanation_sections(explanation: ServingExplanation) -> list[Section]:
    """Return an explanation: the verdict, the reason and the best repair first."""
    if explanation.fits:
        return _fitting(explanation)
    parts: list[Section] = [Lines(explanation.title, tuple(_refusal(explanation)))]
    broken = tuple(map(str, explanation.broken_rules))
    parts.append(Lines("Broken rules of the plan that comes closest", broken))
    if explanation.conflict and explanation.conflict.rules:
        rules = list(map(str, explanation.conflict.rules))
        title = "Smallest conflict: no plan keeps all of these, whatever else it does"
        parts.append(Lines(title, tuple(rules)))
    if explanation.repairs:
        rows = [(repair.edit, *cells(repair.best)) for repair in explanation.repairs]
        heading = ("edit", *CELLS)
        parts.append(Table("Repairs, each solved again", heading, tuple(rows)))
    return parts


def _fitting(explanation: ServingExplanation) -> list[Section]:
    priced = explanation.outcome.best
    assert priced is not None
    parts = serving_sections(explanation.outcome)
    best = explanation.best.best if explanation.best else None
    if best:
        loss = priced.objective_s / best.objective_s - 1
        told = f"{loss:.1%} more than the best plan, {best.plan}"
        verdict = f"It takes {told if loss > 1e-9 else 'as little as any plan'}."
        parts.insert(0, Lines("Does it fit?", ("Fits.", verdict)))
        parts.insert(2, _gap_table(explanation.gap, priced, best))
    rows = tuple(
        (worth.change, *_change(worth.best, priced))
        for worth in explanation.marginal_values
    )
    heading = ("change", "tokens/s", "request", "plan")
    worth = [Table("Worth of a little more", heading, rows)] if rows else []
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


def _change(new: PricedServing | None, old: PricedServing) -> tuple[str, ...]:
    if new is None:
        return "none fits", "-", "-"
    return (
        f"{new.tokens_per_s / old.tokens_per_s - 1:+.1%}",
        f"{new.request_s / old.request_s - 1:+.1%}",
        "the same" if new.plan == old.plan else str(new.plan),
    )


def _refusal(explanation: ServingExplanation) -> Iterator[str]:
    yield "No plan fits."
    rules = explanation.conflict.rules if explanation.conflict else ()
    names = " and ".join(rule.rule for rule in rules) or "the model and the GPUs alone"
    yield f"Because of {names}."
    first = explanation.repairs[0].edit if explanation.repairs else None
    yield f"Change {first}." if first else "No repair is known."
