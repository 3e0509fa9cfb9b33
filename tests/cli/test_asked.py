"""Questions without a spec: files told by content, stdin, assumptions, saved specs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from meshwright.errors import SpecError
from meshwright.loading.asked import Asked, ask, cluster_of, gpu_in, saved
from meshwright.loading.load import load_spec
from tests.helpers.command import run

MATRIX = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV12    PXB     0-31            0
GPU1    NV12     X      PXB     0-31            0
NIC0    PXB     PXB      X
"""

LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)
"""

TREE = "SwitchName=leaf Nodes=n[1-4]\n"

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 8000,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "named.txt").write_text(LISTED + MATRIX)
    (tmp_path / "tree.conf").write_text(TREE)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_files_are_told_by_their_content(folder: Path) -> None:
    found = cluster_of(Asked(cluster="topo.txt", gpu="a100-80gb"))
    assert found == {"nvidia_smi": "topo.txt", "gpu": "a100-80gb"}
    found = cluster_of(Asked(cluster="tree.conf", machine="dgx-a100"))
    assert found == {"machine": "dgx-a100", "slurm": "tree.conf"}
    assert cluster_of(Asked(cluster="dgx-h100", count=4)) == {
        "topology": "dgx-h100", "count": 4,
    }  # fmt: skip


def test_a_gpu_is_read_where_the_file_names_it(folder: Path) -> None:
    assert cluster_of(Asked(cluster="named.txt"))["gpu"] == "a100-sxm-80gb"
    assert (
        gpu_in(LISTED.replace("A100-SXM4-80GB (UUID: GPU-2", "H200 (UUID: 2")) is None
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(cluster="topo.txt"), "--gpu: missing; the file does not say"),
        (Asked(cluster="tree.conf"), "--machine: missing; the file joins machines"),
        (Asked(cluster="config.json"), "of no known kind; accepted: a topology"),
    ],
)
def test_what_a_file_does_not_say_is_asked_for(
    asked: Asked, told: str, folder: Path
) -> None:
    with pytest.raises(SpecError, match=told):
        cluster_of(asked)


def test_machines_of_a_file_are_joined_by_its_nics(folder: Path) -> None:
    notes: list[str] = []
    asked = Asked("config.json", "topo.txt", gpu="a100-80gb", count=2)
    spec = load_spec(ask(None, asked, notes), notes=notes)
    assert spec.cluster.gpus == 4
    assert spec.cluster.topology.scale_out is not None
    assert spec.cluster.topology.scale_out.gb_s == 25.0
    assert notes[0].startswith("assumed NICs of 200 Gbit/s")
    assert "assumed sequences of 4,096 tokens; say --seq-len" in notes


def test_a_saved_question_asks_the_same(folder: Path) -> None:
    asked = Asked("config.json", "topo.txt", gpu="a100-80gb", seq_len=512, batch=8)
    document = ask(None, asked, [])
    (folder / "spec.yaml").write_text(saved(document, folder / "spec.yaml"))
    again = load_spec("spec.yaml")
    assert again == load_spec(document)
    data = yaml.safe_load((folder / "spec.yaml").read_text())
    assert (data["model"], data["cluster"]["nvidia_smi"]) == ("config.json", "topo.txt")


def test_options_change_a_spec(folder: Path) -> None:
    asked = Asked(model="config.json", batch=16, count=3)
    spec = load_spec(ask("llama3-70b-16xh100", asked, []))
    assert (spec.model.d_model, spec.training.global_batch) == (512, 16)
    assert (spec.cluster.gpus, spec.training.seq_len) == (24, 8192)


def test_without_a_spec_both_are_needed() -> None:
    with pytest.raises(SpecError, match="--model and --cluster: missing"):
        ask(None, Asked(), [])
    with pytest.raises(SpecError, match=r"^--cluster: missing"):
        ask(None, Asked(model="llama3-8b"), [])


def test_init_writes_a_spec_that_loads(folder: Path) -> None:
    answers = "llama3-8\nconfig.json\ntopo.txt\n1\na100-80gb\nmagatron\n\n512 8\n"
    result = run("init", "-o", "new.yaml", stdin=answers)
    assert result.code == 0, result.stderr
    assert "did you mean llama3-8b" in result.stderr
    assert "'magatron': expected one of" in result.stderr
    spec = load_spec("new.yaml")
    assert (spec.framework, spec.training.seq_len) == ("megatron", 512)
    again = run("init", "-o", "new.yaml", stdin=answers)
    assert (again.code, again.stdout) == (2, "")
    assert "is there already" in again.stderr


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ("\n" * 9, "Model (a name such as llama3-8b, or a config.json): missing"),
        (".\n" * 9, "'.': is a folder"),
        ("llama3-8b\n" + "\n" * 9, "Machine or topology (a name such as dgx-h100"),
        ("llama3-8b\nno-such\n", "'no-such' is neither a file nor a bundled name"),
        ("llama3-8b\nconfig.json\n", "config.json: of no known kind"),
        ("llama3-8b\ntopo.txt\n1\n\n\n", "Its GPU (a name such as h100-sxm-80gb)"),
        ("llama3-8b\ntopo.txt\n1\nh9000\n", "'h9000' is neither a file nor a"),
        ("broken.json\ndgx-h100\n\n\n\n", "broken.json"),
        ("llama3-8b\ndgx-h100\n0\n", "'0': expected a whole number above 0"),
        ("llama3-8b\ndgx-h100\n4\nmegatron\n4096\n", "expected two whole numbers"),
        ("", "missing; no spec was written"),
    ],
)
def test_init_writes_nothing_that_does_not_load(
    answers: str, told: str, folder: Path
) -> None:
    (folder / "broken.json").write_text("{}")
    result = run("init", "-o", "new.yaml", stdin=answers)
    assert (result.code, result.stdout) == (2, "")
    assert told in result.stderr
    assert not (folder / "new.yaml").exists()


@pytest.mark.parametrize(
    ("machine", "precision"), [("dgx-1v", "fp16"), ("dgx-h100", "bf16")]
)
def test_init_takes_a_precision_that_the_gpu_has(
    machine: str, precision: str, folder: Path
) -> None:
    answers = f"llama3-8b\n\n{machine}\n\n\n\n"
    (folder / "below").mkdir()
    result = run("init", "-o", "below/new.yaml", stdin=answers)
    assert result.code == 0, result.stderr
    assert "expected an answer" in result.stderr
    spec = load_spec("below/new.yaml")
    assert spec.training.precision == precision


def test_init_asks_for_the_machines_that_a_file_joins(folder: Path) -> None:
    (folder / "a: b.json").write_text(json.dumps(CONFIG))
    answers = "a: b.json\ntree.conf\n\ndgx-a100\n\n\n"
    result = run("init", "-o", "new.yaml", stdin=answers)
    assert result.code == 0, result.stderr
    spec = load_spec("new.yaml")
    assert (spec.cluster.gpus, spec.model.d_model) == (32, 512)


def test_the_shell_asks_in_one_line(folder: Path) -> None:
    words = ["--model", "config.json", "--cluster", "-", "--gpu", "a100-80gb"]
    words += ["--framework", "torchtitan", "--seq-len", "512", "--batch", "8"]
    result = run("solve", *words, "-v", "--save", "kept.yaml", stdin=MATRIX)
    assert result.code == 0, result.stderr
    assert "has 18,682,368 parameters" in result.stdout
    assert (folder / "kept.txt").read_text() == MATRIX
    assert load_spec("kept.yaml").cluster.gpus == 2
