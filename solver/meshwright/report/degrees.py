"""What sets the degrees, as a sentence for each axis and a table of all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from meshwright.report.tables import Lines, Section, Table
from meshwright.results.explanation import AxisDegrees, Degrees, OtherDegree, Shares
from meshwright.results.priced_plan import PricedPlan

TITLE = "What sets the degrees"

NOTHING = "no part by much"

LEAST = 0.0005
"""Share of the step below which a part is not told."""

SMALL = 0.1
"""Share of the largest difference below which a part is not told."""

MOST = 2
"""Parts that a sentence names."""


def degree_table(title: str, rows: Iterable[tuple[str, float | None, str]]) -> Table:
    """Return degrees with what each costs, a share of the best, and why."""
    cells = tuple(
        (name, "-" if loss is None else f"{loss:+.1%}", why) for name, loss, why in rows
    )
    return Table(title, ("degree", "costs", "because of"), cells)


def degree_sections(own: Degrees, best: PricedPlan) -> list[Section]:
    """Return why the best plan has its degrees and no others."""
    axes = [axis for axis in own.axes if axis.others]
    if not axes:
        return []
    told = _Told(own.shares, best)
    sentences = (told.sentence(axis) for axis in axes)
    rows = [row for axis in axes for row in told.rows(axis)]
    table = degree_table("Other degrees, each with all else chosen anew", rows)
    return [Lines(TITLE, (_shares_text(own.shares), *sentences)), table]


@dataclass(frozen=True)
class _Told:
    """Degrees in words, beside what the best plan has."""

    shares: Shares
    best: PricedPlan

    def sentence(self, axis: AxisDegrees) -> str:
        """Return what holds an axis between the next degrees above and below."""
        above = [own for own in axis.others if own.degree > axis.degree][:1]
        below = [own for own in axis.others if own.degree < axis.degree][-1:]
        clauses = "; ".join(self._clause(own) for own in (*above, *below))
        link = f" (over {axis.link})" if axis.link else ""
        verb = "is pinned to" if axis.is_pinned else "is"
        return f"{axis.axis} {verb} {axis.degree:,}{link}: {clauses}."

    def _clause(self, own: OtherDegree) -> str:
        loss = self._loss(own)
        if loss is None:
            return f"{own.degree:,} does not fit, by {_rules(own)}"
        verb = "gains" if loss < 0 else "loses"
        return f"{own.degree:,} {verb} {abs(loss):.1%}: {self._balance(own, loss)}"

    def _balance(self, own: OtherDegree, loss: float) -> str:
        """Return the largest parts that make a difference, and the one against it."""
        parts = self._parts(own)
        grown = [text for text, more in parts if more > 0]
        shrunk = [text for text, more in reversed(parts) if more < 0]
        made, against = (shrunk, grown) if loss < 0 else (grown, shrunk)
        told = [", ".join(made[:MOST]) or NOTHING, *against[:1]]
        return " against ".join(told)

    def rows(self, axis: AxisDegrees) -> Iterator[tuple[str, float | None, str]]:
        """Yield a row for each degree, or for several that the same rules bar."""
        for _, group in groupby(axis.others, key=_reason):
            first, *rest = group
            name = f"{axis.axis} {first.degree:,}"
            name += f" to {rest[-1].degree:,}" if rest else ""
            parts = ", ".join(text for text, _ in self._parts(first)) or NOTHING
            yield name, self._loss(first), parts if first.gap else _rules(first)

    def _loss(self, own: OtherDegree) -> float | None:
        return None if own.step_s is None else own.step_s / self.best.step_s - 1

    def _parts(self, own: OtherDegree) -> list[tuple[str, float]]:
        """Return the parts that change most, in words and as shares, losses first."""
        terms = own.gap.terms if own.gap else {}
        shares = {name: more / self.best.step_s for name, more in terms.items()}
        least = max(LEAST, SMALL * max(map(abs, shares.values()), default=0.0))
        told = [name for name, share in shares.items() if abs(share) >= least]
        return [
            (f"{name} {shares[name]:+.1%}{self._cause(name, own)}", shares[name])
            for name in sorted(told, key=lambda name: -shares[name])
        ]

    def _cause(self, part: str, own: OtherDegree) -> str:
        """Return the link of a part that grows, or what else matmuls are cut into."""
        if own.gap is None or own.gap.terms[part] <= 0:
            return ""
        causes = [own.links[part]] if part in own.links else []
        if part == "compute":
            causes = list(self._resized(own))
        return f" ({', '.join(causes)})" if causes else ""

    def _resized(self, own: OtherDegree) -> Iterator[str]:
        assert own.shares is not None
        assert own.plan is not None
        if own.shares.d_ff != self.shares.d_ff:
            yield f"d_ff {own.shares.d_ff:,g}"
        if own.shares.layers[0] != own.shares.layers[1]:
            yield f"{_layers(own.shares)} layers a stage"
        if own.plan.micro_batch != self.best.plan.micro_batch:
            yield f"micro-batch {own.plan.micro_batch}"


def _reason(own: OtherDegree) -> tuple[object, ...]:
    """Return what degrees have in common that share a row: nothing if they fit."""
    return (own.degree,) if own.plan else own.rules


def _rules(own: OtherDegree) -> str:
    told = (f"{rule.rule} ({rule.sentence})" for rule in own.rules)
    return " and ".join(told) or "no rule alone"


def _shares_text(own: Shares) -> str:
    experts = f"experts {own.experts:g}, " if own.experts else ""
    return (
        f"heads {own.heads:g}, KV heads {own.kv_heads:g}, {experts}d_ff {own.d_ff:,g} "
        f"a GPU · layers {_layers(own)} a stage · bubble {own.bubble:.1%} of the step"
    )


def _layers(own: Shares) -> str:
    least, most = own.layers
    return f"{least}" if least == most else f"{least} to {most}"
