"""Simulates the steps of a plan: `meshwright.simulate`."""

from __future__ import annotations

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import OnProgress, quiet, read_profile
from meshwright.api.plans import PlanLike, pins_of
from meshwright.api.price import job_of
from meshwright.api.solve import solve
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_pins
from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.simulation import Disturbance, Simulation
from meshwright.simulation.simulate import simulate as simulate_plan
from meshwright.spec.spec import Spec


class NoPlanError(SpecError):
    """No plan fits, so that there is none to simulate."""


JITTER = 0.02
"""Standard deviation of compute times where the spec gives none; an estimate."""


@checked
def simulate(
    spec: Spec,
    plan: PlanLike | None = None,
    *,
    jitter: float | None = None,
    slow_gpus: float = 0.0,
    slowdown: float | None = None,
    samples: int = 1_000,
    seed: int = 0,
    days: float = 30.0,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
) -> Simulation:
    """Return how long the steps of a plan take where GPUs are not all alike.

    Args:
        spec: The model, the cluster and the job, from `meshwright.load`.
        plan: The plan, as for `meshwright.explain`; what it leaves open is chosen for
            it. Without: the best one.
        jitter: Standard deviation of a GPU's compute time of a task, as a share.
            Without: `run.straggler.jitter` of the spec, else 0.02.
        slow_gpus: Share of GPUs that are slow in a step, each at random.
        slowdown: How much slower their compute is, as a share. Without:
            `run.straggler.slowdown` of the spec, else 0.1.
        samples: Steps to simulate.
        seed: Of the random numbers; the same seed gives the same answer.
        days: Of the runs with failures, where the spec's `run` describes them.
        profile: Efficiencies, as for `meshwright.solve`.
        on_progress: Called with a line whenever something else is being done.

    Raises:
        NoPlanError: no plan fits.
        SpecError: the plan or a number cannot be read.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("llama2-13b-8xa100")
        >>> calm = mw.simulate(spec, "pp=4,tp=2", jitter=0.0)
        >>> calm.step_s.p99 - calm.step_s.least < 1e-9
        True
        >>> mw.simulate(spec, "pp=4,tp=2", jitter=0.1).step_s.median > calm.schedule_s
        True
    """
    read = read_profile(profile)
    priced = _priced(spec, plan, read, on_progress)
    job = job_of(spec, priced.plan, read)
    told = _disturbance(spec, jitter, slow_gpus, slowdown)
    on_progress("walking the schedule")
    return simulate_plan(job, priced, told, samples, seed, days, on_progress)


def _priced(
    spec: Spec, plan: PlanLike | None, profile: Profile, on_progress: OnProgress
) -> PricedPlan:
    """Return the plan with its price; a complete one need not fit."""
    if isinstance(plan, Plan):
        from meshwright.api.price import price

        return price(spec, plan, profile=profile)
    asked = spec if plan is None else with_pins(spec, pins_of(plan, spec))
    outcome = solve(asked, by_kind=False, profile=profile, on_progress=on_progress)
    if outcome.best is None:
        told = "`meshwright explain` says why, and what would mend it"
        raise NoPlanError(f"no plan fits, so that there is none to simulate; {told}")
    return outcome.best


def _disturbance(
    spec: Spec, jitter: float | None, slow_gpus: float, slowdown: float | None
) -> Disturbance:
    known = spec.run.straggler if spec.run else None
    if jitter is None:
        jitter = known.jitter if known and known.jitter else JITTER
    if slowdown is None:
        slowdown = known.slowdown if known else 0.1
    shares = {"jitter": (jitter, 1.0), "slow_gpus": (slow_gpus, 1.0)}
    for name, (value, most) in {**shares, "slowdown": (slowdown, 100.0)}.items():
        if not 0 <= value <= most:
            raise SpecError(f"{name}: {value}; accepted: 0 to {most:g}")
    return Disturbance(jitter=jitter, slow_gpus=slow_gpus, slowdown=slowdown)
