"""`meshwright import`: each kind from its file to a solved plan, or a clear refusal."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.cli.files import import_files
from meshwright.imports.registry import kinds
from tests.fuzz.good import IMPORTS
from tests.helpers.command import Result, run

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
GPU = "A100-SXM4-80GB"

TINY = """\
model: {n_layers: 4, d_model: 512, n_heads: 8, n_kv_heads: 4, d_ff: 2048, vocab: 32000}
cluster: {topology: cluster.yaml}
training: {seq_len: 1024, global_batch: 240}
"""


def solved(path: Path) -> Result:
    """Solve a small model on the topology in cluster.yaml of a folder."""
    (path / "spec.yaml").write_text(TINY, encoding="utf-8")
    return run("solve", str(path / "spec.yaml"), "--no-by-kind")


def imported(path: Path, kind: str, text: str, *options: str) -> Result:
    """Import a text into cluster.yaml of a folder."""
    (path / "file.txt").write_text(text, encoding="utf-8")
    found = (kind, str(path / "file.txt"), *options, "-o", str(path / "cluster.yaml"))
    return run("import", *found)


def refused(*words: str) -> str:
    """Return the message of an import that leaves with 2 and writes nothing."""
    result = run("import", *words)
    assert (result.code, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: "), result
    return result.stderr.removeprefix("error: ").rstrip("\n")


def content(path: Path) -> tuple[list[str], Any]:
    """Return the comments and the data of cluster.yaml."""
    text = (path / "cluster.yaml").read_text(encoding="utf-8")
    comments = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    return comments, yaml.safe_load(text)


def notes_of(result: Result) -> list[str]:
    lines = result.stderr.splitlines()
    return [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]


@pytest.mark.parametrize("kind", kinds("machines"))
def test_machine_is_imported_and_solved(kind: str, tmp_path: Path) -> None:
    result = imported(tmp_path, kind, IMPORTS[kind][0], "--gpu", GPU)
    assert (result.code, result.stdout) == (0, "")
    comments, data = content(tmp_path)
    first = f"Made from {tmp_path / 'file.txt'} ({kind}) with a100-sxm-80gb."
    assert comments == [first, *notes_of(result)]
    assert len(comments) > 1
    assert (data["name"], data["gpu"]) == ("file", "a100-sxm-80gb")
    gpus = sum(node["kind"] == "gpu" for node in data["nodes"])
    answer = solved(tmp_path)
    assert answer.code == 0
    assert f" on {gpus} x a100-sxm-80gb (file)" in answer.stdout


@pytest.mark.parametrize(("kind", "machines"), [("slurm", 8), ("ibnetdiscover", 4)])
@pytest.mark.parametrize("machine", ["dgx-a100", "p4de"])
def test_fabric_is_put_above_a_machine(
    kind: str, machines: int, machine: str, tmp_path: Path
) -> None:
    result = imported(tmp_path, kind, IMPORTS[kind][0], "--machine", machine)
    assert result.code == 0
    _, data = content(tmp_path)
    assert data["levels"][0]["name"] == "nvlink"
    assert "scale_out" not in data
    answer = solved(tmp_path)
    assert answer.code == 0
    assert f" on {8 * machines} x a100-sxm-80gb (file)" in answer.stdout


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        """Return that it is."""
        return True


def test_a_terminal_shows_a_note_once() -> None:
    """The text that is made has its notes too, as comments."""
    file = str(DATA / "imports" / "automodel.txt")
    piped = run("import", file)
    stdout, stderr = Terminal(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        import_files([file])
    assert stdout.getvalue() == piped.stdout
    notes = [line.removeprefix("note: ") for line in piped.stderr.splitlines()]
    assert notes
    assert all(note in piped.stdout for note in notes)
    assert stderr.getvalue() == ""


def test_imports_are_machines_too(tmp_path: Path) -> None:
    """Levels of Slurm go above what was imported from nvidia-smi."""
    topo = (DATA / "topo.txt").read_text(encoding="utf-8")
    imported(tmp_path, "nvidia_smi", topo, "--gpu", GPU)
    (tmp_path / "cluster.yaml").rename(tmp_path / "node.yaml")
    words = ("--machine", str(tmp_path / "node.yaml"))
    result = imported(tmp_path, "slurm", IMPORTS["slurm"][0], *words)
    _, data = content(tmp_path)
    assert [level["uplink"] for level in data["levels"]] == ["per_nic", "per_nic"]
    assert any("has no speeds" in note for note in notes_of(result))
    assert solved(tmp_path).code == 0


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("scontrol", "gpus_by_type", {"a100": 8}),
     ("ibstat", "guids", {"a": ["0f0000000001", "1"]}),
     ("hostfile", "slots", {"worker-1": 8, "worker-2": None, "worker-3": None,
                            "worker-4": None, "b": 2})],
)  # fmt: skip
def test_other_kinds_are_facts(kind: str, key: str, value: Any, tmp_path: Path) -> None:
    result = imported(tmp_path, kind, IMPORTS[kind][0])
    assert result.code == 0
    note, *_ = notes_of(result)
    assert note == "Facts, no topology: the file does not say how GPUs are joined."
    assert content(tmp_path)[1][key] == value


def test_a_graph_dump_is_facts(tmp_path: Path) -> None:
    graph = '<graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="12"/>'
    result = imported(tmp_path, "nccl_xml", f'<graphs version="1">{graph}</graphs>')
    assert result.code == 0
    assert content(tmp_path)[1]["graphs"][0]["id"] == "0"


LOG = DATA / "all_reduce.log"


def bad(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Return words after `import` by what is wrong, and what must be said."""
    topo, tree, found = str(DATA / "topo.txt"), tmp_path / "tree", tmp_path / "own.yaml"
    tree.write_text(IMPORTS["slurm"][0], encoding="utf-8")
    broken = tmp_path / "broken.txt"
    text = (DATA / "topo.txt").read_text(encoding="utf-8")
    broken.write_text(text.replace("\tPXB", "\tPXQ", 1), encoding="utf-8")
    fast = "levels: [{name: n, size: 8, gb_s: fast, latency_us: 1}]"
    found.write_text(f"gpu: H100\n{fast}\n", encoding="utf-8")
    lone = tmp_path / "lone.yaml"
    lone.write_text("{name: lone, gpu: H100, nodes: [{name: a}]}", encoding="utf-8")
    smi, slurm, logs = ["nvidia_smi", topo], ["slurm", str(tree)], ["nccl_tests"]
    return {
        "nothing": ([], "KIND: missing; accepted: amd_smi, hwloc, "),
        "no kind": ([topo], f"this looks like nvidia_smi: meshwright import nvidia_smi "
                    f"{topo}; accepted: amd_smi, hwloc, "),
        "odd kind": (["nvidia"], "KIND: 'nvidia' is not known; accepted: amd_smi, "),
        "no file": (["slurm"], "FILE: missing; expected meshwright import slurm FILE"),
        "two files": ([*smi, topo], "FILE: 2 given; nvidia_smi takes one"),
        "other kind": (["nvidia_smi", str(tree), "--gpu", GPU],
                       "tree: no header with GPU0; expected the output of nvidia-smi "
                       "topo -m; this looks like slurm"),
        "lost file": (["slurm", "lost", "--machine", "dgx-a100"],
                      "lost: no such file or directory"),
        "folder": (["slurm", str(tmp_path), "--machine", "dgx-a100"], "is a directory"),
        "no gpu": (smi, "--gpu: missing; the file does not say which GPU it is; exp"),
        "odd gpu": ([*smi, "--gpu", "A16"], "--gpu: gpu: 'A16' is neither a file nor"),
        "no machine": (slurm, "--machine: missing; the file says what joins machines"),
        "odd machine": ([*slurm, "--machine", "dgx-7"], "--machine: topology: 'dgx-7'"),
        "bad machine": ([*slurm, "--machine", str(found)],
                        "own.yaml:2: levels.0.gb_s: 'fast': expected a number"),
        "no nic": ([*slurm, "--machine", str(lone)],
                   "machine lone has no NIC that switches could join"),
        "no onto": ([*logs, str(LOG)], "--onto: missing; the log says how fast links"),
        "pairs": (
            [*logs, str(LOG), "--onto", "dgx-1v"],
            f"--onto dgx-1v: {LOG}: pairs of GPUs have direct links",
        ),
        "strange option": ([*slurm, "--gpu", GPU], "--gpu: not for slurm; accepted: "
                           "--machine"),
        "facts": (["hostfile", str(tree), "--op", "x"], "--op: not for hostfile; accept"
                  "ed: none"),
        "cell": (["nvidia_smi", str(broken), "--gpu", GPU], "broken.txt:2: "),
        "output": ([*smi, "--gpu", GPU, "-o", "/dev/null/x"], "--output /dev/null/x: "),
    }  # fmt: skip


