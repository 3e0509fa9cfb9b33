"""Plans side by side."""

from __future__ import annotations

from meshwright.explain.compare import Comparison
from meshwright.plan import PricedPlan
from meshwright.report.tables import Lines, Section, Table, seconds_text


def compare_sections(own: Comparison) -> list[Section]:
    """Return plans term by term, and where their order turns."""
    fitting = [(one.name, one.plan) for one in own.plans if one.plan is not None]
    missing = [one.name for one in own.plans if one.plan is None]
    lines = [f"{name}: {plan.plan}" for name, plan in fitting]
    lines += [f"{name}: does not fit" for name in missing]
    parts: list[Section] = [Lines(own.title, tuple(lines))]
    if fitting:
        parts.append(_table(fitting))
    if own.vary:
        parts.append(
            Lines(f"Where the order turns with {own.vary}", tuple(_turns(own)))
        )
    return parts


def _table(fitting: list[tuple[str, PricedPlan]]) -> Table:
    plans = [plan for _, plan in fitting]
    names = dict.fromkeys(name for plan in plans for name in plan.time_parts)
    rows = [
        (name, *(seconds_text(plan.time_parts.get(name, 0.0)) for plan in plans))
        for name in names
        if any(plan.time_parts.get(name, 0.0) > 0 for plan in plans)
    ]
    rows.append(("step", *(seconds_text(plan.step_s) for plan in plans)))
    best = plans[0].step_s
    losses = [plan.step_s / best - 1 for plan in plans]
    rows.append(("loses", *(f"{own:+.1%}" if own else "wins" for own in losses)))
    rows.append(("fullest GPU, GiB", *(f"{plan.peak_gib:.2f}" for plan in plans)))
    rows.append(("MFU", *(f"{plan.mfu:.1%}" for plan in plans)))
    heading = ("part", *(name for name, _ in fitting))
    return Table("Side by side, the fastest first", heading, tuple(rows))


def _turns(own: Comparison) -> list[str]:
    if not own.flips:
        return ["It does not turn."]
    return [
        f"at {flip.at:,.4g}: {_order(flip.before)} becomes {_order(flip.after)}"
        for flip in own.flips
    ]


def _order(names: tuple[str, ...]) -> str:
    return " before ".join(names) or "none fits"
