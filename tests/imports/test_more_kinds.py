"""amd-smi, nvidia-smi -q, lspci, Kubernetes, Ray, sinfo, ibnetdiscover -p, tori."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import SpecError
from meshwright.imports import (
    infiniband,
    orchestrators,
    slurm_nodes,
    slurm_topology,
)
from meshwright.imports.machines import lspci, nvidia_smi, rocm_smi
from meshwright.loading.asked import Asked, cluster_of
from meshwright.loading.load import load_gpu, load_spec
from tests.helpers.command import run
from tests.helpers.import_gpus import (
    A100,
    MI300X,
    PCIE,
    as_topology,
    links_of,
    names_of,
    validated,
)
from tests.imports.test_slurm import notes, sizes

DATA = Path(__file__).parents[1] / "data" / "imports"


def good(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "gpus"), [("amd_smi.1", 3), ("amd_smi.2", 2)])
def test_amd_smi_is_a_machine(name: str, gpus: int) -> None:
    facts = rocm_smi.parse_amd_smi(good(name), "t")
    assert facts.counts("type")["XGMI"] == 1
    assert facts.cell("weight", "GPU0", "GPU1") == "15"
    imported = as_topology(rocm_smi.to_machine, facts, MI300X)
    assert validated(imported).gpus == gpus
    assert links_of(imported)["GPU0", "GPU1"] == 7 * 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: no table of bus ids"),
        ("{}", "t: no table of bus ids"),
        ("[", "t:1: not JSON"),
        ("HOPS TABLE:\n 0:0:0", "t: no table of bus ids"),
        (
            good("amd_smi.1").replace("XGMI  ", "NVLK  ", 1),
            "t:15: 'NVLK': unknown link",
        ),
        (good("amd_smi.2").replace("XGMI", "NVLK"), "link_type: 'NVLK': unknown link"),
        (good("amd_smi.1").replace("15           40", "15"), "has 2 cells; expected 3"),
    ],
)
def test_broken_amd_smi_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        rocm_smi.parse_amd_smi(text, "t")
    assert message in str(caught.value)


def test_nvidia_smi_q_has_names_and_slots() -> None:
    text = nvidia_smi.parse_query(good("nvidia_smi_q.1"), "t")
    assert [gpu.bus_id for gpu in text.gpus] == ["00000000:07:00.0", "00000000:0f:00.0"]
    assert text.product == "NVIDIA A100-SXM4-80GB"
    assert {gpu.memory for gpu in text.gpus} == {"81920 MiB"}
    xml = nvidia_smi.parse_query(good("nvidia_smi_q.2"), "t")
    assert (xml.product, xml.gpus[0].width) == ("NVIDIA L40S", "8x")
    imported = as_topology(nvidia_smi.query_to_machine, xml, PCIE)
    assert links_of(imported) == {("GPU0", "host0"): 12.6, ("GPU1", "host0"): 12.6}
    with pytest.raises(SpecError, match="t: no GPU; expected the output of nvidia-smi"):
        nvidia_smi.parse_query("NVSMI LOG", "t")
    unlike = good("nvidia_smi_q.2").replace("L40S", "L4", 1)
    facts = nvidia_smi.parse_query(unlike, "t")
    assert facts.product == ""
    assert "GPUs are unlike" in " ".join(
        as_topology(nvidia_smi.query_to_machine, facts, PCIE).notes
    )


def test_lspci_is_a_tree_of_bridges() -> None:
    facts = lspci.parse(good("lspci"), "t")
    assert (len(facts.gpus), len(facts.nics)) == (3, 1)
    assert load_gpu("--gpu", facts.product).name == "l40s-48gb"
    imported = as_topology(lspci.to_machine, facts, PCIE)
    assert links_of(imported) == {
        ("GPU0", "pcie0"): 25, ("GPU1", "pcie0"): 25, ("nic0", "pcie0"): 25,
        ("pcie0", "system"): 10, ("GPU2", "system"): 10,
    }  # fmt: skip
    narrow = good("lspci").replace("Speed 16GT/s, Width x16", "Speed 8GT/s, Width x16")
    slow = as_topology(lspci.to_machine, lspci.parse(narrow, "t"), PCIE)
    assert links_of(slow)["GPU0", "pcie0"] == 12.6
    with pytest.raises(SpecError, match="t: no GPU; expected the output of lspci -vv"):
        lspci.parse("00:02.0 VGA compatible controller: ASPEED Technology, Inc.", "t")


def test_lspci_leaves_ports_of_management_out() -> None:
    text = good("lspci") + "82:00.0 Ethernet controller: Intel Corporation I350\n"
    assert len(lspci.parse(text, "t").nics) == 1
    imported = as_topology(lspci.to_machine, lspci.parse(text, "t"), PCIE)
    assert names_of(imported, "nic") == ["nic0"]


def test_the_name_of_the_gpu_is_taken_from_the_file(tmp_path: Path) -> None:
    result = run("import", "nvidia_smi_q", str(DATA / "nvidia_smi_q.1.txt"))
    assert (result.code, "gpu: a100-sxm-80gb" in result.stdout) == (0, True)
    unknown = tmp_path / "lspci.txt"
    unknown.write_text(good("lspci").replace("AD102GL [L40S]", "Device 26b9"))
    told = run("import", "lspci", str(unknown)).stderr
    assert "--gpu: missing; the file says 'NVIDIA Corporation Device 26b9" in told
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "model: llama3-8b\n"
        f"cluster: {{nvidia_smi_q: {DATA / 'nvidia_smi_q.1.txt'}}}\n"
        "training: {seq_len: 4096, global_batch: 64}\n"
    )
    assert load_spec(str(spec)).cluster.topology.gpu.name == "a100-sxm-80gb"


def test_kubernetes_nodes() -> None:
    facts = orchestrators.parse_kubernetes(good("kubernetes"), "t")
    assert facts.gpus_by_type == {"NVIDIA-H100-80GB-HBM3": 8, "nvidia-tesla-a100": 8}
    assert [node.nics for node in facts.nodes] == [32, 0]
    assert facts.nodes_without_gpus == 1
    one = json.dumps(json.loads(good("kubernetes"))["items"][0])
    assert len(orchestrators.parse_kubernetes(one, "t").nodes) == 1
    for text, told in (
        ("{", "t:1: not JSON"),
        ("[]", "t: no node"),
        (good("kubernetes").replace('"8"', '"x"'), "gpu-a: nvidia.com/gpu: 'x'"),
    ):
        with pytest.raises(SpecError) as caught:
            orchestrators.parse_kubernetes(text, "t")
        assert told in str(caught.value)


def test_nodes_of_one_instance_type_are_a_cluster(tmp_path: Path) -> None:
    data = json.loads(good("kubernetes"))
    data["items"][1] = data["items"][0] | {"metadata": {
        "name": "gpu-b", "labels": data["items"][0]["metadata"]["labels"]}}  # fmt: skip
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(data))
    told = run("import", "kubernetes", str(path)).stderr
    assert "In a spec: cluster: {machine: p5.48xlarge, count: 2}." in told
    mixed = run("import", "kubernetes", str(DATA / "kubernetes.txt")).stderr
    assert "In a spec" not in mixed


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
    ],
)
def test_nodes_on_which_no_pod_starts_are_no_part_of_a_cluster(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    data = json.loads(good("kubernetes"))
    first = data["items"][0]
    labels = {"name": "gpu-b", "labels": first["metadata"]["labels"]}
    down = {"status": first["status"] | change.get("status", {})}
    data["items"][1] = first | {"metadata": labels} | change | down
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(data))
    told = run("import", "kubernetes", str(path)).stderr
    assert "In a spec: cluster: {machine: p5.48xlarge, count: 1}." in told
    assert "left out: gpu-b, which " in told
    notes: list[str] = []
    assert cluster_of(Asked(cluster=str(path)), notes=notes)["count"] == 1
    assert notes[0].startswith("left out: gpu-b, which ")


def test_ray_resources() -> None:
    facts = orchestrators.parse_ray(good("ray.1"), "t")
    assert (facts.gpus, facts.nodes, facts.gpus_by_type) == (16, 2, {"H100": 16})
    assert orchestrators.parse_ray(good("ray.2"), "t").gpus_by_type == {"A100": 16}
    mixed = "{'GPU': 16.0, 'accelerator_type:H100': 1.0, 'accelerator_type:L4': 1.0}"
    assert orchestrators.parse_ray(mixed, "t").gpus_by_type == {"gpu": 16}
    for text in (
        "",
        "{'GPU': 0}",
        "{'GPU': 'x'}",
        "{'GPU': 1e99}",
        "{'GPU': 1" + "0" * 400 + "}",
        "{" * 9,
        "{1}",
    ):
        with pytest.raises(SpecError):
            orchestrators.parse_ray(text, "t")


def test_sinfo_counts_a_node_once() -> None:
    facts = slurm_nodes.parse_sinfo(good("sinfo.2"), "t")
    assert (facts.nodes, facts.gpus_by_type) == (4, {"h100": 16, "a100": 4})
    again = (
        good("sinfo.2") + "gpu[01-02]       2 debug    idle  96   gpu:h100:8(S:0-1)\n"
    )
    assert slurm_nodes.parse_sinfo(again, "t").gpus_by_type == {"h100": 16, "a100": 4}
    reasons = "NODELIST STATE REASON\ngpu01 drain bad GPU, see ticket\ngpu02 idle none"
    assert slurm_nodes.parse_sinfo(reasons, "t").states == {"drain": 1, "idle": 1}
    plain = slurm_nodes.parse_sinfo(good("sinfo.1"), "t")
    assert (plain.nodes, plain.states) == (4, {"idle": 3, "down": 1})
    for text, told in (
        ("gpu01", "t: no node below a heading with NODELIST"),
        ("NODELIST GRES\ngpu01", "t:2: 'gpu01': 1 columns; the heading has 2"),
        ("NODELIST GRES\ngpu01 gpu:x:y", "t:2: Gres='gpu:x:y': expected"),
    ):
        with pytest.raises(SpecError) as caught:
            slurm_nodes.parse_sinfo(text, "t")
        assert told in str(caught.value)


def test_a_list_of_ports_is_a_fabric() -> None:
    facts = infiniband.parse_ibnetdiscover(good("ibnetdiscover.2"), "t")
    assert sorted(facts.hosts) == ["gpu01", "gpu02", "gpu03", "gpu04"]
    levels = infiniband.to_levels(facts).fields["levels"]
    assert [(v["size"], v["gb_s"]) for v in levels] == [(2, 25), (2, 25)]
    with pytest.raises(SpecError, match="t:1: 'ZDR': unknown speed; accepted: SDR"):
        infiniband.parse_ibnetdiscover(
            good("ibnetdiscover.2").replace("HDR", "ZDR", 1), "t"
        )


def test_torus_and_dragonfly() -> None:
    torus = good("slurm.4")
    assert sizes(torus) == [("x-ring", 4), ("y-ring", 2), ("z-ring", 2)]
    assert sizes(torus.replace("tpu[01-16]", "tpu[01-15]")) == [("torus", 15)]
    assert sizes(torus.replace("{x: 4, y: 2, z: 2}", "[4, 2, 2]"))[0] == ("x-ring", 4)
    with pytest.raises(SpecError, match="t:5: dims: expected the numbers of nodes"):
        slurm_topology.parse(torus.replace("z: 2", "z: no"), "t")
    assert sizes(good("slurm.5")) == [("leaf", 4), ("spine", 3)]
    assert "as in a dragonfly" in notes(good("slurm.5"))


def test_a_board_of_a_query_that_may_be_wired_in_ways_is_refused() -> None:
    text = good("nvidia_smi_q.1")
    three = text + text.split("\n\n", 3)[-1].replace("0F:00", "1F:00")
    facts = nvidia_smi.parse_query(three, "t")
    assert len(facts.gpus) >= 3
    assert names_of(
        as_topology(nvidia_smi.query_to_machine, facts, A100), "switch"
    ) == ["nvswitch"]


@pytest.mark.parametrize(
    ("allocatable", "capacity", "mib"),
    [
        ("1040000000Ki", "1056270488Ki", 1_015_625),
        (None, "2Ti", 2 * 2**20),
        (None, "500G", 476_837),
        (None, "lots", None),
        (None, None, None),
    ],
)
def test_memory_of_a_kubernetes_node(
    allocatable: str | None, capacity: str | None, mib: int | None
) -> None:
    amounts = {"allocatable": allocatable, "capacity": capacity}
    status = {name: {"memory": size} for name, size in amounts.items() if size}
    status.setdefault("capacity", {})["nvidia.com/gpu"] = "8"
    text = json.dumps({"kind": "Node", "metadata": {}, "status": status})
    assert orchestrators.parse_kubernetes(text, "nodes.json").nodes[0].host_mib == mib


def test_memory_that_ray_lists() -> None:
    text = "\n".join(
        (
            *("Active:", " 1 node_0a12", " 1 node_0b34", "Usage:", " 0.0/16.0 GPU"),
            *(" 0B/1.00TiB memory", " 0B/512.00GiB object_store_memory"),
        )
    )
    assert orchestrators.parse_ray(text, "ray.txt").host_mib == 768 * 1024
