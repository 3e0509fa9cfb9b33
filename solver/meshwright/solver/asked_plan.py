"""The plan that pins ask for, also where it needs more memory than there is."""

from __future__ import annotations

from meshwright.errors import SpecError
from meshwright.plans.plan import Plan
from meshwright.search.options import Options
from meshwright.solver.pipeline import solve
from meshwright.spec.spec import Spec

MEMORY = "memory"
"""The rule that a run out of memory breaks."""


def asked_plan(spec: Spec, options: Options) -> Plan:
    """Return the plan that the pins of a spec ask for, whether or not it fits.

    What they leave open is chosen: the fastest, or where none fits the one that needs
    the least memory.

    Raises:
        SpecError: no such plan is legal; names the rule that the nearest one breaks.
    """
    outcome = solve(spec, options)
    if outcome.best is not None:
        return outcome.best.plan
    miss = outcome.near_miss
    broken = [rule for rule in miss.broken_rules if rule.rule != MEMORY] if miss else []
    if broken or miss is None or miss.plan is None:
        told = f"{broken[0].rule}: {broken[0].sentence}" if broken else "none is legal"
        raise SpecError(f"plan: {told}")
    return miss.plan
