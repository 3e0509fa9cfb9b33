"""In words: where the order of plans turns, and what decides between two of them."""

from __future__ import annotations

from meshwright.report.tables import Lines, seconds_text
from meshwright.results.comparison import Comparison, Range, Rule, Side

SHOWN = 0.02
"""Parts smaller than this share of the largest one are left out of sentences."""


def turn_section(own: Comparison, varied: Range) -> Lines:
    """Return where the order of plans turns."""
    today = f" ({varied.value:,.4g} in the spec)" if varied.value else ""
    title = f"Where the order turns with {own.vary}, {_span(varied)}{today}"
    turns = [
        f"at {flip.at:,.4g}: {_order(flip.before)} becomes {_order(flip.after)}"
        for flip in own.flips
    ]
    return Lines(title, tuple(turns or ["It does not turn."]))


def rule_section(own: Comparison, varied: Range) -> Lines:
    """Return which plan beats which, where, and the numbers that decide it."""
    lines = [line for rule in own.rules for line in _rule_lines(rule, varied)]
    return Lines("What decides", tuple(lines))


def _rule_lines(rule: Rule, varied: Range) -> list[str]:
    lines = [_sentence(rule, varied)]
    if rule.sides:
        sides = "; ".join(_side(own) for own in rule.sides)
        lines.append(f"  {_weighed(rule, varied)} {sides}.")
    return lines


def _sentence(rule: Rule, varied: Range) -> str:
    """Return who wins where, such as 'TP beats PP above 38 GB/s of pcie'."""
    last, names = rule.spans[-1], [span.winner for span in rule.spans]
    if len(names) == 1:
        return f"{last.winner} beats {rule.loser} from {_span(varied)}."
    if len(names) == 2 and all(names):
        where = f"above {_number(varied, last.low)}{_of(varied)}"
        return f"{last.winner} beats {rule.loser} {where}; below it loses."
    spans = [
        f"{span.winner or 'neither'} from {span.low:,.4g} to {span.high:,.4g}"
        for span in rule.spans
    ]
    return f"{rule.winner} or {rule.loser}: {', '.join(spans)}."


def _weighed(rule: Rule, varied: Range) -> str:
    winner, loser = rule.sides
    at = _number(varied, rule.at)
    if len(rule.spans) > 1:
        return f"At {at} both take {seconds_text(winner.step_s)}:"
    return f"At {at} by {seconds_text(loser.step_s - winner.step_s)} a step:"


def _side(own: Side) -> str:
    """Return what a plan sends, and what it pays that the other does not."""
    most = max(own.pays_s.values(), default=0.0)
    paid = [
        f"{part} ({seconds_text(seconds)})"
        for part, seconds in own.pays_s.items()
        if seconds > SHOWN * most
    ]
    more = f", and spends more on {', '.join(paid)}" if paid else ""
    return f"{own.name} sends {own.sent_gb:,.3g} GB a step over a link{more}"


def _span(varied: Range) -> str:
    return f"{varied.low:,.4g} to {_number(varied, varied.high)}{_of(varied)}"


def _number(varied: Range, value: float) -> str:
    return f"{value:,.4g} {varied.unit}".rstrip()


def _of(varied: Range) -> str:
    return f" of {varied.about}" if varied.about else ""


def _order(names: tuple[str, ...]) -> str:
    return " before ".join(names) or "none fits"
