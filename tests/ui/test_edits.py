"""Edits of a spec: from repairs, from sliders, and back to text."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import SpecError
from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import Repair
from meshwright.ui.question import Edit, edits_of, read_question
from tests.ui.questions import SMALL, TIGHT, Fields


def repair(*edits: str) -> Repair:
    plan = mw.solve(mw.load(SMALL, mw.Spec)).best
    assert plan is not None
    return Repair(edits=edits, step_s=1.0, plan=Plan.model_validate(plan.plan))


def test_repairs_are_read_as_edits() -> None:
    told = repair(
        "zero: 0 -> 1",
        "recompute: none -> selective, recompute_layers: any",
        "limits.tp_min_link_gb_s: 900 -> null",
        "cluster.topology.scale_out: null -> {name: nic, gb_s: 12.5}",
    )
    assert edits_of(told) == [
        Edit("pins.zero", 1),
        Edit("pins.recompute", "selective"),
        Edit("pins.recompute_layers", "any"),
        Edit("limits.tp_min_link_gb_s", None),
        Edit("cluster.topology.scale_out", {"name": "nic", "gb_s": 12.5}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pins": {"tp": 4, "pp": 1, "zero": 0}},
        {"cluster": "h100-nvlink-2", "pins": {}},
        {"cluster": {"gpu": "a100-sxm-80gb", "count": 8}},
        {"rules": [{"that": "tp <= 1"}, {"that": "pp <= 1"}]},
    ],
)
def test_an_applied_repair_solves_as_it_says(change: Fields) -> None:
    spec = {**TIGHT, **change}
    told = mw.explain(read_question({"spec": spec}).spec)
    assert told.status == "infeasible"
    assert told.repairs
    for one in told.repairs:
        edits = [list(edit) for edit in edits_of(one)]
        repaired = read_question({"spec": spec, "edits": edits})
        best = mw.solve(repaired.spec).best
        assert best is not None
        assert best.step_s == pytest.approx(one.step_s, rel=1e-9)


def test_an_edit_below_a_name_keeps_what_it_stands_for() -> None:
    edits = [["cluster.topology.gpu.memory_gib", 40], ["training.seq_len", 1024]]
    asked = read_question({"spec": SMALL, "edits": edits})
    plain = read_question({"spec": SMALL})
    gpu, before = (one.spec.cluster.topology.gpu for one in (asked, plain))
    assert gpu == before.model_copy(update={"memory_gib": 40.0})
    assert asked.spec.training.seq_len == 1024
    assert asked.fields["cluster"]["topology"] == {
        "preset": "dgx-h100",
        "gpu": {"preset": "h100-sxm-80gb", "memory_gib": 40},
    }


@pytest.mark.parametrize("alone", ["8xH100", {"gpu": "h100", "count": 8}])
def test_machines_of_gpus_alone_are_edited(alone: str | Fields) -> None:
    """A slider for 16 GPUs says two machines: it made a cluster of two GPUs."""
    spec = {**SMALL, "cluster": alone}
    more = read_question({"spec": spec, "edits": [["cluster.count", 2]]})
    assert more.spec.cluster.gpus == 16
    assert more.fields["cluster"]["gpu"] == "h100-sxm-80gb"
    edits = [["cluster.topology.gpu", "h200-sxm-141gb"], ["cluster.count", 2]]
    other = read_question({"spec": spec, "edits": edits}).spec.cluster
    assert (other.gpus, other.topology.gpu.name) == (16, "h200-sxm-141gb")


def test_an_edit_of_the_network_keeps_the_rest_of_it() -> None:
    edits = [["cluster.topology.scale_out.gb_s", 12.5]]
    asked = read_question({"spec": SMALL, "edits": edits})
    before = read_question({"spec": SMALL}).spec.cluster.topology.scale_out
    now = asked.spec.cluster.topology.scale_out
    assert before is not None
    assert now == before.model_copy(update={"gb_s": 12.5})


def test_what_is_asked_is_written_as_it_was() -> None:
    assert read_question({"spec": SMALL}).fields == SMALL
    by_name = {**SMALL, "cluster": "dgx-h100"}
    fields = read_question({"spec": by_name}).fields
    assert fields["cluster"] == {"topology": "dgx-h100"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a b",
        "pins..tp",
        "model.n_layers[0]",
        "training[0]",
        "rules[3].that",
        "x" * 9,
    ],
)
def test_paths_of_no_spec_are_refused(path: str) -> None:
    with pytest.raises(SpecError):
        read_question({"spec": SMALL, "edits": [[path, 1]]})


def test_a_rule_is_dropped_by_its_name_or_place() -> None:
    rules = [{"that": "tp <= 2"}, {"that": "pp <= 2", "name": "shallow"}]
    spec = {**SMALL, "rules": rules}
    for name, left in (("rule_1", rules[1:]), ("shallow", rules[:1])):
        asked = read_question({"spec": spec, "edits": [[f"rules.{name}", None]]})
        assert asked.fields["rules"] == left
