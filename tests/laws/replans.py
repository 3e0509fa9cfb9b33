"""A plan costs the same however it is asked about again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

from meshwright.check.check import broken_rules, check
from meshwright.explanations.decisions import with_pins
from meshwright.explanations.explain import Explainer
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from tests.laws.asked import Answer, ask, job_of, pinned, pins_of, question
from tests.laws.law import Checks, Data, Law
from tests.laws.specs import every_data

EXPLAINED = 0.2
"""Share of the specs whose plan is explained too: that is many solves."""


def plans_cost_the_same_again(data: Data, choice: Random) -> Checks:
    """Pin a plan in full, read it from its texts, explain it and check it alone."""
    first = ask(data, top=1 if "inference" in data else 2)
    if first.plan is None or first.best is None:
        return
    again = ask(pinned(data, pins_of(first.plan)))
    told = f"pinned in full: {again.best} for {first.best}"
    yield again.best == first.best, told
    found = type(first.plan).model_validate_json(first.plan.model_dump_json())
    yield found == first.plan, f"from its JSON: {found} for {first.plan}"
    spec = question(data)
    if isinstance(spec, Spec):
        yield from _alone(spec, first)
        for priced in (first.best, *first.others):
            assert isinstance(priced, PricedPlan)
            is_explained = choice.random() < EXPLAINED
            yield from _from_texts(data, first, priced, is_explained)


def _alone(spec: Spec, answer: Answer) -> Checks:
    """Price the plans of an answer by the checker, which knows no solver."""
    job = job_of(spec, answer)
    for priced in (answer.best, *answer.others):
        assert isinstance(priced, PricedPlan)
        found = check(job, priced.plan)
        told = f"checked: {found.step_s!r} s, {found.peak_gib!r} GiB for {priced}"
        yield found == priced, told
        broken = broken_rules(job, priced.plan)
        yield not broken, f"checked: {broken} broken by {priced.plan}"


def _from_texts(
    data: Data, answer: Answer, priced: PricedPlan, is_explained: bool
) -> Checks:
    """Read a plan from an answer's JSON and from words, ask for it, and explain it."""
    spec = question(data)
    assert isinstance(answer.outcome, Outcome)
    assert isinstance(spec, Spec)
    full = Pins.model_validate(pins_of(priced.plan))
    words = ",".join(f"{k}={json.dumps(v)}" for k, v in pins_of(priced.plan).items())
    yield read_plan(words) == full, f"from words: {words}"
    pins = _from_answer(answer.outcome.model_copy(update={"best": priced}))
    found = ask(with_pins(spec, pins))
    yield found.best == priced, f"from an answer: {found.best} for {priced}"
    if is_explained:
        told = Explainer(Options()).plan(spec, full)
        yield told.fits and told.plan == priced, f"explained: {told.plan} for {priced}"


def _from_answer(outcome: Outcome) -> Pins:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        path.write_text(outcome.to_json(), encoding="utf-8")
        return read_plan(str(path))


LAW = Law(
    "replans",
    "a plan that is pinned, read, explained or checked again costs the same",
    every_data(),
    plans_cost_the_same_again,
    tested=6,
)
