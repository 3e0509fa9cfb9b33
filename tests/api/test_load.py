"""What a spec may be given as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwright as mw

TEXT = """
model: llama3-8b
cluster: h100-nvlink-2
training: {seq_len: 8192, global_batch: 32}
"""

FIELDS: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": "h100-nvlink-2",
    "training": {"seq_len": 8192, "global_batch": 32},
}


def test_text_fields_and_files_are_one_spec(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(TEXT, encoding="utf-8")
    flow = "{model: llama3-8b, cluster: h100-nvlink-2, "
    flow += "training: {seq_len: 8192, global_batch: 32}}"
    first = mw.load(TEXT)
    assert mw.load(flow) == mw.load(FIELDS) == first
    assert mw.load(file) == mw.load(str(file)) == first


def test_fields_are_left_as_they_are() -> None:
    before = repr(FIELDS)
    mw.load(FIELDS, pins={"tp": 2})
    assert repr(FIELDS) == before


def test_pins_are_added() -> None:
    spec = mw.load(FIELDS, mw.Spec, pins={"tp": 2, "zero": [0, 1]})
    assert spec == mw.load(FIELDS, mw.Spec, pins=["tp=2", "zero=[0,1]"])
    assert spec.pins.tp is not None


def test_a_spec_says_whether_it_trains_or_serves() -> None:
    name = "serve-llama3-8b-1xa100"
    assert isinstance(mw.load(name), mw.ServingSpec)
    assert isinstance(mw.load(name, mw.ServingSpec), mw.ServingSpec)
    with pytest.raises(mw.SpecError, match="for specs with training"):
        mw.load(name, mw.Spec)
    with pytest.raises(mw.SpecError, match="has training; expected inference"):
        mw.load(FIELDS, mw.ServingSpec)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (TEXT.replace("32", "x"), "^text:4: training.global_batch: 'x': expected"),
        ({**FIELDS, "modle": 1}, "^fields: modle: "),
        ({**FIELDS, "pins": 1}, "^fields: pins: 1"),
        ({}, "^fields: model: missing"),
        ("no-such-spec", "'no-such-spec' is neither a file nor a bundled name"),
        ("{model: [", "^text:1: not valid YAML"),
    ],
)
def test_errors_name_the_place(source: Any, told: str) -> None:
    with pytest.raises(mw.SpecError, match=told):
        mw.load(source)


def test_a_wrong_pin_names_the_pins() -> None:
    with pytest.raises(mw.SpecError, match=r"^pins: pins.tpp: "):
        mw.load(FIELDS, pins={"tpp": 2})


def test_what_files_leave_out_is_noted() -> None:
    topo = Path(__file__).parents[1] / "data" / "topo.txt"
    fields = {**FIELDS, "cluster": {"nvidia_smi": str(topo), "gpu": "a100-sxm-80gb"}}
    notes: list[str] = []
    mw.load(fields, notes=notes)
    assert notes
    assert all(note.startswith("topo.txt: ") for note in notes)


def test_a_mapping_changes_fields_of_presets() -> None:
    """As in a file; a mapping has no lines that fields could be said to stand in."""
    topology = {"preset": "dgx-h100", "gpu": {"preset": "h100-sxm-80gb", "tdp_w": 500}}
    fields = {
        "model": {"preset": "llama3-8b", "n_layers": 16},
        "cluster": {"topology": topology},
        "training": {"seq_len": 4096, "global_batch": 64},
    }
    spec = mw.load(fields, mw.Spec)
    gpu = spec.cluster.topology.gpu
    assert (spec.model.n_layers, spec.model.d_model) == (16, 4096)
    assert (gpu.name, gpu.tdp_w) == ("h100-sxm-80gb", 500)
    wrong = {**fields, "model": {"preset": "llama3-8b", "n_layers": 0}}
    with pytest.raises(mw.SpecError, match=r"model\.n_layers: 0: expected"):
        mw.load(wrong, mw.Spec)


ASKED: dict[str, Any] = {"model": "gpt-1.3b", "cluster": "h100-nvlink-2", "batch": 64}


def test_a_question_needs_no_spec() -> None:
    spec = mw.load(**ASKED, gpus=2, framework="fsdp", seq_len=2048, pins={"tp": 1})
    assert isinstance(spec, mw.Spec)
    assert (spec.cluster.gpus, spec.framework) == (2, "fsdp")
    assert spec == mw.load(
        {
            "model": "gpt-1.3b",
            "cluster": {"topology": "h100-nvlink-2", "count": 1},
            "framework": "fsdp",
            "training": {"seq_len": 2048, "global_batch": 64},
            "pins": {"tp": 1},
        }
    )


def test_gpus_are_turned_into_machines() -> None:
    machines: dict[str, Any] = {"model": "llama3-8b", "cluster": "dgx-h100"}
    spec = mw.load(**machines, gpus=24)
    assert isinstance(spec, mw.Spec)
    assert spec.cluster.count == 3
    refused: list[tuple[dict[str, Any], str]] = [
        ({"gpus": 12}, "^gpus 12: expected a multiple of 8, the GPUs of dgx-h100"),
        ({"gpus": 0}, "^gpus 0: expected a multiple of 8"),
        ({"gpus": 8, "count": 1}, "^gpus 8: given beside count; keep one"),
        ({"count": "x"}, "^count x: expected whole numbers above 0"),
    ]
    for wrong, told in refused:
        with pytest.raises(mw.SpecError, match=told):
            mw.load(**machines, **wrong)
    parts = mw.load("llama2-13b-8xh100-8xa100", mw.Spec)
    with pytest.raises(mw.SpecError, match="gpus 8: not for a cluster of parts"):
        mw.load(parts, gpus=8)


@pytest.mark.parametrize(
    "name", ["gpt-1.3b-2xh100-nvlink", "llama3-8b-512xa100-degraded"]
)
def test_a_spec_that_is_loaded_takes_pins(name: str) -> None:
    loaded = mw.load(name, mw.Spec)
    assert mw.load(loaded) is loaded
    again = mw.load(loaded, mw.Spec, pins={"micro_batch": 1}, rules=["pp <= 2"])
    assert again == mw.load(name, pins={"micro_batch": 1}, rules=["pp <= 2"])


def test_functions_read_what_they_are_asked_of() -> None:
    quick: dict[str, Any] = {"by_kind": False, "safety": False}
    name = "gpt-1.3b-2xh100-nvlink"
    outcome = mw.solve(mw.load(name, mw.Spec), **quick)
    assert mw.solve(name, **quick) == outcome
    pinned = mw.solve(name, pins={"tp": 2}, **quick)
    assert pinned.best is not None
    assert pinned.best.plan.tp == 2
    with pytest.raises(mw.SpecError, match=r"^arguments: training.seq_len: 4096 is"):
        mw.solve(**ASKED)
    assert mw.solve(**ASKED, seq_len=2048, **quick).status == "optimal"
    assert mw.explain(name, "tp=2").fits
    assert [plan.name for plan in mw.compare(name, ["tp=2"]).plans] == ["tp=2"]
    assert mw.export(name, outcome).target == "megatron"
