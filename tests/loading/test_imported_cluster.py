"""Specs that name files of other tools: what they become, what they say, what not."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from tests.cli.test_import_command import DATA, GPU, notes_of
from tests.fuzz.good import IMPORTS
from tests.helpers.command import refusal, run
from tests.imports.test_infiniband import fabric
from tests.imports.test_slurm import TREE

SPEC = """\
model: {n_layers: 4, d_model: 512, n_heads: 8, n_kv_heads: 4, d_ff: 2048, vocab: 32000}
training: {seq_len: 1024, global_batch: 240, precision: fp16}
cluster:
"""

LEAF = "scale_out: {name: leaf, gb_s: 20, latency_us: 2, uplink: per_nic}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has a file of each kind."""
    for kind in ("rocm_smi", "nccl_xml", "hwloc", "slurm_gres"):
        (tmp_path / kind).write_text(IMPORTS[kind][0], encoding="utf-8")
    text = (DATA / "topo.txt").read_text(encoding="utf-8")
    (tmp_path / "topo.txt").write_text(text, encoding="utf-8")
    (tmp_path / "broken.txt").write_text(text.replace("\tPXB", "\tPXQ"), "utf-8")
    (tmp_path / "tree").write_text(TREE, encoding="utf-8")
    (tmp_path / "fabric").write_text(fabric(), encoding="utf-8")
    (tmp_path / "topology.yaml").write_text("levels: []\n", encoding="utf-8")
    return tmp_path


def written(folder: Path, *lines: str) -> str:
    """Write a spec with these lines in its cluster, the first one in line 4."""
    path = folder / "spec.yaml"
    path.write_text(SPEC + "".join(f"  {line}\n" for line in lines), encoding="utf-8")
    return str(path)


def loaded(folder: Path, *lines: str) -> tuple[mw.Spec, list[str]]:
    notes: list[str] = []
    return mw.load(written(folder, *lines), mw.Spec, notes=notes), notes


def test_machines_of_nvidia_smi_are_solved_and_assumptions_told(folder: Path) -> None:
    lines = ("nvidia_smi: topo.txt", f"gpu: {GPU}", "count: 2", LEAF)
    result = run("solve", written(folder, *lines), "--no-by-kind")
    assert result.code == 0
    assert " on 16 x a100-sxm-80gb (topo)" in result.stdout
    assert "topo.txt: NVLink latency is assumed to be 1.5 us a link." in notes_of(
        result
    )
    assert not [line for line in result.stdout.splitlines() if "assumed" in line]


def test_nodes_links_and_nics_are_those_of_the_file(folder: Path) -> None:
    spec, _ = loaded(folder, "nvidia_smi: topo.txt", f"gpu: {GPU}", "count: 3", LEAF)
    topology = spec.cluster.topology
    kinds = [node.kind for node in topology.nodes]
    assert (kinds.count("gpu"), kinds.count("nic"), spec.cluster.gpus) == (8, 4, 24)
    rates = {link.between: link.gb_s for link in topology.links}
    # 12 links of 25 GB/s (NVIDIA A100 datasheet) to an NVSwitch
    assert {rates[f"GPU{i}", "nvswitch"] for i in range(8)} == {300}


@pytest.mark.parametrize(
    "line", ["host: {memory_gib: 512}", "topology: {host: {memory_gib: 512}}"]
)
def test_a_host_is_said_beside_the_file_or_at_the_path_that_rules_name(
    folder: Path, line: str
) -> None:
    """Its rates are assumed, those of a PCIe 4.0 slot and of eight channels."""
    spec, notes = loaded(folder, "nvidia_smi: topo.txt", f"gpu: {GPU}", line)
    host = spec.cluster.topology.host
    assert host is not None
    assert (host.memory_gib, host.pcie_gb_s, host.memory_gb_s) == (512, 25, 204.8)
    told = "The host is assumed to have pcie_gb_s 25 and memory_gb_s 204.8"
    assert any(told in note for note in notes)


