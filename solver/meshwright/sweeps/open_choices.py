"""The choices of an open spec: bounds on the step of each, tightened until one is best.

A choice is one number of machines and one batch; its step is that of its fastest plan,
or the least doubted one where plans are recommended by it. Most choices are never
solved: a lower bound on their step shows that they are no better than the best plan
known. The bound comes from their families, or from branch and bound with that plan as
the cutoff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, OutOfTime
from meshwright.economics.planned_run import level_value
from meshwright.planner.compute_bound import ComputeBound, Wanted, compute_bound
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.options import Options
from meshwright.planner.solve import best_outcome, comparing, solve, without_answer
from meshwright.results.outcome import Certificate, Outcome
from meshwright.results.outcome_parts import Choice, ClosedChoices, OpenAnswer, Verdict
from meshwright.rules.user_rules import step_may_keep
from meshwright.spec.cluster import Cluster
from meshwright.spec.goals import SIMPLEST, Level
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.spec import Spec

ROUNDING = 1e-6
"""Share by which cutoffs are raised: whole ticks must not close a plan that is as good.
"""

CHOICES_OPEN = "It was stopped before all choices of {} were looked at."


def solve_open(question: OpenSpec, options: Options | None = None) -> Outcome:
    """Return the best plan on the best of the choices that a spec leaves open.

    Choices are compared by the levels of the objective, each by its best step: see
    `comparing`. The plan of the best choice is then chosen as if the spec had named it.

    Raises:
        SpecError: a price that the objective needs is not known, or steps take days.
        InternalError: the checker disagrees with the solver about a plan.
    """
    options = options or Options()
    deadline = Deadline(options.time_limit_s, options.interrupt)
    chosen = choose(question, options, deadline)
    outcome = _outcome(chosen, options)
    options.interrupt.is_heeded = True
    return outcome.model_copy(update=_certified(chosen, outcome))


def choose(question: OpenSpec, options: Options, deadline: Deadline) -> Chosen:
    """Return the best of the choices that a spec leaves open, by its objective.

    Raises:
        SpecError: a price that the objective needs is not known, or steps take days.
    """
    choices = open_choices(question.choices, options.profile)
    every = question.choices[0].objective.levels
    levels = [level for level in every if level.metric != SIMPLEST]
    search = OpenSearch(comparing(options), deadline)
    with options.interrupt.heeded():
        best = search.best(choices, levels)
    return Chosen(question, search, choices, levels, best)


def _outcome(chosen: Chosen, options: Options) -> Outcome:
    """Return the outcome of the best choice.

    If no choice has a plan, it is the nearest miss of the largest choice.
    """
    search, best = chosen.search, chosen.best
    options = replace(options, time_limit_s=search.deadline.left_s)
    if best is None:
        return solve(chosen.question.choices[-1], options)
    if search.deadline.has_passed and best.outcome is not None:
        outcome = without_answer(best.outcome, best.compute_s)
        return outcome.model_copy(update={"title": best.spec.title})
    last = search.last
    if last is None or last.choice is not best:
        return solve(best.spec, options)
    return solve(best.spec, options, last.prepared)


def _told(choice: OpenChoice, levels: list[Level], best: OpenChoice | None) -> Choice:
    cluster, fits = choice.spec.cluster, choice.verdict != "none_fits"
    level, loss = loss_of(levels, choice, best) if best and fits else (None, None)
    plan = choice.outcome.best if choice.outcome else None
    return Choice(
        number=choice.number,
        machine=cluster.topology.name,
        count=cluster.count,
        gpus=cluster.gpus,
        global_batch=choice.spec.training.global_batch,
        verdict=choice.verdict,
        step_s=plan.step_s if plan else None,
        doubted_s=plan.doubted_s if plan and choice.is_doubted else None,
        bound_s=choice.least_s if fits else 0.0,
        level=level,
        loss=loss,
    )


def _certified(chosen: Chosen, outcome: Outcome) -> dict[str, Any]:
    """Return the answer's fields that tell of all choices, not of the best alone."""
    answer, best, certificate = chosen.answer, chosen.best, outcome.certificate
    update: dict[str, Any] = {"open": answer}
    if best is None or certificate is None:
        return update | ({} if chosen.is_whole else {"status": "unknown"})
    if chosen.is_whole:
        return update
    told = CHOICES_OPEN.format(" and ".join(answer.fields))
    gap = max(certificate.gap, _gap(chosen, best))
    changed = {"gap": gap, "left_open": certificate.left_open or told}
    update |= {"status": "feasible", "is_stopped": chosen.search.deadline.has_passed}
    return update | {"certificate": certificate.model_copy(update=changed)}


def _gap(chosen: Chosen, best: OpenChoice) -> float:
    """Return how much better a choice that was left open may be, as a share."""
    left = [choice for choice in chosen.choices if choice.is_stopped]
    losses = [loss_of(chosen.levels, choice, best)[1] for choice in left]
    return max(0.0, -min(losses))


