"""Reasons why a target does not launch a plan, each with the check that would fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.errors import SpecError
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_row
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.topology.routed_fabric import build_fabric


@dataclass(frozen=True)
class Refusal:
    """A field that a framework cannot be told, and the check that would fail."""

    field: str
    sentence: str
    check: str
    """File and name, in the framework's source, of what rejects it or has no word."""

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.field} {self.sentence} ({self.check})"


class NotLaunchableError(SpecError):
    """A plan that the framework cannot launch as it is printed."""

    def __init__(self, title: str, refusals: Iterable[Refusal]) -> None:
        """Say which fields, and which checks of the framework would fail."""
        self.refusals = tuple(refusals)
        lines = "\n  ".join(map(str, self.refusals))
        super().__init__(f"plan: cannot be launched by {title} as printed:\n  {lines}")


def rule_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield a refusal for every rule, beside pins and limits, that a plan breaks."""
    rows, _ = to_row(build_fabric(spec.cluster), plan)
    for rule in (*framework_degree_rules(spec), *framework_rules(spec)):
        if not rule.holds(spec, rows)[0]:
            yield Refusal(rule.name, rule.told(spec, rows), rule.source)


def layer_refusals(model: Model, title: str) -> Iterator[Refusal]:
    """Yield the fields of a model that no file for a program says."""
    moe, mla = model.moe, model.mla
    said = {
        "pattern": len(model.order.names) > 1,
        "mixer": model.mixer != "attention",
        "attention_window": model.attention_window > 0,
        "attention_chunk": model.attention_chunk > 0,
        "output_gate": model.output_gate,
        "attention_sinks": model.attention_sinks,
        "keys_are_values": model.keys_are_values,
        "head_bias": model.head_bias,
        "bias": model.bias in ("attention", "mlp"),
        "mla.indexer": mla is not None and mla.indexer is not None,
        "moe.latent_d": moe is not None and moe.latent_d > 0,
        "moe.own_norms": moe is not None and moe.own_norms > 0,
        "moe.shared_gate": moe is not None and moe.shared_gate,
    }
    for name, is_there in said.items():
        if is_there:
            sentence = f"is not written for {title} yet"
            yield Refusal(f"model.{name}", sentence, "Meshwright's exports")
