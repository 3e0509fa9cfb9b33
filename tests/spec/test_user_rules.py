"""Rules of the user: their names, their kinds, and what is said of mistakes."""

from __future__ import annotations

import time

import pytest

import meshwright as mw
from meshwright.reading.expression import FUNCTIONS
from meshwright.spec.user_rules import KINDS, read_rule

SPEC = "llama3-8b-2xh100-nvlink"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tpp <= 1", "at character 1: no value 'tpp'; did you mean tp? accepted: tp,"),
        ("recompute == 'ful'", "at character 14: recompute is one of 'none', "
         "'selective', 'full', 'full-cpu'; did you mean 'full'?"),
        ("memory_gib < 3", "expected max(memory_gib), min(memory_gib) or sum("),
        ("tp", "at character 1: is a number; expected a comparison"),
        ("tp < 'a'", "at character 6: tp is a number, 'a' a word"),
        ("max(tp) < 1", "at character 1: expected max of layers"),
        ("recompute < 'full'", "recompute is a word; expected == or !="),
        ("tp in 3", "at character 7: expected a list behind `in`"),
        ("tp in (1, pp)", "at character 11: expected numbers or 'text' in a list"),
        ("not tp", "at character 5: tp is a number; expected a comparison"),
        ("tp[0] == 1", "'tp[0]' is no value; layers[0] is the first stage"),
        ("zero + 'a' < 1", "at character 8: 'a' is a word; expected a number"),
    ],
)  # fmt: skip
def test_mistakes_name_the_character_and_what_is_accepted(text: str, told: str) -> None:
    with pytest.raises(mw.SpecError) as error:
        mw.load(SPEC, rules=[text])
    assert str(error.value).startswith("rules: rules.0.that: ")
    assert told in str(error.value)


def test_rules_have_names() -> None:
    found = {"name": "own", "that": "pp == 1"}
    spec = mw.load(SPEC, mw.Spec, rules=["tp == 1", found, "cp == 1"])
    assert [rule.name for rule in spec.rules] == ["rule_1", "own", "rule_3"]
    with pytest.raises(mw.SpecError, match="'own' is the name of another rule"):
        mw.load(SPEC, rules=[found, found])


def test_prices_must_be_known() -> None:
    data = {"model": "llama3-8b", "training": {"seq_len": 512, "global_batch": 8}}
    gpu = {"name": "own", "memory_gib": 80, "memory_gb_s": 900,
           "peak_tflops": {"bf16": 70}}  # fmt: skip
    level = {"name": "a", "size": 2, "gb_s": 10.0, "latency_us": 0.5}
    data["cluster"] = {"topology": {"gpu": gpu, "levels": [level]}}
    rules = ["usd_per_mtoken < 1"]
    with pytest.raises(mw.SpecError, match="no price is known"):
        mw.load(data, rules=rules)
    assert mw.load(data | {"run": {"gpu_hour_price": 2}}, mw.Spec, rules=rules).rules


def test_deployments_have_no_rules_yet() -> None:
    with pytest.raises(mw.SpecError, match="rules: not modelled: rules of your own"):
        mw.load("serve-llama3-8b-1xa100", rules=["tp == 1"])


def test_nested_comparisons_take_no_time() -> None:
    text = "tp == 1"
    for _ in range(35):
        text = f"(1==1)==({text})==(1==1)"
    before = time.process_time()
    read_rule(text)
    assert time.process_time() - before < 1


def test_no_value_has_the_name_of_a_function() -> None:
    assert not {*KINDS} & {*FUNCTIONS}