@dataclass
class OpenChoice:
    """One choice, and the bounds proven on the step by which it is compared."""

    number: int
    spec: Spec
    compute: ComputeBound
    """The bounds by kernels alone."""
    least_s: float = 0.0
    """Lower bound on its step; infinite if no plan fits."""
    step_s: float | None = None
    """Step of its best plan, if that is proven."""
    most_s: float = math.inf
    """Longest step time within the tolerances of the earlier levels."""
    outcome: Outcome | None = None
    """Its best plan, with the certificate."""
    is_stopped: bool = False
    """Whether its solve was stopped before it was finished."""

    @property
    def compute_s(self) -> float:
        """Return the lower bound on its steps by kernels alone."""
        return self.compute.least_s(self.spec.cluster.gpus)

    @property
    def is_doubted(self) -> bool:
        """Return whether its best plan is that of the least doubted step."""
        proof = self.outcome.certificate if self.outcome else None
        return proof is not None and proof.is_of_doubted

    @property
    def best_s(self) -> float:
        """Return the step of its best plan, or the lower bound on it."""
        return self.least_s if self.step_s is None else self.step_s

    @property
    def is_alive(self) -> bool:
        """Return whether it may have a plan within the levels before."""
        return self.best_s <= self.most_s and not math.isinf(self.best_s)

    @property
    def verdict(self) -> Verdict:
        """Return how it was closed: solved, bounded, without a plan, or undecided."""
        if self.is_stopped:
            return "undecided"
        if self.step_s is not None:
            return "solved"
        return "none_fits" if math.isinf(self.least_s) else "bounded"

    def value(self, level: Level, step_s: float) -> float:
        """Return the value that a level minimises, at a step time of this choice."""
        if math.isinf(step_s):
            return math.inf
        return level_value(level, self.spec, self.spec.cluster, step_s)

    def step_within(self, level: Level, value: float) -> float:
        """Return the longest step with which a level is at most a value."""
        if level.metric == "gpus":
            return math.inf if self.spec.cluster.gpus <= value else -1.0
        return value / self.value(level, 1.0) * (1 + ROUNDING)


def loss_of(
    levels: list[Level], choice: OpenChoice, best: OpenChoice
) -> tuple[str, float]:
    """Return the first level that tells a choice and the best apart, and the loss.

    The loss is a share; the level is the last one if none tells them apart.
    """
    for level in levels:
        loss = choice.value(level, choice.best_s) / best.value(level, best.best_s) - 1
        is_apart = loss > level.tolerance + ROUNDING or loss < -ROUNDING
        if is_apart or level is levels[-1]:
            break
    return level.metric, loss


class PreparedChoice(NamedTuple):
    """A choice with its job as it was prepared."""

    choice: OpenChoice
    prepared: Prepared


def open_choices(specs: Sequence[Spec], profile: Profile) -> list[OpenChoice]:
    """Return specs as choices, with the bound on each that needs no lattice.

    Specs that differ in the number of machines alone share it.
    """
    clusters: dict[int, dict[int, Cluster]] = {}
    for spec in specs:
        by_count = clusters.setdefault(id(spec.cluster.topology), {})
        by_count[spec.cluster.count] = spec.cluster
    found: dict[tuple[int, int], ComputeBound] = {}
    choices = []
    for number, spec in enumerate(specs):
        cluster, batch = spec.cluster, spec.training.global_batch
        key = id(cluster.topology), batch
        if key not in found:
            job = profile.job(profile.applied_to(spec))
            found[key] = compute_bound(job, [*clusters[key[0]].values()])
        least_s = found[key].least_s(cluster.gpus)
        fits = step_may_keep(spec, least_s)
        least_s = least_s if fits else math.inf
        choices.append(OpenChoice(number, spec, found[key], least_s))
    return choices


