"""Any plan that is asked about has an answer, and the solver agrees with it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import yaml
from pydantic import ValidationError

import meshwright as mw
from meshwright.api.options import read_asked
from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_pins
from meshwright.report.explain import explain_sections
from meshwright.results.explanation import Explanation
from meshwright.spec.spec import Spec
from tests.helpers.tight import tight_data
from tests.laws.law import Checks, Data, Law

PLANS: dict[str, list[Any]] = {
    "tp": [1, 2, 3],
    "pp": [1, 2, 3],
    "vpp": [1, 2],
    "cp": [1, 2],
    "ep": [1, 2],
    "dp": [1, 2, 3],
    "dp_replicate": [1, 2],
    "zero": [0, 1, 2, 3],
    "micro_batch": [1, 2, 4],
    "microbatches": [1, 2, 4],
    "sequence_parallel": [True, False],
    "recompute": ["none", "full", "selective"],
    "recompute_modules": ["mlp", "layernorm"],
    "recompute_segment": [1, 2],
    "recompute_layers": ["all", "any", [1, 1], [0, 2]],
    "layers": [[1, 1], [2], [2, 1, 1]],
    "schedule": ["1f1b", "gpipe", "zb-h1"],
    "offload": ["none", "optimizer", "gradients", "parameters"],
    "precision": ["bf16", "fp8"],
}
"""What a plan may ask for, sense or not."""

MOST_ASKED = 4


def an_answer_for_every_plan(data: Data, choice: Random) -> Checks:
    """Ask for random fields of a plan, print the answer, and solve what was asked."""
    try:
        spec = Spec.model_validate(data)
    except ValidationError:
        return
    names = choice.sample(sorted(PLANS), choice.randint(1, MOST_ASKED))
    asked = {name: choice.choice(PLANS[name]) for name in names}
    text = ",".join(f"{name}={json.dumps(value)}" for name, value in asked.items())
    try:
        pins = read_asked(text, spec)
    except SpecError:
        return
    told = mw.explain(spec, pins)
    assert isinstance(told, Explanation)
    yield bool(explain_sections(told)), f"{text}: nothing is printed"
    yield bool(json.dumps(told.to_dict())), f"{text}: no JSON"
    best = mw.solve(with_pins(spec, pins)).best
    yield told.fits == (best is not None), f"{text}: {told.status} for {best}"
    yield from _keeps_what_is_given(told, asked)


def _keeps_what_is_given(told: Explanation, asked: dict[str, Any]) -> Checks:
    """Hold what is said to be given against what was asked for."""
    for one in told.judged:
        is_number = asked.get(one.name) not in (None, "all", "any")
        if one.origin == "given" and is_number:
            is_same = yaml.safe_load(one.value) == asked[one.name]
            yield is_same or one.value == asked[one.name], f"{one} of {asked}"


LAW = Law(
    "asked plans",
    "any plan that is asked about has an answer, and the solver agrees with it",
    tight_data(),
    an_answer_for_every_plan,
    tested=10,
)
