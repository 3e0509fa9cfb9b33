"""Questions without a spec: files told by content, stdin, assumptions, saved specs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import catalog
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


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(machine="x"), "--machine x: only beside --cluster, a file of switches"),
        (Asked(gpu="x", machine="y"), "--machine y: only beside --cluster"),
        (Asked(cluster="dgx-h100", gpu="x"), "--gpu x: not beside --cluster dgx-h100"),
        (Asked(cluster="4xRTX3090", machine="x"), "--machine x: not beside --cluster"),
    ],
)
def test_what_would_change_nothing_is_refused(asked: Asked, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        ask("llama3-8b-2xh100-nvlink", asked, [])


@pytest.mark.parametrize(
    "option",
    [
        "model",
        "cluster",
        "gpu",
        "machine",
        "count",
        "framework",
        "seq-len",
        "precision",
    ],
)
def test_an_empty_value_is_refused_and_not_left_out(option: str) -> None:
    """As a shell has it whose variable is not set."""
    result = run("solve", "llama3-8b-2xh100-nvlink", f"--{option}", "")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: --{option}")


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


def answer(*words: str) -> dict[str, Any]:
    """Return the JSON of a command that finds a plan."""
    done = run(*words, "--format", "json")
    assert done.code == 0, done.stderr
    return {**json.loads(done.stdout), "notes": done.stderr}


SMALL = ("--model", "gpt-1.3b", "--seq-len", "2k", "--batch", "16")


@pytest.mark.parametrize(
    ("words", "gpus", "note"),
    [
        (("--gpu", "rtx-4090", "--count", "1"), 1, "64 GiB of host memory for 1 x"),
        (("--gpu", "rtx-4090"), 1, "64 GiB of host memory for 1 x"),
        (("--gpu", "mi300a", "--count", "4"), 4, "assumed Infinity Fabric for 4 x mi3"),
        (("--cluster", "4xRTX3090"), 4, "PCIe 4.0 x16, no peer access"),
        (("--cluster", "2 x 3090"), 2, "for 2 x rtx-3090"),
        (
            ("--cluster", "2x3090", "--count", "2"),
            4,
            "for 4 x rtx-3090, 2 hosts of 2; see",
        ),
        (("--cluster", "4xA100-SXM4-80GB"), 4, "4 GPUs of a dgx-a100"),
        (
            ("--gpu", "h100", "--count", "16"),
            16,
            "dgx-h100 for 16 x h100-sxm-80gb, 2 h",
        ),
    ],
)
def test_gpus_alone_sit_in_their_usual_host(
    words: tuple[str, ...], gpus: int, note: str
) -> None:
    told = answer("solve", *SMALL, *words)
    assert told["gpus"] == gpus
    assert note in told["notes"]
    assert "see cluster.topology" in told["notes"]


def test_the_usual_host_of_two_cards_is_the_bundled_one() -> None:
    """What is assumed for RTX 4090 was measured for `rtx-4090-pcie-2`."""
    fields = {"model": "gpt-1.3b", "training": {"seq_len": 2048, "global_batch": 16}}
    bundled = load_spec({**fields, "cluster": "rtx-4090-pcie-2"}).cluster.topology
    alone = load_spec({**fields, "cluster": {"gpu": "rtx-4090", "count": 2}})
    topology = alone.cluster.topology
    assert topology.levels == bundled.levels
    assert topology.host == bundled.host
    assert topology.gpu == bundled.gpu


@pytest.mark.parametrize("gpu", catalog.names("topologies/gpus"))
@pytest.mark.parametrize("count", [2, 6, 16])
def test_every_gpu_has_a_usual_host_and_network(gpu: str, count: int) -> None:
    training = {"seq_len": 2048, "global_batch": 48, "precision": "fp16"}
    asked = {"model": "gpt-1.3b", "training": training}
    cluster = load_spec({**asked, "cluster": {"gpu": gpu, "count": count}}).cluster
    assert cluster.gpus == count


def test_cards_share_the_adapter_of_their_host_and_boards_do_not() -> None:
    training = {"seq_len": 2048, "global_batch": 64, "precision": "fp16"}
    asked = {"model": "gpt-1.3b", "training": training}
    found = {}
    for gpu in ("l40s", "h800"):
        cluster = load_spec({**asked, "cluster": {"gpu": gpu, "count": 16}}).cluster
        assert cluster.topology.scale_out is not None
        found[gpu] = cluster.topology.scale_out.uplink
    assert found == {"l40s": "shared", "h800": "per_gpu"}


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"gpu": "rtx-4090", "count": 0}, "cluster.count: 0: expected a whole number"),
        ({"gpu": "rtx-4090", "count": "two"}, "cluster.count: 'two': expected a whole"),
        ({"gpu": "rtx-4090", "count": 6, "per_host": 4}, "6 GPUs are not hosts of 4"),
        ({"gpu": "rtx-4091"}, "cluster.gpu"),
        ("4xRTX4091", "4xRTX4091"),
        ("4xA100", "cluster.topology: 'A100' may be a100-pcie-40gb or "),
        ({"topology": "4xA100", "count": 2}, "cluster.topology: 'A100' may be "),
        ({"topology": "8xH100", "count": 0}, "cluster.count: 0: expected a whole"),
        ({"topology": "8xH100", "parts": []}, "GPUs alone are given as cluster: 8xH1"),
        ({"gpu": {"memory_gib": 24}, "count": 2}, "memory_gb_s"),
    ],
)
def test_gpus_alone_that_are_none_are_refused(cluster: Any, told: str) -> None:
    training = {"seq_len": 2048, "global_batch": 16}
    with pytest.raises(SpecError, match=re.escape(told)):
        load_spec({"model": "gpt-1.3b", "cluster": cluster, "training": training})


@pytest.mark.parametrize(
    ("topology", "alone"),
    [
        ({"topology": "2xRTX3090"}, {"gpu": "rtx-3090", "count": 2}),
        ({"topology": "16xH100"}, {"gpu": "h100-sxm-80gb", "count": 16}),
        (
            {"topology": "2xRTX3090", "count": 2},
            {"gpu": "rtx-3090", "count": 4, "per_host": 2},
        ),
    ],
)
def test_gpus_may_stand_in_place_of_a_topology(
    topology: dict[str, Any], alone: dict[str, Any]
) -> None:
    fields = {"model": "gpt-1.3b", "training": {"seq_len": 2048, "global_batch": 16}}
    one, other = (load_spec({**fields, "cluster": each}) for each in (topology, alone))
    assert one.cluster == other.cluster


DATA = Path(__file__).parents[1] / "data" / "imports"


@pytest.mark.parametrize(
    ("file", "words", "found"),
    [
        ("scontrol", (), {"machine": "p4d.24xlarge", "count": 1, "host_gib": 502}),
        (
            "scontrol",
            ("--gpu", "A100-SXM4-80GB"),
            {"gpu": "a100-sxm-80gb", "count": 8, "per_host": 8, "host_gib": 502},
        ),
        (
            "scontrol",
            ("--machine", "dgx-a100"),
            {"machine": "dgx-a100", "count": 1, "host_gib": 502},
        ),
        (
            "sinfo.2",
            ("--gpu", "h100-sxm-80gb"),
            {"gpu": "h100-sxm-80gb", "count": 16, "per_host": 8},
        ),
        (
            "sinfo.2",
            ("--gpu", "a100-80gb"),
            {"gpu": "a100-sxm-80gb", "count": 4, "per_host": 4},
        ),
        # Of four nodes one is down.
        ("sinfo.1", ("--machine", "dgx-a100"), {"machine": "dgx-a100", "count": 3}),
        (
            "kubernetes",
            ("--gpu", "h100-sxm-80gb"),
            {"gpu": "h100-sxm-80gb", "count": 8, "per_host": 8},
        ),
        (
            "ray.1",
            (),
            {"gpu": "h100-sxm-80gb", "count": 16, "per_host": 8, "host_gib": 1676},
        ),
        (
            "ray.1",
            ("--gpu", "h200-sxm-141gb", "--count", "4"),
            {"gpu": "h200-sxm-141gb", "count": 32, "per_host": 8, "host_gib": 1676},
        ),
        ("hostfile", ("--machine", "dgx-a100"), {"machine": "dgx-a100", "count": 5}),
        ("ibstat", ("--machine", "dgx-a100"), {"machine": "dgx-a100", "count": 1}),
    ],
)
def test_lists_of_nodes_are_clusters_with_one_option(
    file: str, words: tuple[str, ...], found: dict[str, Any]
) -> None:
    options = dict(zip(words[::2], words[1::2], strict=True))
    asked = Asked(
        cluster=str(DATA / f"{file}.txt"),
        gpu=options.get("--gpu"),
        machine=options.get("--machine"),
        count=int(options["--count"]) if "--count" in options else None,
    )
    assert cluster_of(asked) == found


@pytest.mark.parametrize(
    ("file", "machine", "memory_gib"),
    [("scontrol", None, 502), ("scontrol", "dgx-a100", 502), ("ray.1", None, 1676)],
)
def test_hosts_have_the_memory_of_the_list(
    file: str, machine: str | None, memory_gib: float
) -> None:
    """Slurm's RealMemory, and what Ray gives to tasks and objects: 3.6e12 B of two."""
    asked = Asked("llama3-8b", str(DATA / f"{file}.txt"), machine=machine)
    host = load_spec(ask(None, asked, [])).cluster.topology.host
    assert host is not None
    assert host.memory_gib == memory_gib


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("sinfo.1", "--machine: missing; the file lists hosts alone"),
        ("sinfo.2", "expected GPUs of one kind, not h100 and a100; say --gpu"),
        ("kubernetes", "expected GPUs of one kind, not NVIDIA-H100-80GB-HBM3 and"),
        ("ray.2", "--gpu: missing; the file has A100"),
        ("hostfile", "--machine: missing"),
    ],
)
def test_what_a_list_of_nodes_lacks_is_asked_for(file: str, told: str) -> None:
    with pytest.raises(SpecError, match=re.escape(told)):
        cluster_of(Asked(cluster=str(DATA / f"{file}.txt")))


