"""Other choices beside the answer: near plans, degrees, machines, framework limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.outcome_parts import (
    LEVER_EFFECTS,
    Choice,
    DecisionCost,
    FrameworkLimits,
    LiftedLimit,
    NearDecision,
    NearPlans,
    NextValue,
    OpenAnswer,
    PricedLever,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FIELD, Value

if TYPE_CHECKING:
    from meshwright.results.explanation import (
        AxisDegrees,
        DegreeReasons,
        OtherDegree,
        Shares,
    )

LEAST_GAIN = 0.005
"""Least share of time for which a switch is told in short."""

LEAST_FREED = 0.05
"""Share of the memory that a switch must free to be told where memory is short."""

FEW = 3
"""Most values of a decision that are listed in a line; the table has all."""


def near_sections(near: NearPlans | None) -> Iterator[Section]:
    """Yield how many plans are near, what they share, and what the rest costs."""
    if near is None:
        return
    title = f"All plans within {near.within:.2%} of the fastest"
    yield Lines(title, tuple(_near_lines(near)))
    free = [decision for decision in near.decisions if not decision.is_shared]
    if free:
        rows = tuple((decision.name, *_near_cells(decision)) for decision in free)
        heading = ("decision", "value: extra time of the fastest plan with it (plans)")
        yield Table("Decisions in which they differ", heading, rows)


LEVERS = "Switches of the framework, on this plan as it is"


def lever_lines(
    levers: tuple[PricedLever, ...], most: int, *, pays_for_memory: bool = False
) -> Iterator[Section]:
    """Yield the few switches of the framework that gain most time.

    Where a plan takes longer to hold less, another one may be faster with memory that a
    switch frees: the one that frees most is told, too, of those with the same numbers.
    """
    by_gain = sorted(levers, key=lambda one: -one.gain)
    gaining = [one for one in by_gain if one.gain > LEAST_GAIN]
    lines = [_lever_line(one, f"{one.gain:+.1%} tokens/s") for one in gaining[:most]]
    freeing = [
        one
        for one in levers
        if one.freed_gib > LEAST_FREED * one.memory_gib and one.numbers == "nothing"
    ]
    if pays_for_memory and freeing:
        one = max(freeing, key=lambda lever: lever.freed_gib)
        freed = _lever_line(one, f"{-one.freed_gib:.1f} GiB on the fullest GPU")
        lines.append(f"{freed}; explain prices the best plan with it")
    if lines:
        yield Lines(LEVERS, tuple(lines))


def _lever_line(lever: PricedLever, worth: str) -> str:
    edit = lever.edit.removeprefix("training.")
    return f"{worth}, {LEVER_EFFECTS[lever.numbers]}: {edit} ({lever.option})"


def lever_sections(levers: tuple[PricedLever, ...]) -> Iterator[Section]:
    """Yield the switches of the framework that gain time or memory."""
    rows = tuple(
        (
            one.edit.removeprefix("training."),
            f"{one.gain:+.1%}",
            f"{0.0 - round(one.freed_gib, 1):+.1f} GiB",
            LEVER_EFFECTS[one.numbers],
            one.option,
        )
        for one in levers
    )
    if rows:
        heading = ("switch", "tokens/s", "fullest GPU", "the numbers", "how")
        yield Table(LEVERS, heading, rows)


def cost_sections(
    costs: tuple[DecisionCost, ...], near: NearPlans | None
) -> Iterator[Section]:
    """Yield the costs of the decisions of a plan that is not the fastest."""
    if near is None:
        return
    names = {decision.name: decision for decision in near.decisions}
    told = [
        decision for decision in costs if decision.loss is None or decision.loss > 0
    ]
    told.sort(key=lambda decision: -(decision.loss or near.within))
    rows = tuple(
        (
            f"{decision.name} {_value_word(decision.name, decision.value)}",
            f"more than {near.within:.2%}"
            if decision.loss is None
            else f"{decision.loss:+.2%}",
            _near_values(names[decision.name]),
        )
        for decision in told
    )
    if rows:
        title = f"What its decisions cost, among all plans within {near.within:.2%}"
        yield Table(title, ("decision", "costs", "those have"), rows)


def _near_lines(near: NearPlans) -> Iterator[str]:
    proven = "proven" if near.is_proven else "not proven: there may be more"
    plans = "plan" if near.count == 1 else "plans"
    yield f"{near.count:,} {plans}, meshes and splits of layers aside ({proven})."
    shared = [
        decision
        for decision in near.decisions
        if decision.is_shared and decision.values[0].value != FIELD[decision.name].plain
    ]
    free = [decision for decision in near.decisions if not decision.is_shared]
    said = ", ".join(
        f"{decision.name} {_near_value(decision, 0)}" for decision in shared
    )
    yield f"All: {said}." if said else "They have no unusual decision in common."
    if free:
        yield (
            "; ".join(f"{decision.name} {_near_values(decision)}" for decision in free)
            + "."
        )


def _near_values(decision: NearDecision) -> str:
    """Return the values of a decision, or that it is free where there are many."""
    if len(decision.values) > FEW:
        return "free"
    values = [_near_value(decision, index) for index in range(len(decision.values))]
    if len(values) == 1:
        return values[0]
    if not FIELD[decision.name].words:
        values.sort(key=lambda value: (len(value), value))
    return ", ".join(values[:-1]) + " or " + values[-1]


def _near_value(decision: NearDecision, index: int) -> str:
    return _value_word(decision.name, decision.values[index].value)


def _value_word(name: str, value: Value) -> str:
    """Return a value as a user would write it."""
    field = FIELD[name]
    return str(value if field.words else field.dtype(value)).lower() or "-"


def _near_cells(decision: NearDecision) -> tuple[str]:
    cells = (
        f"{_near_value(decision, index)}: {value.loss:+.2%} ({value.plans:,})"
        for index, value in enumerate(decision.values)
    )
    return (" · ".join(cells),)


TITLE = "What sets the degrees of the {} plan"

NOTHING = "no part by much"

LEAST_SHARE = 0.0005
"""Parts that change by less than this share of the step are not shown."""

LEAST_OF_LARGEST = 0.1
"""Parts that change by less than this share of the largest change are not shown."""

MOST_NAMED = 2
"""Most parts that a sentence names."""

DOUBT = "doubt"
"""The part of a step that is doubted for decisions beyond known runs."""

DOUBT_MEANS = (
    "Doubt: {:.0%} of the step for each decision beyond known runs, in brackets."
)


def degree_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return a table of degrees, their loss as a share of the best step, and why."""
    return Table(title, ("degree", "costs", "because of"), tuple(rows))