@dataclass
class OpenSearch:
    """Finds the best of choices by the levels of an objective."""

    options: Options
    deadline: Deadline
    last: PreparedChoice | None = None
    """The last choice that had a plan; others are let go, for the memory they take."""

    def best(self, choices: list[OpenChoice], levels: list[Level]) -> OpenChoice | None:
        """Return the best choice, None where none has a plan."""
        best = None
        for number, level in enumerate(levels):
            is_last = number == len(levels) - 1
            tolerance = 0.0 if is_last else level.tolerance
            best = self._least(level, [choice for choice in choices if choice.is_alive])
            if best is None:
                return None
            most = best.value(level, best.best_s) * (1 + tolerance)
            for choice in choices:
                choice.most_s = min(choice.most_s, choice.step_within(level, most))
        return best

    def _least(self, level: Level, choices: list[OpenChoice]) -> OpenChoice | None:
        """Return the choice that is best by a level; of equals that with fewer GPUs."""
        best: OpenChoice | None = None
        least = math.inf
        for choice in sorted(choices, key=partial(_order, level)):
            if best is not None and choice.value(level, choice.best_s) >= least:
                continue
            self.solve(choice, min(choice.most_s, choice.step_within(level, least)))
            if choice.step_s is not None and choice.value(level, choice.step_s) < least:
                best, least = choice, choice.value(level, choice.step_s)
        return best

    def solve(self, choice: OpenChoice, most_s: float) -> None:
        """Prove the best plan of a choice, or that all take longer than `most_s`."""
        if choice.step_s is not None or choice.least_s > most_s:
            return
        if self.deadline.has_passed:
            choice.is_stopped = True
            return
        cluster, batch = choice.spec.cluster, choice.spec.training.global_batch
        self.options.on_progress(f"looking at {cluster.gpus:,} GPUs, batch {batch:,}")
        near = Wanted(choice.compute, most_s)
        try:
            prepared = self._prepared(choice, near)
        except OutOfTime:
            choice.is_stopped = True
            return
        least_s = min(prepared.least_s, near.least_of_others_s)
        choice.least_s = max(choice.least_s, least_s)
        if choice.least_s > most_s:
            return
        options = replace(
            self.options,
            is_brief=True,
            has_near_miss=False,
            known_s=most_s,
            on_progress=lambda _: None,
        )
        outcome = best_outcome(prepared, options, self.deadline)
        is_whole = math.isinf(near.least_of_others_s)
        self._take(choice, most_s, outcome, prepared if is_whole else None)

    def _prepared(self, choice: OpenChoice, near: Wanted | None = None) -> Prepared:
        profile = self.options.profile
        job = profile.job(profile.applied_to(choice.spec))
        return prepare(job, keeps_all=True, is_wanted=near, deadline=self.deadline)

    def _take(
        self,
        choice: OpenChoice,
        most_s: float,
        outcome: Outcome,
        whole: Prepared | None,
    ) -> None:
        """Keep the proof that a solve with a cutoff brought on a choice.

        `whole` is the solved lattice; None if skeletons were left out of it.
        """
        proof = outcome.certificate
        if outcome.best is not None and proof is not None:
            choice.outcome = outcome
            best = outcome.best
            choice.step_s = best.doubted_s if choice.is_doubted else best.step_s
            choice.least_s = max(choice.least_s, min(proof.bound_s, choice.step_s))
            choice.is_stopped = outcome.status != "optimal"
            try:
                whole = whole or self._prepared(choice)
            except OutOfTime:
                return
            choice.outcome = _counted(outcome, proof, whole.lattice.skeletons)
            self.last = PreparedChoice(choice, whole)
        elif outcome.status == "infeasible":
            choice.least_s = math.nextafter(most_s, math.inf)
        else:
            choice.is_stopped = True


def _counted(outcome: Outcome, proof: Certificate, skeletons: int) -> Outcome:
    """Return an outcome that counts skeletons which were never listed as bounded."""
    counts = proof.counts
    bounded = counts.bounded + skeletons - counts.skeletons
    changed = counts.model_copy(update={"skeletons": skeletons, "bounded": bounded})
    whole = proof.model_copy(update={"counts": changed})
    return outcome.model_copy(update={"certificate": whole})


def _order(level: Level, choice: OpenChoice) -> tuple[float, float, int, int]:
    """Return the place of a choice: likely good ones first, as cutoffs of others.

    The estimate is that GPUs share the work without a loss.
    """
    gpus, batch = choice.spec.cluster.gpus, choice.spec.training.global_batch
    known_s = choice.compute.shared_s(gpus) if choice.step_s is None else choice.step_s
    likely_s = max(known_s, batch / gpus)
    known = choice.value(level, choice.best_s) if choice.step_s is not None else 0.0
    # Values that differ by rounding alone are equal: the fewest GPUs come first.
    likely = float(f"{choice.value(level, likely_s):.9g}")
    return known, likely, gpus, batch


@dataclass(frozen=True)
class Chosen:
    """The best of the choices of an open spec, and the search that proved it."""

    question: OpenSpec
    search: OpenSearch
    choices: list[OpenChoice]
    levels: list[Level]
    best: OpenChoice | None
    """None where no choice has a plan."""

    @property
    def is_whole(self) -> bool:
        """Return whether every choice was looked at to its end."""
        return not any(choice.is_stopped for choice in self.choices)

    @cached_property
    def answer(self) -> OpenAnswer:
        """Return the choice as data."""
        told = [_told(choice, self.levels, self.best) for choice in self.choices]
        return OpenAnswer(
            fields=self.question.open_fields,
            levels=tuple(level.metric for level in self.levels),
            chosen=None if self.best is None else told[self.best.number],
            choices=tuple(told),
            closed=ClosedChoices.of(choice.verdict for choice in told),
            impossible=self.question.impossible,
            why_impossible=self.question.why_impossible,
        )