def test_overrides_name_nodes_of_the_file(folder: Path) -> None:
    lines = ["nvidia_smi: topo.txt", f"gpu: {GPU}", "count: 3", LEAF]
    down = "overrides: [{host: 1, node: GPU3}]"
    spec, _ = loaded(folder, *lines, down)
    # Three hosts of seven GPUs are more than the two that are whole: 21, not 16.
    assert spec.cluster.gpus == 3 * 7
    message = refusal(written(folder, *lines, down.replace("GPU3", "GPU8")))
    assert "spec.yaml:8: cluster.overrides.0.node: 'GPU8' is not among the" in message


@pytest.mark.parametrize("kind", ["rocm_smi", "nccl_xml", "hwloc", "slurm_gres"])
def test_other_kinds_of_machines(kind: str, folder: Path) -> None:
    spec, notes = loaded(folder, f"{kind}: {kind}", f"gpu: {GPU}")
    assert spec.cluster.gpus > 1
    assert all(note.startswith(f"{kind}: ") for note in notes)
    assert notes


Level = tuple[str, int, float, str]


def levels(spec: mw.Spec) -> list[Level]:
    return [(v.name, v.size, v.gb_s, v.uplink) for v in spec.cluster.levels]


@pytest.mark.parametrize(
    ("machine", "outer"),
    [
        # dgx-a100: 200 Gbit/s for each GPU; p4d: 400 for all; dgx-1v: 100 for each NIC
        ("dgx-a100", [("leaf", 4, 25, "per_gpu"), ("spine", 2, 25, "per_gpu")]),
        ("p4d", [("leaf", 4, 50, "shared"), ("spine", 2, 4 * 50, "shared")]),
        ("dgx-1v", [("leaf", 4, 12.5, "per_nic"), ("spine", 2, 12.5, "per_nic")]),
    ],
)
def test_slurm_has_the_uplinks_of_the_machine(
    machine: str, outer: list[Level], folder: Path
) -> None:
    spec, notes = loaded(folder, f"machine: {machine}", "slurm: tree")
    assert spec.cluster.gpus == 8 * 8
    assert levels(spec)[-2:] == outer
    assert any("up as down" in note for note in notes)
    assert not any("50 GB/s per GPU" in note for note in notes)


@pytest.mark.parametrize(
    ("machine", "outer"),
    [
        # A host has 2 cables of 400 Gbit/s, both leaves of a group 4 of 200: 100 GB/s
        # for 8 GPUs or 4 NICs, and for the 16 GPUs of two hosts.
        ("dgx-a100", [("leaf", 2, 12.5, "per_gpu"), ("spine", 2, 6.25, "per_gpu")]),
        ("p4d", [("leaf", 2, 100, "shared"), ("spine", 2, 100, "shared")]),
        ("dgx-1v", [("leaf", 2, 100 / 4, "per_nic"), ("spine", 2, 100, "shared")]),
    ],
)  # fmt: skip
def test_cables_are_shared_out_to_gpus_or_nics(
    machine: str, outer: list[Level], folder: Path
) -> None:
    spec, _ = loaded(folder, f"machine: {machine}", "ibnetdiscover: fabric")
    assert spec.cluster.gpus == 4 * 8
    assert levels(spec)[-2:] == outer


def test_machine_and_what_joins_machines_are_both_of_files(folder: Path) -> None:
    lines = ["nvidia_smi: topo.txt", f"gpu: {GPU}", "slurm: tree"]
    spec, notes = loaded(folder, *lines, LEAF)
    assert levels(spec) == [("leaf", 4, 20, "per_nic"), ("spine", 2, 20, "per_nic")]
    spec, notes = loaded(folder, *lines)
    assert levels(spec) == [("leaf", 4, 50, "per_nic"), ("spine", 2, 50, "per_nic")]
    assert {note.partition(":")[0] for note in notes} == {"topo.txt", "tree"}
    assert any("50 GB/s per NIC" in note for note in notes)


def test_levels_above_a_machine_give_way(folder: Path) -> None:
    spec, notes = loaded(folder, "topology: dgx-h100-pod", "slurm: tree")
    assert [level.name for level in spec.cluster.levels] == ["nvlink", "leaf", "spine"]
    assert any("Levels leaf, spine of dgx-h100-pod are replaced" in n for n in notes)


