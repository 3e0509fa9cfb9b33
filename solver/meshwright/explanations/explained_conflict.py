"""The smallest conflict of a spec, with the values that clash."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.explanations.conflict import Infeasibility
from meshwright.explanations.decisions import MEMORY, decisions_in
from meshwright.explanations.framework_rules import rules_behind
from meshwright.results.outcome import NearMiss
from meshwright.results.outcome_parts import Conflict, Constraint
from meshwright.rules.sums import SPLIT_RULES
from meshwright.spec.spec import Spec


def explained_conflict(
    spec: Spec, infeasibility: Infeasibility, miss: NearMiss | None
) -> Conflict:
    """Return a conflict with the values that clash in the plan that comes closest."""
    names = infeasibility.decisions.names_of(infeasibility.conflict)
    named = [decision for decision in decisions_in(spec) if decision.rule in names]
    return Conflict(
        rules=tuple(_with_state(spec, decision, miss) for decision in named)
        + tuple(
            _as_asked(rule, miss)
            for rule in rules_behind(spec, names) or _split_rules(names, miss)
        ),
        is_minimal=True,
        witness=miss.description if miss else "",
    )


def _split_rules(names: Sequence[str], miss: NearMiss | None) -> tuple[Constraint, ...]:
    """Return the rules on splits behind pinned stages, as the nearest miss tells."""
    if miss is None or not {"pins.layers", "pins.recompute_layers"} & {*names}:
        return ()
    return tuple(
        Constraint(rule=broken.rule, sentence=broken.sentence)
        for broken in miss.broken_rules
        if broken.rule in SPLIT_RULES
    )


def _as_asked(rule: Constraint, miss: NearMiss | None) -> Constraint:
    """Return a rule with the values of the plan asked for, if that breaks it too."""
    told = (
        {broken.rule: broken.arithmetic for broken in miss.broken_rules} if miss else {}
    )
    return rule.model_copy(
        update={"arithmetic": told.get(rule.rule) or rule.arithmetic}
    )


def _with_state(spec: Spec, decision: Constraint, miss: NearMiss | None) -> Constraint:
    """Return a decision; the limit on memory also says what the state alone takes."""
    if decision.rule != MEMORY or miss is None or miss.state_gib is None:
        return decision
    gpus = spec.cluster.gpus
    sentence = (
        f"{decision.sentence}, {gpus * spec.usable_gib:,.0f} GiB of all {gpus:,}; "
        f"weights, gradients and optimizer of the plan that comes closest take "
        f"{miss.state_gib:,.0f}"
    )
    return decision.model_copy(update={"sentence": sentence})
