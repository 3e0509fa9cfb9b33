"""Risk buys speed: plans are as safe as asked, and bolder ones are no slower."""

from __future__ import annotations

from random import Random

from tests.laws.asked import ask, question
from tests.laws.law import Checks, Data, Law, plain
from tests.laws.specs import every_data

RISKS = (0.001, 0.01, 0.05, 0.2, 0.5)
FLOAT = 1e-9


def risk_buys_speed(data: Data, choice: Random) -> Checks:
    """Solve at two risks, and at the memory that one of them leaves usable."""
    low, high = sorted(choice.sample(RISKS, 2))
    safe, bold = _at(data, oom_risk=low), _at(data, oom_risk=high)
    safe_answer, bold_answer = ask(safe), ask(bold)
    told = f"{bold_answer.step_s!r} s at {high}, {safe_answer.step_s!r} s at {low}"
    yield bold_answer.is_no_slower(safe_answer), told
    for risk, answer in ((low, safe_answer), (high, bold_answer)):
        if answer.best is not None:
            fits = answer.best.fit_probability
            yield fits >= 1 - risk - FLOAT, f"fits with {fits} at a risk of {risk}"
    spec = question(bold)
    assert spec.usable_gib >= question(safe).usable_gib
    if not spec.cluster.parts:
        same = ask(_at(data, memory_gib=spec.usable_gib))
        told = f"{same.plan} at {spec.usable_gib} GiB, {bold_answer.plan} at {high}"
        yield same.plan == bold_answer.plan, told


def _at(data: Data, **limits: float) -> Data:
    """Return a spec with one limit on memory in place of those it has."""
    other = plain(data)
    kept = other.setdefault("limits", {})
    for name in ("memory_gib", "memory_margin", "oom_risk"):
        kept.pop(name, None)
    kept |= limits
    return other


LAW = Law(
    "risk",
    "more risk never makes the optimum slower, and plans are as safe as asked",
    every_data(),
    risk_buys_speed,
    tested=10,
)
