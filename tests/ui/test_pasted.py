"""What is pasted is told by its content, and becomes fields of the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import SpecError
from meshwright.imports.logs.training_log import read_log
from meshwright.ui.question import Pasted, Question, paste, read_question
from tests.ui.questions import SMALL

DATA = Path(__file__).parents[1] / "data"


def pasted(file: str, gpu: str | None = None, **change: str) -> tuple[Pasted, Question]:
    """Return what a file of the tests is read as, and the spec with it."""
    present = read_question({"spec": {**SMALL, **change}})
    text = (DATA / file).read_text(encoding="utf-8")
    found = paste(text, present.fields, present.spec, gpu)
    return found, read_question({"spec": found.fields})


def test_a_config_json_is_the_model() -> None:
    found, asked = pasted("config.json")
    assert found.kind == "hf"
    by_file = mw.load({**SMALL, "model": str(DATA / "config.json")})
    assert asked.spec.model.n_layers == by_file.model.n_layers
    assert asked.spec.cluster == read_question({"spec": SMALL}).spec.cluster


def test_a_matrix_is_the_machine() -> None:
    found, asked = pasted("topo.txt", gpu="a100-sxm-80gb")
    assert found.kind == "nvidia_smi"
    cluster = {"nvidia_smi": str(DATA / "topo.txt"), "gpu": "a100-sxm-80gb"}
    by_file = mw.load({**SMALL, "cluster": cluster}, mw.Spec)
    assert asked.spec.cluster.topology.links == by_file.cluster.topology.links
    assert asked.spec.cluster.topology.scale_out is not None, "so that it can grow"


def test_a_matrix_needs_its_gpu() -> None:
    with pytest.raises(SpecError, match="does not say which GPU"):
        pasted("topo.txt")


def test_a_fabric_joins_the_machine_that_is_there() -> None:
    found, asked = pasted("topology.conf")
    assert found.kind == "slurm"
    cluster = {"machine": "dgx-h100", "slurm": str(DATA / "topology.conf")}
    by_file = mw.load({**SMALL, "cluster": cluster}, mw.Spec)
    assert asked.spec.cluster.gpus == by_file.cluster.gpus
    assert asked.spec.cluster.levels == by_file.cluster.levels


def test_a_launch_is_framework_job_and_pins() -> None:
    found, asked = pasted("pretrain.sh", model="llama2-70b")
    assert found.kind == "megatron"
    assert asked.spec.framework == "megatron"
    given = {name for name, value in asked.spec.pins if value is not None}
    assert {"tp", "pp", "micro_batch"} <= given


def test_a_launch_that_names_its_model_brings_it() -> None:
    found, asked = pasted("imports/trl.1.txt", model="llama3-8b")
    assert found.fields["model"] == "qwen3-8b"
    assert asked.spec.model.details.hub == "Qwen/Qwen3-8B"
    assert any("taken as the bundled qwen3-8b" in note for note in found.notes)


def test_a_log_is_the_plan_that_ran() -> None:
    text = (DATA / "logs/megatron_log.2.txt").read_text(encoding="utf-8")
    found = paste(text, SMALL, None, None)
    assert found.kind == "megatron_log"
    assert found.fields["pins"]["tp"] == read_log(text, "").launch.value("tp")
    assert any(note.startswith("measured: ") for note in found.notes)


def test_a_spec_replaces_the_spec() -> None:
    text = "model: llama3-8b\ncluster: dgx-a100\ntraining: {seq_len: 512}\n"
    assert paste(text, SMALL, None, None).fields == {
        "model": "llama3-8b",
        "cluster": "dgx-a100",
        "training": {"seq_len": 512},
    }


def test_a_topology_replaces_the_cluster() -> None:
    text = (DATA.parents[1] / "topologies" / "h100-nvlink-2.yaml").read_text()
    found = paste(text, SMALL, None, None)
    assert found.kind == "topology"
    assert read_question({"spec": found.fields}).spec.cluster.gpus == 2


@pytest.mark.parametrize("text", ["hello", "[1, 2]", "a: 1", "{", "\x00", "&a [*a]"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        paste(text, SMALL, None, None)