QUESTION = ("--model", "llama3-8b", "--cluster", "2xh100", "--framework", "fsdp")


def test_every_verb_takes_a_question_without_a_spec(tmp_path: Path) -> None:
    asked = (*QUESTION, "--seq-len", "4k", "--batch", "8", "--set", "training.lora=16")
    solved = answer("solve", *asked)
    assert answer("explain", *asked)["plan"]["plan"] == solved["plan"]
    compared = run("compare", *asked, "--plan", "dp=2", "--format", "json")
    assert json.loads(compared.stdout)["plans"]
    exported = run("export", *asked, "-o", str(tmp_path))
    assert exported.code == 0, exported.stderr
    assert (tmp_path / "accelerate.yaml").is_file()


def test_adapters_are_asked_for_by_their_rank_and_trained_with_fsdp() -> None:
    notes: list[str] = []
    spec = ask(None, Asked(model="llama3-8b", cluster="2xRTX3090", lora=8), notes)
    assert spec.data["training"]["lora"] == 8
    assert spec.data["framework"] == "fsdp"
    assert "assumed the framework fsdp; say --framework" in notes
    quantised = Asked(lora=8, set=("training.lora.weights=nf4",))
    found = ask("llama3-8b-2xh100-nvlink", quantised, []).data["training"]["lora"]
    assert found == {"rank": 8, "weights": "nf4"}
    done = run("explain", "--model", "llama3-8b", "--cluster", "2xH100", "--lora", "0")
    assert done.code == 2
    assert "--lora" in done.stderr