def loss_text(loss: float | None) -> str:
    """Return a loss as a share, signed; a dash where no plan fits."""
    return "-" if loss is None else f"{loss:+.1%}"


def least_loss_text(loss: float) -> str:
    """Return a loss that is a lower bound, rounded down."""
    return f"at least {_rounded_down(loss):+.1%}"


def _rounded_down(share: float) -> float:
    """Return a share, rounded down to a tenth of a percent."""
    return math.floor(share * 1000) / 1000


def degree_sections(degrees: DegreeReasons, best: PricedPlan) -> list[Section]:
    """Return why a plan, the recommended or the fastest, has its degrees."""
    axes = [axis for axis in degrees.axes if axis.others]
    if not axes:
        return []
    writer = _DegreeWriter(degrees.shares, best, degrees.tolerance)
    sentences = (writer.sentence(axis) for axis in axes)
    rows = [row for axis in axes for row in writer.rows(axis)]
    table = degree_table("Other degrees, with everything else chosen again", rows)
    title = TITLE.format("fastest" if degrees.tolerance is None else "recommended")
    lines = [_shares_text(degrees.shares), *sentences]
    if best.familiarity and any(f"{DOUBT} " in line for line in lines):
        lines.append(DOUBT_MEANS.format(best.familiarity.doubt))
    return [Lines(title, tuple(lines)), table]


