"""The rules of its framework that a plan breaks, as refusals.

The lattice holds no such plan, but one can be read from a file.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.refusals import Refusal
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_row
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.spec.spec import Spec
from meshwright.topology.fabric_builder import build_fabric


def rule_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield a refusal for every rule, beside pins and limits, that a plan breaks."""
    rows, _ = to_row(build_fabric(spec.cluster), plan)
    for rule in (*framework_degree_rules(spec), *framework_rules(spec)):
        if not rule.holds(spec, rows)[0]:
            yield Refusal(rule.name, rule.told(spec, rows), rule.source)
