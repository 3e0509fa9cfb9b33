"""Crossovers in words: where the order of plans changes, and what decides it."""

from __future__ import annotations

from meshwright.report.tables import Lines, seconds_text
from meshwright.results.comparison import Comparison, HeadToHead, Side, VariedRange

SHOWN = 0.02
"""Parts smaller than this share of the largest part are left out of sentences."""


def crossover_section(comparison: Comparison, varied: VariedRange) -> Lines:
    """Return the values at which the order of the plans changes."""
    in_spec = f" ({varied.value:,.4g} in the spec)" if varied.value else ""
    title = f"Where the order turns with {comparison.vary}, {_span(varied)}{in_spec}"
    lines = [
        f"at {one.at:,.4g}: {_order(one.before)} becomes {_order(one.after)}"
        for one in comparison.flips
    ]
    return Lines(title, tuple(lines or ["It does not turn."]))


def head_to_head_section(comparison: Comparison, varied: VariedRange) -> Lines:
    """Return, for pairs of plans, which is faster where, and the numbers behind it."""
    lines = [line for pair in comparison.rules for line in _pair_lines(pair, varied)]
    return Lines("What decides", tuple(lines))


def _pair_lines(pair: HeadToHead, varied: VariedRange) -> list[str]:
    lines = [_sentence(pair, varied)]
    if pair.sides:
        sides = "; ".join(_side(side) for side in pair.sides)
        lines.append(f"  {_margin(pair, varied)} {sides}.")
    return lines


def _sentence(pair: HeadToHead, varied: VariedRange) -> str:
    """Return which plan wins where, such as 'TP beats PP above 38 GB/s of pcie'."""
    last, winners = pair.spans[-1], [span.winner for span in pair.spans]
    if len(winners) == 1:
        return f"{last.winner} beats {pair.loser} from {_span(varied)}."
    if len(winners) == 2 and all(winners):
        where = f"above {_number(varied, last.low)}{_of(varied)}"
        return f"{last.winner} beats {pair.loser} {where}; below it loses."
    spans = [
        f"{span.winner or 'neither'} from {span.low:,.4g} to {span.high:,.4g}"
        for span in pair.spans
    ]
    return f"{pair.winner} or {pair.loser}: {', '.join(spans)}."


def _margin(pair: HeadToHead, varied: VariedRange) -> str:
    winner, loser = pair.sides
    at = _number(varied, pair.at)
    if len(pair.spans) > 1:
        return f"At {at} both take {seconds_text(winner.step_s)}:"
    return f"At {at} by {seconds_text(loser.step_s - winner.step_s)} a step:"


def _side(side: Side) -> str:
    """Return what a plan sends, and the parts on which it spends more."""
    most = max(side.pays_s.values(), default=0.0)
    paid = [
        f"{part} ({seconds_text(seconds)})"
        for part, seconds in side.pays_s.items()
        if seconds > SHOWN * most
    ]
    more = f", and spends more on {', '.join(paid)}" if paid else ""
    return f"{side.name} sends {side.sent_gb:,.3g} GB a step over a link{more}"


def _span(varied: VariedRange) -> str:
    return f"{varied.low:,.4g} to {_number(varied, varied.high)}{_of(varied)}"


def _number(varied: VariedRange, value: float) -> str:
    return f"{value:,.4g} {varied.unit}".rstrip()


def _of(varied: VariedRange) -> str:
    return f" of {varied.about}" if varied.about else ""


def _order(names: tuple[str, ...]) -> str:
    return " before ".join(names) or "none fits"
