"""Specs with open numbers: what they may become, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw

HEAD = "model: llama3-8b\n"
TRAINING = "training: {seq_len: 4096, global_batch: 64}\n"


def written(folder: Path, cluster: str, training: str = TRAINING) -> str:
    """Return the path of a spec with these sections."""
    path = folder / "open.yaml"
    path.write_text(f"{HEAD}cluster:\n  {cluster}\n{training}", encoding="utf-8")
    return str(path)


def choices(**changes: Any) -> mw.OpenSpec:
    """Return a spec with open numbers."""
    cluster = {"topology": "dgx-h100", "count": changes.pop("count", 2)}
    training = {"seq_len": 4096, "global_batch": changes.pop("global_batch", 64)}
    data = {"model": "llama3-8b", "cluster": cluster, "training": training}
    question = mw.load({**data, **changes})
    assert isinstance(question, mw.OpenSpec)
    return question


def test_choices_are_the_specs_with_the_numbers_written_out() -> None:
    question = choices(count=[3, 1], global_batch={"min": 60, "max": 70, "step": 5})
    for choice in question.choices:
        fixed = {
            "model": "llama3-8b",
            "cluster": {"topology": "dgx-h100", "count": choice.cluster.count},
            "training": {
                "seq_len": 4096,
                "global_batch": choice.training.global_batch,
            },
        }
        assert choice == mw.load(fixed)
    pairs = [
        (choice.cluster.count, choice.training.global_batch)
        for choice in question.choices
    ]
    assert pairs == [(n, batch) for n in (1, 3) for batch in (60, 65, 70)]
    assert question.open_fields == ("cluster.count", "training.global_batch")


def test_a_list_of_one_number_is_that_number() -> None:
    question = choices(count=[2])
    assert len(question.choices) == 1
    assert question.open_fields == ()


def test_choices_that_other_fields_rule_out_are_counted() -> None:
    question = choices(count={"min": 1, "max": 4}, pins={"pp": 3})
    assert question.counts == (3,)
    assert question.impossible == 3
    assert "pins.pp" in question.why_impossible


def test_a_spec_whose_choices_are_all_ruled_out_says_why() -> None:
    with pytest.raises(mw.SpecError, match=r"pins.pp: 5 .*does not divide"):
        choices(count=[1, 2], pins={"pp": 5})


def test_machines_may_be_named_alone() -> None:
    question = mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"choices": ["dgx-h100", {"topology": "dgx-a100", "count": 2}]},
            "training": {"seq_len": 4096, "global_batch": 64},
        }
    )
    assert isinstance(question, mw.OpenSpec)
    names = [choice.cluster.topology.name for choice in question.choices]
    assert names == ["dgx-h100", "dgx-a100"]


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ("{topology: dgx-h100, count: {min: 4, max: 1}}", "min 4 is above max 1"),
        ("{topology: dgx-h100, count: {min: 4, mx: 1}}", "whole numbers above 0"),
        ("{topology: dgx-h100, count: {max: 1.5}}", "whole numbers above 0"),
        ("{topology: dgx-h100, count: {max: true}}", "whole numbers above 0"),
        ("{topology: dgx-h100, count: []}", "expected at least one number"),
        ("{topology: dgx-h100, count: [1, x]}", "count.1: 'x': expected a whole"),
        ("{topology: dgx-h100, count: [[1], 2]}", "expected a whole number"),
        ("{topology: dgx-h100, count: {max: 10000}}", "leaves 10,000 numbers open"),
        (f"{{topology: dgx-h100, count: {{max: {10**40}}}}}", "accepted: up to 1,024"),
        ("{topology: dgx-h100, count: {max: 9}, parts: []}", "cluster.parts: given"),
        ("{choices: 3}", "cluster.choices: 3: expected a list of clusters"),
        ("{choices: [[]]}", "expected a list of clusters"),
        ("{choices: [dgx-h100], count: 2}", "cluster.count: given beside"),
        ("{choices: [{topology: dgx-h100, cont: 2}]}", "choices.0.cont: unknown"),
        ("{choices: [{parts: []}]}", "cluster.choices.0.parts: given"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, cluster: str, told: str
) -> None:
    with pytest.raises(mw.SpecError) as caught:
        mw.load(written(tmp_path, cluster))
    text = str(caught.value)
    assert told in text
    assert "open.yaml:3: " in text


def test_a_missing_batch_is_told(tmp_path: Path) -> None:
    cluster = "{topology: dgx-h100, count: [1, 2]}"
    with pytest.raises(mw.SpecError, match=r"training\.global_batch: missing"):
        mw.load(written(tmp_path, cluster, "training: {seq_len: 4096}\n"))


def test_too_many_choices_are_refused(tmp_path: Path) -> None:
    cluster = "{topology: dgx-h100, count: {max: 1000}}"
    training = "training: {seq_len: 4096, global_batch: {max: 1000}}\n"
    with pytest.raises(mw.SpecError, match="1,000,000 choices"):
        mw.load(written(tmp_path, cluster, training))


def test_one_plan_is_of_fixed_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "{topology: dgx-h100, count: [1, 2]}")
    with pytest.raises(mw.SpecError, match=r"open.yaml:3: cluster.count: \[1, 2\]"):
        mw.load(path, mw.Spec)
    question = mw.load(path)
    assert isinstance(question, mw.OpenSpec)
    with pytest.raises(mw.SpecError, match=r"plan: .* leaves cluster.count open"):
        mw.explain(question, "tp=2")
    with pytest.raises(mw.SpecError, match=r"framework_limits: .*cluster.count"):
        mw.solve(question, framework_limits=True)


def test_serving_takes_one_number(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"{HEAD}cluster: {{topology: dgx-h100, count: [1, 2]}}\n"
        "inference: {context: 4096, batch: 1}\n"
    )
    with pytest.raises(mw.SpecError, match="specs with inference take one number"):
        mw.load(str(path))