BAD = {
    "broken file": (("nvidia_smi: broken.txt", "gpu: A100-80GB"), "broken.txt:2: "),
    "other kind": (
        ("nvidia_smi: tree", "gpu: A100-80GB"),
        "tree: no header with GPU0; expected the output of nvidia-smi topo -m; this "
        "looks like slurm",
    ),
    "no file": (
        ("nvidia_smi: lost.txt", "gpu: A100-80GB"),
        "spec.yaml:4: cluster.nvidia_smi: 'lost.txt': no such file",
    ),
    "a number": (("slurm: 3",), "spec.yaml:4: cluster.slurm: 3: expected a file"),
    "no GPU": (
        ("count: 1", "nvidia_smi: topo.txt"),
        "spec.yaml:5: cluster.nvidia_smi: the file does not say which GPU",
    ),
    "odd GPU": (
        ("nvidia_smi: topo.txt", "gpu: A16"),
        "spec.yaml:5: cluster.topology.gpu: 'A16' is neither a file nor",
    ),
    "bad GPU": (
        ("nvidia_smi: topo.txt", "gpu: {memory_gib: 80}"),
        "spec.yaml:5: cluster.topology.gpu.memory_gb_s: missing",
    ),
    "two machines": (
        ("nvidia_smi: topo.txt", "hwloc: hwloc", "gpu: A100-80GB"),
        "spec.yaml:5: cluster.hwloc: given beside nvidia_smi; keep one",
    ),
    "beside a topology": (
        ("topology: dgx-a100", "nvidia_smi: topo.txt", "gpu: A100-80GB"),
        "spec.yaml:5: cluster.nvidia_smi: given beside a topology; keep one",
    ),
    "no machine": (
        ("slurm: tree",),
        "spec.yaml:4: cluster.slurm: says what joins machines, not what is in them",
    ),
    "no NIC": (
        ("slurm_gres: slurm_gres", "gpu: A100-80GB", "slurm: tree"),
        "machine slurm_gres has no NIC that switches could join",
    ),
    "scale-out without a NIC": (
        ("slurm_gres: slurm_gres", "gpu: A100-80GB", LEAF),
        "spec.yaml:6: cluster.topology.scale_out.name: 'leaf' joins NICs, and no node",
    ),
    "uplink": (
        ("nvidia_smi: topo.txt", "gpu: A100-80GB", LEAF.replace("per_nic", "per_gpu")),
        "spec.yaml:6: cluster.topology.scale_out.uplink: 'per_gpu' is for levels of",
    ),
    "count": (
        ("nvidia_smi: topo.txt", "gpu: A100-80GB", "count: 2"),
        "spec.yaml:6: cluster.count: 2 copies, but 'topo' has no scale_out",
    ),
    "typo": (
        ("topology: dgx-a100", "ibnetdiscovery: fabric"),
        "spec.yaml:5: cluster.ibnetdiscovery: unknown field; did you mean ibnetd",
    ),
    "bad topology": (
        ("topology: topology.yaml", "slurm: tree"),
        "topology.yaml:1: cluster.topology.gpu: missing",
    ),
}


@pytest.mark.parametrize(("lines", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(lines: tuple[str, ...], message: str, folder: Path) -> None:
    assert message in refusal(written(folder, *lines))


def test_notes_are_not_asked_of_specs_without_files() -> None:
    notes: list[str] = []
    mw.load("llama3-8b-2xh100-nvlink", mw.Spec, notes=notes)
    assert notes == []


def test_bandwidth_that_nobody_knows_is_asked_for(folder: Path) -> None:
    gpu = "gpu: {memory_gib: 80, memory_gb_s: 2000, peak_tflops: {fp16: 300}}"
    with pytest.raises(
        mw.SpecError, match=r"topo\.txt: gpu inline: peer_link_gb_s is not"
    ):
        loaded(folder, "nvidia_smi: topo.txt", gpu)
