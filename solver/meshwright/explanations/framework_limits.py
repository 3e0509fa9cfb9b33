"""The cost of each limit of a spec's framework: the limit is lifted, and solved again.

All limits are lifted first. If that gains nothing, no single limit costs anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.deadline import Deadline, Interrupt
from meshwright.frameworks.base.registry import IDEAL, Limit, framework_of, limits_of
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import FrameworkLimits, LiftedLimit
from meshwright.spec.spec import Spec

FASTER = 1 - 1e-9
"""A plan counts as faster below this share of a step time: less is rounding."""

ALL = Limit("all", "all of them together")


def solve_with_limits(spec: Spec, options: Options) -> Outcome:
    """Return the outcome of a spec, with what the limits of its framework cost.

    The time limit holds for all solves together. Limits that it, or an interrupt,
    leaves no time for have the status `unknown`.
    """
    deadline = Deadline(options.time_limit_s, options.interrupt)
    outcome = solve(spec, options)
    costs = _LimitCosts(spec, _step_s(outcome), options, deadline).all_costs()
    return outcome.model_copy(update={"framework_limits": costs})


@dataclass(frozen=True)
class _LimitCosts:
    """Compares the best step time under a framework with those without its limits."""

    spec: Spec
    step_s: float
    """Step time of the fastest plan that keeps every limit; infinite if none does."""
    options: Options
    deadline: Deadline

    def all_costs(self) -> FrameworkLimits:
        limits = limits_of(self.spec)
        together = self._lifted(ALL, limits, "without any of the framework's limits")
        each = [
            together.model_copy(
                update={"limit": limit.name, "sentence": limit.sentence}
            )
            if together.gains_nothing
            else self._lifted(
                limit, [limit], f"{number} of {len(limits)}: {limit.sentence}"
            )
            for number, limit in enumerate(limits, 1)
        ]
        ideal = self._solve(
            self.spec.model_copy(update={"framework": IDEAL}), f"framework: {IDEAL}"
        )
        return FrameworkLimits(
            framework=framework_of(self.spec).title,
            limits=tuple(sorted(each, key=_by_cost)),
            all_lifted=together,
            ideal_step_s=ideal.optimum.step_s if ideal and ideal.optimum else None,
        )

    def _lifted(self, told: Limit, lifted: Sequence[Limit], doing: str) -> LiftedLimit:
        """Return the fastest plan without some limits, as that of the limit `told`."""
        free = self.spec.without_limits(limit.name for limit in lifted)
        outcome = self._solve(free, doing, self.step_s * FASTER)
        result = LiftedLimit(limit=told.name, sentence=told.sentence, status="unknown")
        if outcome is None:
            return result
        found_s, step_s = _step_s(outcome), self.step_s
        update: dict[str, object] = {"status": outcome.status}
        if found_s < step_s * FASTER and outcome.optimum is not None:
            costs = step_s / found_s - 1 if math.isfinite(step_s) else None
            update |= {"step_s": found_s, "costs": costs, "plan": outcome.optimum.plan}
        elif math.isfinite(step_s):
            # The plan that keeps every limit is still there.
            is_proven = outcome.status in ("optimal", "infeasible")
            update["status"] = "optimal" if is_proven else "feasible"
            update |= {"step_s": step_s, "costs": 0.0}
        return result.model_copy(update=update)

    def _solve(
        self, spec: Spec, doing: str, known_s: float = math.inf
    ) -> Outcome | None:
        """Return the outcome of a spec; None where there is no time left for it.

        Plans slower than `known_s` may be left out.
        """
        left_s, interrupt = self.deadline.left_s, self.options.interrupt
        if left_s <= 0:
            return None
        self.options.on_progress(doing)
        brief = replace(
            self.options,
            time_limit_s=left_s,
            top=1,
            is_by_kind=False,
            is_safety=False,
            is_brief=True,
            known_s=known_s,
            on_progress=lambda _: None,
            interrupt=Interrupt(),
        )
        return interrupt.unless_asked(lambda: solve(spec, brief), None)


def _step_s(outcome: Outcome) -> float:
    """Return the step time of the best plan, infinite where none is known."""
    return outcome.optimum.step_s if outcome.optimum else math.inf


def _by_cost(limit: LiftedLimit) -> tuple[bool, float]:
    """Return the place of a limit: first where it leaves no plan, then by its cost."""
    return not limit.gains, -(limit.costs or math.inf) if limit.gains else 0.0