def test_a_run_is_not_asked_about_with_two_gpus(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("CUDA out of memory. Tried to allocate 3.91 GiB")
    words = ("--spec", "llama3-8b-2xh100-nvlink", "--cluster", "dgx-h100", "--gpu", "x")
    done = run("diagnose", str(log), *words)
    assert done.code == 2
    assert "--gpu x: not beside --cluster dgx-h100" in done.stderr


def test_the_next_command_repeats_the_question() -> None:
    printed = run("solve", *QUESTION, "--seq-len", "4k", "--batch", "8").stdout
    words = " ".join(printed.split("Next")[1].split())
    assert f"meshwright explain {' '.join(QUESTION)} --seq-len 4k --batch 8" in words


def test_fields_behind_a_name_are_set(folder: Path) -> None:
    changes = ("model.n_layers=2", "cluster.count=2")
    for model, d_model in (("llama2-13b", 5120), ("config.json", 512)):
        asked = Asked(model=model, cluster="8xh100", set=changes)
        spec = load_spec(ask(None, asked, []))
        assert (spec.model.n_layers, spec.model.d_model) == (2, d_model)
        assert spec.cluster.gpus == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("training.lora", "expected PATH=VALUE"),
        ("=4", "expected PATH=VALUE"),
        ("framework.name=4", "framework is a name here; set all of it"),
        ("training.lorax=4", "training.lorax"),
        ("training.seq_len={", "--set training.seq_len={"),
    ],
)
def test_fields_that_cannot_be_set_are_refused(text: str, told: str) -> None:
    done = run("solve", "llama3-8b-2xh100-nvlink", "--set", text)
    assert done.code == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    ("short", "spelled_out"),
    [
        ({"training": {"seq_len": "128k"}}, {"training": {"seq_len": 131_072}}),
        ({"training": {"seq_len": "1M"}}, {"training": {"seq_len": 2**20}}),
        ({"training": {"lora": 16}}, {"training": {"lora": {"rank": 16}}}),
        ({"run": {"tokens": "1T"}}, {"run": {"tokens": 1e12}}),
        ({"run": {"tokens": "2.5B"}}, {"run": {"tokens": 2.5e9}}),
        ({"rules": "tp <= 4"}, {"rules": [{"that": "tp <= 4"}]}),
        (
            {"rules": ["tp <= 4", {"that": "pp == 1", "name": "flat"}]},
            {"rules": [{"that": "tp <= 4"}, {"that": "pp == 1", "name": "flat"}]},
        ),
        (
            {"objective": "cost", "run": {"gpu_hour_price": 2}},
            {
                "objective": [{"usd_per_mtoken": "2%"}, "simplest"],
                "run": {"gpu_hour_price": 2},
            },
        ),
        ({"objective": [{"time": "2%"}, "simplest"]}, {}),
        ({"objective": "time"}, {}),
    ],
)
def test_a_spec_reads_what_the_command_line_does(
    short: dict[str, Any], spelled_out: dict[str, Any]
) -> None:
    def loaded(fields: dict[str, Any]) -> Any:
        training = {"seq_len": 2048, "global_batch": 16, **fields.get("training", {})}
        usual = {"model": "llama3-8b", "cluster": "dgx-h100", "framework": "fsdp"}
        return load_spec({**usual, **fields, "training": training})

    assert loaded(short) == loaded(spelled_out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "training.lora=16"), "--set: not beside a log"),
        (("--count", "1..4"), "--count 1..4: expected one number: that of what ran"),
    ],
)
def test_a_run_is_asked_about_as_it_was(words: tuple[str, ...], told: str) -> None:
    done = run("diagnose", str(DATA / "megatron_log.txt"), *words)
    assert done.code == 2
    assert told in done.stderr