def test_bad_input_is_named(tmp_path: Path) -> None:
    for name, (words, message) in bad(tmp_path).items():
        assert message in refused(*words), name


def test_text_of_powershell_is_read(tmp_path: Path) -> None:
    text = (DATA / "topo.txt").read_text(encoding="utf-8")
    (tmp_path / "topo.txt").write_bytes(text.encode("utf-16"))
    words = ("import", "nvidia_smi", str(tmp_path / "topo.txt"), "--gpu", GPU)
    assert run(*words).code == 0


def test_gpu_of_ones_own_is_written_out(tmp_path: Path) -> None:
    found = "{name: own, memory_gib: 40, memory_gb_s: 900, peak_tflops: {bf16: 99}, "
    found += "peer_links: 12, peer_link_gb_s: 20, pcie_gb_s: 11}"
    (tmp_path / "gpu.yaml").write_text(found, encoding="utf-8")
    text = (DATA / "topo.txt").read_text(encoding="utf-8")
    words = ("--gpu", str(tmp_path / "gpu.yaml"))
    assert imported(tmp_path, "nvidia_smi", text, *words).code == 0
    _, data = content(tmp_path)
    assert data["gpu"]["peer_link_gb_s"] == 20
    rates = {tuple(link["between"]): link["gb_s"] for link in data["links"]}
    # 12 links of 20 GB/s to the NVSwitch
    assert rates["GPU0", "nvswitch"] == 240
    assert solved(tmp_path).code == 0


def test_a_launch_that_says_no_plan_asks_about_none(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    for options, asks in (("", False), (" --per_device_train_batch_size 2", True)):
        script.write_text(
            f"accelerate launch --config_file $A.yaml train.py{options}\n"
        )
        told = run("import", str(script))
        assert told.code == 0, told.stderr
        assert ("--plan" in told.stdout) == asks
