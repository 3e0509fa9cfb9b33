"""Random rules of the user, which often bind: their numbers are near the optimum's."""

from __future__ import annotations

from random import Random
from typing import Any

from meshwright.check.check import plan_values
from meshwright.cost.job import make_job
from meshwright.planner.solve import solve
from meshwright.spec.spec import Spec

DECISIONS = (
    "tp {order} {small}", "pp in (1, {small})", "zero >= {low}", "dp % 2 == 0",
    "micro_batch * tp <= {small}", "recompute != 'full'", "sequence_parallel == false",
    "offload in ('none', 'optimizer')", "not (tp == 2 and pp == {small})",
    "max(tp, pp) <= {small} < 9", "dp_shard / dp_replicate >= {low}",
    "schedule == '1f1b' or zero == {low}", "microbatches > pp",
)  # fmt: skip
"""Rules that skeletons decide."""

SPLITS = (
    "max(layers) - min(layers) <= {low}", "layers[0] < layers[-1] or pp == 1",
    "max(layers) != {small}", "layers[0] in (1, {small})", "min(layers) >= {low}",
    "sum(recompute_layers) <= {small}", "recompute_layers[0] == 0 or tp > 1",
    "max(memory_gib) <= {memory_gib}", "max(memory_gib) <= {memory_gib} or zero >= 1",
    "memory_gib[0] <= memory_gib[-1] * {factor}", "min(memory_gib) > {memory_gib}",
    "max(memory_gib - host_gib) <= {memory_gib}", "sum(host_gib) <= {low}",
    "max(layers) * max(layers) <= {small} * 2", "not max(layers) > {small}",
    "max(memory_gib) / min(memory_gib) <= {factor}",
)  # fmt: skip
"""Rules that splits decide."""

TIMES = (
    "step_s >= {step_s}", "{part} <= {share} * step_s", "{part} >= {share} * step_s",
    "{part} + parts.bubble <= {value} or tp == 1", "max(links) <= {links}",
    "links_are", "tokens_per_s <= {tokens_per_s}", "{part} / step_s <= {share}",
    "{part} <= {factor} * {other}", "{part} * parts.compute <= {value} * step_s",
)  # fmt: skip
"""Rules that times decide."""


def random_rules(spec: Spec, choice: Random, most: int = 2) -> list[dict[str, Any]]:
    """Return one to a few random rules for a spec; none if it has no plan."""
    best = solve(spec).best
    if best is None:
        return []
    values = plan_values(make_job(spec), best.plan)
    templates = (*DECISIONS, *SPLITS, *SPLITS, *TIMES, *TIMES)
    rules = []
    for _ in range(choice.randint(1, most)):
        text = choice.choice(templates).replace("links_are", "min(links) <= {links}")
        factor = choice.choice([0.5, 0.9, 0.98, 1.0, 1.02, 1.2])
        part, other = choice.choices(
            [name for name in values.numbers if name.startswith("parts.")], k=2
        )
        known = values.numbers
        rules.append(
            {
                "that": text.format(
                    order=choice.choice(["<=", ">=", "==", "!=", "<", ">"]),
                    small=choice.randint(1, 4),
                    low=choice.randint(0, 2),
                    memory_gib=f"{factor * max(values.stages['memory_gib']):.6g}",
                    factor=factor,
                    step_s=f"{factor * known['step_s']:.6g}",
                    tokens_per_s=f"{factor * known['tokens_per_s']:.6g}",
                    links=f"{factor * max(values.stages['links']):.6g}",
                    part=part,
                    other=other,
                    share=f"{factor * known[part] / known['step_s']:.6g}",
                    value=f"{factor * known[part]:.6g}",
                )
            }
        )
    return rules