TABLE = """\
Mon Nov 30 10:12:01 2026
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Un |
|   0  {}        Off |   00000000:01:00.0 Off |                  N/A |
|  0%   35C    P8             21W /  350W |       4MiB /  24576MiB |      0%    |
|   1  {}        On  |   00000000:02:00.0 Off |                  N/A |
"""
LIST = "GPU 0: {} (UUID: GPU-1f)\nGPU 1: {} (UUID: GPU-2f)\n"
CSV = "index, name, memory.total [MiB]\n0, {}, 24576 MiB\n1, {}, 24576 MiB\n"
CARD = "NVIDIA GeForce RTX 3090"


@pytest.mark.parametrize("text", [TABLE, LIST, CSV, "\x1b[32m" + TABLE + "\x1b[0m"])
def test_cards_that_nvidia_smi_lists_are_a_cluster(folder: Path, text: str) -> None:
    path = folder / "cards.txt"
    path.write_text(text.format(CARD, CARD))
    assert cluster_of(Asked(cluster=str(path))) == {"gpu": "rtx-3090", "count": 2}
    twice = cluster_of(Asked(cluster=str(path), count=2))
    assert twice == {"gpu": "rtx-3090", "count": 4, "per_host": 2}


SLICES = "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n"


@pytest.mark.parametrize("text", [LIST + SLICES, TABLE + "| MIG devices:        |\n"])
@pytest.mark.parametrize("gpu", [None, "rtx-3090"])
def test_cards_that_are_cut_into_slices_are_refused(
    folder: Path, text: str, gpu: str | None
) -> None:
    """They counted as whole GPUs, of twice the memory and more."""
    path = folder / "cards.txt"
    path.write_text(text.format(CARD, CARD))
    with pytest.raises(SpecError, match=r"cards.txt: lists slices of a GPU \(MIG\)"):
        cluster_of(Asked(cluster=str(path), gpu=gpu))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((CARD, "NVIDIA GeForce RTX 4090"), "several kinds, rtx-3090 and rtx-4090; un"),
        ((CARD, "NVIDIA Nonsense 9"), "'NVIDIA Nonsense 9' is no bundled name"),
        (("Tesla V100-SXM2...",) * 2, "may be v100-sxm-16gb or v100-sxm-32gb; say wh"),
    ],
)
def test_cards_that_make_no_cluster_are_refused(
    folder: Path, names: tuple[str, str], told: str
) -> None:
    path = folder / "cards.txt"
    path.write_text(TABLE.format(*names))
    with pytest.raises(SpecError, match=re.escape(told)):
        cluster_of(Asked(cluster=str(path)))
    said = cluster_of(Asked(cluster=str(path), gpu="v100-sxm-16gb"))
    assert said == {"gpu": "v100-sxm-16gb", "count": 2}


def test_a_number_of_gpus_that_may_be_meant_as_hosts_is_told(tmp_path: Path) -> None:
    job = ["--framework", "fsdp", "--seq-len", "512", "--batch", "8"]
    asked = ["--model", "gpt-1.3b", "--set", "cluster.count=2", *job]
    told = "note: --set cluster.count=2: 2 GPUs in the place of 8; --count counts 8 at"
    done = run("solve", "--cluster", "8xH100", *asked)
    assert told in done.stderr
    assert "on 2 x h100" in done.stdout
    assert "in the place of" not in run("solve", "--cluster", "dgx-h100", *asked).stderr
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "model: gpt-1.3b\ncluster: 8xH100\nframework: fsdp\n"
        "training: {seq_len: 512, global_batch: 8}\n"
    )
    assert told in run("solve", str(spec), "--set", "cluster.count=2").stderr
