"""What runs would take and need if a switch were set otherwise, or a factor moved.

Every plan is priced once as it is, once for every other position of every open switch,
and once for every efficiency. All beliefs of calibration are worked out from these
numbers, without pricing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.check.check import predict
from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.job import make_job
from meshwright.cost.profile import Profile, RunClass
from meshwright.evidence.price import Priced
from meshwright.evidence.tangents import NAMES, Tangents
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.frameworks.base.switches import SWITCHES, Setting
from meshwright.plans.columns import Floats
from meshwright.spec.spec import Spec

Alternative = tuple[str, Setting]
"""A switch and one of its positions."""


@dataclass(frozen=True)
class Response:
    """How the prediction for one plan moves."""

    run_class: RunClass
    log_s: float
    """Logarithm of the predicted step time, with everything as it is believed."""
    slopes: Floats
    """d ln(step time) / d ln(efficiency), in the order of `tangents.NAMES`."""
    allocated_gib: float
    overhead_gib: float
    settings: dict[str, Setting | None]
    """The position that every switch is believed to have; of those left open alone."""
    slower: dict[Alternative, float]
    """By how much of the step time a switch in another position makes it longer."""
    more_gib: dict[Alternative, float]
    """How much more memory it then needs."""


def responses_of(runs: Sequence[Priced], profile: Profile) -> tuple[Response, ...]:
    """Return the responses of runs, priced at the efficiencies of a profile."""
    cases = TimedRuns(list(runs))
    classes = set(cases.classes)
    vendors = {own: profile.efficiency_of(own, "vendor") for own in classes}
    _, slopes = Tangents(cases, vendors).at({c: np.zeros(len(NAMES)) for c in classes})
    return tuple(
        _response(one, own, profile.user_time, vendors[own], by_efficiency)
        for one, own, by_efficiency in zip(runs, cases.classes, slopes, strict=True)
    )


def _response(
    one: Priced,
    run_class: RunClass,
    user_time: float,
    efficiency: Efficiency,
    slopes: Floats,
) -> Response:
    """Return the response of a run, whose slopes are known."""
    log_s, allocated_gib, overhead_gib = _priced(one, one.spec, efficiency)
    slower: dict[Alternative, float] = {}
    more_gib: dict[Alternative, float] = {}
    settings: dict[str, Setting | None] = {}
    for switch in SWITCHES:
        if switch.name in one.said:
            continue
        now = settings[switch.name] = switch.of(one.spec)
        for setting in switch.allowed(one.spec):
            if setting != now:
                moved = switch.at(one.spec, setting)
                log_moved, gib, _ = _priced(one, moved, efficiency)
                slower[switch.name, setting] = float(np.expm1(log_moved - log_s))
                more_gib[switch.name, setting] = gib - allocated_gib
    by_user = one.spec.training.tuned == "user"
    if "tuned" in settings:
        slower["tuned", "vendor" if by_user else "user"] = (
            1 / user_time - 1 if by_user else user_time - 1
        )
    return Response(
        run_class=run_class,
        log_s=log_s + (np.log(user_time) if by_user else 0.0),
        slopes=slopes,
        allocated_gib=allocated_gib,
        overhead_gib=overhead_gib,
        settings=settings,
        slower=slower,
        more_gib=more_gib,
    )


def _priced(
    one: Priced, spec: Spec, efficiency: Efficiency
) -> tuple[float, float, float]:
    """Return log step time, allocated GiB and overhead GiB of a run's plan."""
    step_s, stages = predict(make_job(spec, efficiency), one.plan)
    fullest = max(stages, key=lambda stage: stage.total_gib)
    overhead_gib = fullest.parts["overhead"]
    return float(np.log(step_s)), fullest.total_gib - overhead_gib, overhead_gib


def alternatives(responses: Sequence[Response]) -> tuple[Alternative, ...]:
    """Return the positions of open switches that change some prediction.

    The others are as they are believed to be, whatever is measured.
    """
    found: dict[Alternative, bool] = {}
    for one in responses:
        for own, share in one.slower.items():
            is_felt = (
                abs(share) > LEAST_SHARE
                or abs(one.more_gib[own]) > LEAST_SHARE * one.allocated_gib
            )
            found[own] = found.get(own, False) or is_felt
    return tuple(own for own, is_felt in found.items() if is_felt)


LEAST_SHARE = 0.002
"""Least change of a step time or of memory that counts as one."""