@dataclass(frozen=True)
class _DegreeWriter:
    """Writes about other degrees, compared with the recommended or the fastest plan."""

    shares: Shares
    best: PricedPlan
    tolerance: float | None
    """As in `DegreeReasons`."""

    @property
    def _takes_s(self) -> float:
        return self.best.step_s if self.tolerance is None else self.best.doubted_s

    @property
    def _beyond(self) -> tuple[str, ...]:
        familiarity = self.best.familiarity
        return familiarity.beyond if familiarity else ()

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
            least = _rounded_down(self._least(other))
            more = [untried for untried in other.beyond if untried not in self._beyond]
            why = f", of it {DOUBT} ({', '.join(more)})" if more else ""
            return f"{other.degree:,} loses at least {least:.1%}{why}"
        verb = "gains" if loss < 0 else "loses"
        # The recommended plan may take as much more as the model cannot tell apart.
        verb = f"is less simple and {verb}" if loss < 0 and self.tolerance else verb
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
        if other.step_s is None:
            return None
        return (other.doubted_s or other.step_s) / self._takes_s - 1

    def _least(self, other: OtherDegree) -> float:
        """Return the least that a degree loses, as far as is proven."""
        return (other.bound_s or 0.0) / self._takes_s - 1

    def _parts(self, other: OtherDegree) -> list[tuple[str, float]]:
        """Return the parts that change most, as words and share, the losses first."""
        terms = self._terms(other)
        shares = {name: more / self._takes_s for name, more in terms.items()}
        least = max(
            LEAST_SHARE, LEAST_OF_LARGEST * max(map(abs, shares.values()), default=0.0)
        )
        shown = [name for name, share in shares.items() if abs(share) >= least]
        return [
            (f"{name} {shares[name]:+.1%}{self._cause(name, other)}", shares[name])
            for name in sorted(shown, key=lambda name: -shares[name])
        ]

    def _terms(self, other: OtherDegree) -> dict[str, float]:
        """Return the seconds that a plan takes more than the best one, by part."""
        terms = dict(other.gap.terms) if other.gap else {}
        if other.doubted_s and other.step_s:
            doubted_s = self.best.doubted_s - self.best.step_s
            terms[DOUBT] = other.doubted_s - other.step_s - doubted_s
        return terms

    def _cause(self, part: str, other: OtherDegree) -> str:
        """Return why a part grows: its link, sizes of matmuls, untried decisions."""
        if self._terms(other)[part] <= 0:
            return ""
        if part == DOUBT:
            return f" ({', '.join(other.beyond)})"
        causes = [other.links[part]] if part in other.links else []
        if part == "compute":
            causes = list(self._resized(other))
        return f" ({', '.join(causes)})" if causes else ""

    def _resized(self, other: OtherDegree) -> Iterator[str]:
        """Yield the sizes of matmuls that differ from those of the best plan."""
        assert other.shares is not None
        assert other.plan is not None
        if other.shares.d_ff != self.shares.d_ff:
            yield f"d_ff {other.shares.d_ff:,g}"
        if other.shares.layers[0] != other.shares.layers[1]:
            yield f"{_layers(other.shares)} layers a stage"
        if other.plan.micro_batch != self.best.plan.micro_batch:
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


MOST_SHOWN = 8
"""Choices in the table, the best ones."""

DOUBTED_STEP = "doubted step"
"""Heading of steps with what is doubted of them, by which choices are compared."""

BY_DOUBTED = " at the doubted step"


def step_text(step_s: float | None) -> str:
    """Return a step in words, a dash where there is none."""
    return "-" if step_s is None else seconds_text(step_s)


def open_sections(answer: OpenAnswer | None) -> Iterator[Section]:
    """Yield the choice that was made, with the ones that come next."""
    if answer is None:
        return
    chosen = answer.chosen
    lines = [f"Best by {_levels(answer)}: {_choice_name(chosen)}"] if chosen else []
    if answer.impossible:
        lines.append(f"{answer.impossible:,} more cannot be: {answer.why_impossible}")
    if lines:
        yield Lines(f"Left open: {' and '.join(answer.fields)}", tuple(lines))
    if chosen:
        yield _choice_table(answer)


def _choice_name(choice: Choice) -> str:
    return (
        f"{choice.count:,} x {choice.machine} ({choice.gpus:,} GPUs), "
        f"batch {choice.global_batch:,}"
    )


def _choice_table(answer: OpenAnswer) -> Table:
    """Return the best of the choices that were solved."""
    known = [choice for choice in answer.choices if choice.step_s is not None]
    known.sort(key=lambda choice: (choice != answer.chosen, choice.loss))
    shown, doubted = known[:MOST_SHOWN], (DOUBTED_STEP,) * _is_doubted(answer)
    rows = tuple(
        (
            choice.machine,
            f"{choice.count:,}",
            f"{choice.gpus:,}",
            f"{choice.global_batch:,}",
            step_text(choice.step_s),
            *(step_text(choice.doubted_s) for _ in doubted),
            _choice_loss(choice, answer),
        )
        for choice in shown
    )
    title = f"Choices that were solved, of {len(answer.choices):,}"
    heading = ("machine", "count", "GPUs", "batch", "step", *doubted, "loses")
    return Table(title, heading, rows)


def _is_doubted(answer: OpenAnswer) -> bool:
    return answer.chosen is not None and answer.chosen.doubted_s is not None


def _choice_loss(choice: Choice, answer: OpenAnswer) -> str:
    if choice == answer.chosen:
        return "wins"
    return f"{choice.loss or 0.0:+.2%} {choice.level}"


