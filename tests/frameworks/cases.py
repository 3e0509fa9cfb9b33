"""Rows that hold a rule of one framework and rows that break it, on one small model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from meshwright.plans.rule import Rule, RuleOf, broken
from meshwright.rules.legality import framework_degree_rules, framework_rules, rules_of
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.spec import Spec
from tests.helpers.rows import row

Fields = Mapping[str, Any]

MLP, NORMS, MLA_UP_PROJ, WHOLE_MOE = (
    FIELD["recompute_modules"].encoded(name)
    for name in ("mlp", "layernorm", "mla_up_proj", "moe")
)

HOST = {"memory_gib": 512, "memory_gb_s": 200, "pcie_gb_s": 25, "nvme_gib": 4096}
HOST |= {"nvme_gb_s": 5}

EXPERTS = {"moe": {"n_experts": 4, "top_k": 2, "d_ff": 4120}}


NOTHING: Fields = MappingProxyType({})


class Pair(NamedTuple):
    """A row that holds a rule, and one that breaks it and no other."""

    holds: Fields
    breaks: Fields
    model: Fields = NOTHING
    training: Fields = NOTHING
    limits: Fields = NOTHING


def spec(framework: str, pair: Pair) -> Spec:
    """24 heads, 4 KV heads, d_ff 8 x 515, 1,020 = 4 x 255 tokens, 48 sequences."""
    gpu = {"memory_gib": 80, "memory_gb_s": 2_000, "peak_tflops": {"bf16": 300}}
    level = {"name": "node", "size": 16, "gb_s": 300, "latency_us": 5}
    model = {"n_layers": 12, "d_model": 1536, "n_heads": 24, "n_kv_heads": 4}
    model |= {"d_ff": 4120, "vocab": 1000, "tied_embeddings": False}
    model |= pair.model
    return Spec.model_validate(
        {
            "model": model,
            "cluster": {"topology": {"gpu": gpu, "levels": [level], "host": HOST}},
            "training": {"seq_len": 1020, "global_batch": 48, **pair.training},
            "framework": framework,
            "limits": dict(pair.limits),
        }
    )


def own_rules(framework: str) -> set[str]:
    """The rules of a framework that not every plan keeps."""
    every = {listed.rule.name for listed in rules_of("generic")}
    found = {
        listed.rule.name
        for listed in rules_of(framework)
        if isinstance(listed.rule, RuleOf)
    }
    shared = {"offload_supported", "context_balanced", "recompute_supported"}
    return (found - every) | (found & shared)


def names_broken(framework: str, pair: Pair, fields: Fields) -> list[str]:
    found, rows = spec(framework, pair), row(**fields)
    rules: list[Rule] = [*framework_degree_rules(found), *framework_rules(found)]
    return [rule.rule for rule in broken(rules, found, rows)]


def check(framework: str, rule: str, pair: Pair) -> None:
    """One row holds every rule; the other breaks this one alone."""
    assert names_broken(framework, pair, pair.holds) == []
    assert names_broken(framework, pair, pair.breaks) == [rule]
