"""What sets the degrees: a sentence for each axis, and a table of other degrees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from meshwright.report.tables import Lines, Section, Table
from meshwright.results.explanation import (
    AxisDegrees,
    DegreeReasons,
    OtherDegree,
    Shares,
)
from meshwright.results.priced_plan import PricedPlan

TITLE = "What sets the degrees of the fastest plan"

NOTHING = "no part by much"

LEAST_SHARE = 0.0005
"""Parts that change by less than this share of the step are not shown."""

LEAST_OF_LARGEST = 0.1
"""Parts that change by less than this share of the largest change are not shown."""

MOST_NAMED = 2
"""Most parts that a sentence names."""


def degree_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return a table of degrees, their loss as a share of the fastest step, and why."""
    return Table(title, ("degree", "costs", "because of"), tuple(rows))


def loss_text(loss: float | None) -> str:
    """Return a loss as a share, signed; a dash where no plan fits."""
    return "-" if loss is None else f"{loss:+.1%}"


def least_loss_text(loss: float) -> str:
    """Return a loss that is a lower bound, rounded down."""
    return f"at least {math.floor(loss * 1000) / 1000:+.1%}"


def degree_sections(degrees: DegreeReasons, fastest: PricedPlan) -> list[Section]:
    """Return why the fastest plan has its degrees and no others."""
    axes = [axis for axis in degrees.axes if axis.others]
    if not axes:
        return []
    writer = _DegreeWriter(degrees.shares, fastest)
    sentences = (writer.sentence(axis) for axis in axes)
    rows = [row for axis in axes for row in writer.rows(axis)]
    table = degree_table("Other degrees, each with all else chosen anew", rows)
    return [Lines(TITLE, (_shares_text(degrees.shares), *sentences)), table]


@dataclass(frozen=True)
class _DegreeWriter:
    """Writes about other degrees, compared with the fastest plan."""

    shares: Shares
    fastest: PricedPlan

    def sentence(self, axis: AxisDegrees) -> str:
        """Return why an axis has neither the next higher nor the next lower degree."""
        above = [other for other in axis.others if other.degree > axis.degree][:1]
        below = [other for other in axis.others if other.degree < axis.degree][-1:]
        clauses = "; ".join(self._clause(other) for other in (*above, *below))
        link = f" (over {axis.link})" if axis.link else ""
        verb = "is pinned to" if axis.is_pinned else "is"
        return f"{axis.axis} {verb} {axis.degree:,}{link}: {clauses}."

    def _clause(self, other: OtherDegree) -> str:
        loss = self._loss(other)
        if loss is None:
            return f"{other.degree:,} does not fit, by {_rules(other)}"
        if other.bound_s is not None:
            return f"{other.degree:,} loses {least_loss_text(self._least(other))}"
        verb = "gains" if loss < 0 else "loses"
        return f"{other.degree:,} {verb} {abs(loss):.1%}: {self._balance(other, loss)}"

    def _balance(self, other: OtherDegree, loss: float) -> str:
        """Return the parts that make a gain or loss, and the largest against it."""
        changes = self._parts(other)
        grown = [text for text, share in changes if share > 0]
        shrunk = [text for text, share in reversed(changes) if share < 0]
        made, against = (shrunk, grown) if loss < 0 else (grown, shrunk)
        parts_for = ", ".join(made[:MOST_NAMED]) or NOTHING
        return " against ".join([parts_for, *against[:1]])

    def rows(self, axis: AxisDegrees) -> Iterator[tuple[str, str, str]]:
        """Yield a row for each degree; degrees that the same rules bar share a row."""
        for _, group in groupby(axis.others, key=_reason):
            first, *rest = group
            name = f"{axis.axis} {first.degree:,}"
            name += f" to {rest[-1].degree:,}" if rest else ""
            parts = ", ".join(text for text, _ in self._parts(first)) or NOTHING
            cost = loss_text(self._loss(first))
            if first.bound_s is not None:
                parts = f"{cost} of a plan that was constructed: {parts}"
                cost = least_loss_text(self._least(first))
            yield name, cost, parts if first.gap else _rules(first)

    def _loss(self, other: OtherDegree) -> float | None:
        return None if other.step_s is None else other.step_s / self.fastest.step_s - 1

    def _least(self, other: OtherDegree) -> float:
        """Return the least that a degree loses, as far as is proven."""
        return (other.bound_s or 0.0) / self.fastest.step_s - 1

    def _parts(self, other: OtherDegree) -> list[tuple[str, float]]:
        """Return the parts that change most, as words and share, the losses first."""
        terms = other.gap.terms if other.gap else {}
        shares = {name: more / self.fastest.step_s for name, more in terms.items()}
        least = max(
            LEAST_SHARE, LEAST_OF_LARGEST * max(map(abs, shares.values()), default=0.0)
        )
        shown = [name for name, share in shares.items() if abs(share) >= least]
        return [
            (f"{name} {shares[name]:+.1%}{self._cause(name, other)}", shares[name])
            for name in sorted(shown, key=lambda name: -shares[name])
        ]

    def _cause(self, part: str, other: OtherDegree) -> str:
        """Return why a part grows: its link, or the new sizes of matmuls."""
        if other.gap is None or other.gap.terms[part] <= 0:
            return ""
        causes = [other.links[part]] if part in other.links else []
        if part == "compute":
            causes = list(self._resized(other))
        return f" ({', '.join(causes)})" if causes else ""

    def _resized(self, other: OtherDegree) -> Iterator[str]:
        """Yield the sizes of matmuls that differ from those of the fastest plan."""
        assert other.shares is not None
        assert other.plan is not None
        if other.shares.d_ff != self.shares.d_ff:
            yield f"d_ff {other.shares.d_ff:,g}"
        if other.shares.layers[0] != other.shares.layers[1]:
            yield f"{_layers(other.shares)} layers a stage"
        if other.plan.micro_batch != self.fastest.plan.micro_batch:
            yield f"micro-batch {other.plan.micro_batch}"


def _reason(other: OtherDegree) -> tuple[object, ...]:
    """Return the key by which degrees that do not fit share a row."""
    if other.plan:
        return (other.degree,)
    return tuple((rule.rule, rule.sentence) for rule in other.rules)


def _rules(other: OtherDegree) -> str:
    named = (f"{rule.rule} ({rule.sentence})" for rule in other.rules)
    return " and ".join(named) or "no rule alone"


def _shares_text(shares: Shares) -> str:
    experts = f"experts {shares.experts:g}, " if shares.experts else ""
    return (
        f"heads {shares.heads:g}, KV heads {shares.kv_heads:g}, {experts}"
        f"d_ff {shares.d_ff:,g} a GPU · layers {_layers(shares)} a stage · "
        f"bubble {shares.bubble:.1%} of the step"
    )


def _layers(shares: Shares) -> str:
    least, most = shares.layers
    return f"{least}" if least == most else f"{least} to {most}"