def next_value_sections(values: tuple[NextValue, ...]) -> Iterator[Section]:
    """Yield the step at other values of open fields, and the range that binds."""
    rows = tuple(
        (
            next_value.field,
            f"{next_value.value:,}",
            "none fits"
            if next_value.step_s is None
            else seconds_text(next_value.step_s),
            _change(next_value),
        )
        for next_value in values
    )
    if rows:
        heading = ("field", "instead", "step", "loses")
        yield Table("Open numbers: the next values", heading, rows)


def _change(next_value: NextValue) -> str:
    allowed = "" if next_value.is_allowed else ", not allowed"
    if next_value.loss is None:
        return f"-{allowed}"
    binds = ": the spec's range binds" if next_value.binds else ""
    return f"{next_value.loss:+.2%} {next_value.level}{allowed}{binds}"


def choice_lines(answer: OpenAnswer | None) -> Iterator[str]:
    """Yield how the choices of an open spec were closed, as a sentence."""
    if answer is None:
        return
    closed = answer.closed
    told = [
        f"{closed.solved:,} were solved",
        f"{closed.bounded:,} no better by a bound",
    ]
    told += [f"{closed.none_fits:,} without a plan"] * bool(closed.none_fits)
    told += [f"{closed.undecided:,} left open"] * bool(closed.undecided)
    among = f"{len(answer.choices):,} choices"
    yield f"Of {among}, by {_levels(answer)}: {', '.join(told)}."


def _levels(answer: OpenAnswer) -> str:
    """Return the levels that choices are compared by; batches by time a sequence."""
    names = list(answer.levels)
    if "training.global_batch" in answer.fields and "step_s" in names:
        names[names.index("step_s")] = "step_s of a sequence"
    return ", then ".join(names) + BY_DOUBTED * _is_doubted(answer)


LEAST_SHOWN = 0.001
"""Cost below which it is not told how much."""


def framework_limit_sections(
    costs: FrameworkLimits | None, step_s: float | None
) -> Iterator[Section]:
    """Yield the limits that cost something, then those that cost nothing.

    `step_s` is the step time of the fastest plan, where one is known.
    """
    if costs is None:
        return
    shown = [lifted for lifted in costs.limits if not lifted.gains_nothing]
    if shown:
        rows = tuple(map(_limit_row, (*shown, costs.all_lifted)))
        heading = ("limit", "which says", "step without", "costs", "plan without it")
        title = f"What the limits of {costs.framework} cost, each lifted alone"
        yield Table(title, heading, rows)
    lines = tuple(_limit_lines(costs, step_s is not None))
    yield Lines(f"At the kernels and memory of {costs.framework}", lines)
    if costs.ideal_step_s is not None:
        line = _ideal_line(costs.ideal_step_s, step_s)
        yield Lines("At other kernels, memory and efficiency", (line,))


def _limit_row(lifted: LiftedLimit) -> tuple[str, ...]:
    step = step_text(lifted.step_s)
    plan = lifted.plan.brief if lifted.plan else ""
    return lifted.limit, lifted.sentence, step, _cost_text(lifted), plan


def _cost_text(lifted: LiftedLimit) -> str:
    if lifted.status == "unknown" or (lifted.status == "feasible" and not lifted.gains):
        return "open"
    if lifted.costs is None:
        return "the plan" if lifted.gains else "no plan"
    if lifted.gains and lifted.costs < LEAST_SHOWN:
        return f"< {LEAST_SHOWN:.1%}"
    least = ">= " if lifted.status == "feasible" else ""
    return f"{least}{lifted.costs:.1%}"


def _limit_lines(costs: FrameworkLimits, has_plan: bool) -> Iterator[str]:
    """Yield the facts on limits that are not in the table."""
    if not costs.limits:
        yield "It has no limits."
    elif costs.all_lifted.gains_nothing:
        way = "no plan fits" if costs.all_lifted.step_s is None else "no plan is faster"
        yield f"Without any of its limits {way}."
    names = [lifted.limit for lifted in costs.limits if lifted.gains_nothing]
    if names:
        told = "Costs nothing here" if has_plan else "Still no plan fits without"
        yield f"{told}: {', '.join(names)}."


def _ideal_line(ideal_s: float, step_s: float | None) -> str:
    told = f"Under `framework: ideal` the fastest plan takes {seconds_text(ideal_s)}"
    return f"{told}." if step_s is None else f"{told} ({ideal_s / step_s - 1:+.1%})."
