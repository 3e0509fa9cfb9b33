"""`meshwright topology`: what it takes, what it prints and draws, what it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from meshwright import catalog
from meshwright.loading.load import load_cluster, load_spec
from tests.fuzz import good
from tests.helpers.command import SPEC, Result, run, unwrapped

LEVELS = """\
gpu: a100-sxm-80gb
levels:
  - {name: nvlink, size: 8, gb_s: 300, latency_us: 1.5}
"""

BROKEN = """\
model: never looked at
cluster:
  machine: p4d.24xlarge
  count: 12
  overrides:
    - {host: 1, link: [gpu3, nvlink0], gb_s: 150}
    - {host: 2}
    - {host: 3, node: gpu7}
"""


def shown(*arguments: str) -> str:
    result = run("topology", *arguments)
    assert (result.code, result.stderr) == (0, ""), result
    return result.stdout


def data(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(shown(*arguments, "--format", "json"))
    return answer


def written(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "gpus", "first"),
    [
        ("llama3-70b-256xh100", 256, "dgx-h100"),
        ("p5.48xlarge", 8, "p5.48xlarge"),
        ("P5", 8, "p5.48xlarge"),
        ("dgx-1v", 8, "dgx-1v"),
        ("rtx-4090-pcie-8", 8, "rtx-4090-pcie-8"),
    ],
)
def test_bundled_specs_topologies_and_machines_go_by_name(
    name: str, gpus: int, first: str
) -> None:
    assert shown(name).startswith(f"{first}\n  {gpus} x ")


@pytest.mark.parametrize("overrides", ["", "  overrides: [{host: 0, node: gpu1}]"])
@pytest.mark.parametrize("name", ["a100-pod-100g", "a100-pod-200g"])
def test_a_network_may_be_called_as_its_adapters(
    name: str, overrides: str, tmp_path: Path
) -> None:
    """Both call their network 'nic', as the one NIC of a host is called: nic0."""
    text = f"model: any\ncluster:\n  topology: {name}\n  count: 3\n{overrides}\n"
    assert shown(written(tmp_path, text)).startswith(name)


@pytest.mark.parametrize("text", [LEVELS, SPEC], ids=["topology", "spec"])
def test_a_file_is_a_topology_or_a_spec(text: str, tmp_path: Path) -> None:
    answer = data(written(tmp_path, text))
    assert (answer["gpus"], answer["levels"][0]["gb_s"]) == (8, 300)


def test_no_name_is_both_a_spec_and_a_topology() -> None:
    kinds = ("specs", "topologies", "topologies/machines")
    names = [catalog.fold(name) for kind in kinds for name in catalog.names(kind)]
    assert len(set(names)) == len(names)


def test_the_cluster_is_the_one_that_a_spec_is_solved_on() -> None:
    name = "llama3-70b-256xh100"
    assert load_cluster(name) == load_spec(name).cluster


def test_json_of_a_tree() -> None:
    answer = data("llama3-70b-256xh100")
    assert list(answer) == [
        "name", "gpu", "gpus", "levels", "hosts", "pairs", "left_out", "parts",
        "links",
    ]  # fmt: skip
    assert [list(level) for level in answer["levels"]] == [
        ["name", "size", "gb_s", "latency_us", "uplink", "bus_share"]
    ] * 2
    assert [level["size"] for level in answer["levels"]] == [8, 32]
    host = {"kind": "node0", "count": 32, "gpus": 8, "nics": 8, "lacks": []}
    assert answer["hosts"] == [host]
    assert answer["left_out"] == []
    assert len(answer["pairs"]["gpus"]) == 8
    assert answer["pairs"]["gb_s"][2][5] == 450
    # Eight GPUs to NVLink, eight to a NIC each, eight NICs to the leaf.
    assert len(answer["links"]) == 24


def test_json_of_hosts_that_are_not_alike(tmp_path: Path) -> None:
    answer = data(written(tmp_path, BROKEN))
    assert answer["gpus"] == 80
    assert [level["name"] for level in answer["levels"]] == ["efa"]
    assert [(h["kind"], h["count"], h["lacks"]) for h in answer["hosts"]] == [
        ("node0", 9, []),
        ("node1", 1, ["gpu3 - nvlink0 has 150 of 300 GB/s"]),
    ]
    assert answer["left_out"] == [2, 3]


def test_a_table_says_what_is_broken_and_left_out(tmp_path: Path) -> None:
    text = shown(written(tmp_path, BROKEN))
    for line in (
        "80 x a100-sxm-40gb, in 10 hosts of 8",
        "  node0, node4 to node11: whole\n",
        "  node1: gpu3 - nvlink0 has 150 of 300 GB/s\n",
        "  node2: left out, down\n",
        "  node3: left out, fewer GPUs than the others\n",
        "Between two GPUs of node0, GB/s per direction",
    ):
        assert line in text


def test_hosts_give_up_gpus_that_others_lack(tmp_path: Path) -> None:
    downs = [f"    - {{host: {host}, node: gpu7}}" for host in (1, 2)]
    spec = BROKEN.partition("  overrides:")[0].replace("count: 12", "count: 3")
    text = shown(written(tmp_path, "\n".join([f"{spec}  overrides:", *downs])))
    assert "21 x a100-sxm-40gb, in 3 hosts of 7" in text
    assert "  node0: gpu7 is not used\n  node1, node2: gpu7 is down\n" in text


def test_markdown_and_an_output_file(tmp_path: Path) -> None:
    out = tmp_path / "told.md"
    assert shown("dgx-1v", "--format", "markdown", "-o", str(out)) == ""
    text = out.read_text(encoding="utf-8")
    assert text == shown("dgx-1v", "--format", "markdown")
    # In the cube mesh gpu0 has one link to gpu1 and none to gpu5, 25 GB/s each link.
    assert "| gpu0 | - | 25 | 25 | 50 | 50 | 6 | 6 | 6 |" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx-1v", "dgx-h100-pod"])
def test_a_plot_is_a_picture_and_a_page(name: str, tmp_path: Path) -> None:
    assert shown(name, "--plot", str(tmp_path / "drawn")) == shown(name)
    picture = (tmp_path / "drawn.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert min(struct.unpack(">II", picture[16:24])) >= 520
    assert f"{name}: " in (tmp_path / "drawn.html").read_text(encoding="utf-8")


def refused(*arguments: str) -> str:
    result: Result = run("topology", *arguments)
    assert (result.code, result.stdout) == (2, ""), result
    return result.stderr.removeprefix("error: ")


BAD = [
    (LEVELS.replace("300", "300 parsec"),
     "3: levels.0.gb_s: '300 parsec': unknown unit 'parsec'"),
    (LEVELS.replace("80gb", "8gb"),
     "1: gpu: 'a100-sxm-8gb' is neither a file nor a bundled name; did you mean"),
    (LEVELS.replace("a100-sxm-80gb", "5"), "1: gpu: 5: expected a name, or a mapping"),
    (LEVELS.replace("size: 8, ", ""), "3: levels.0.size: missing; expected children"),
    (LEVELS + "hots: {}\n", "4: hots: unknown field; did you mean host?"),
    (LEVELS + "host: {gpus: 3, memory_gib: 9, pcie_gb_s: 2, memory_gb_s: 3}\n",
     "4: host.gpus: 3 does not divide the 8 GPUs of the cluster"),
    ("gpu: a100-sxm-80gb\n", "1: expected levels, or nodes and links; neither is"),
    ("- 8\n", "1: [8]: expected a spec with a cluster, or a topology, as a mapping"),
    ("cluster:\n", "1: cluster: nothing: expected a name, or a mapping with the"),
    ("cluster: dgx-h10\n", "1: cluster.topology: 'dgx-h10' is neither a file nor"),
    (SPEC.replace("gb_s: 300", "gb_s: x"), "15: cluster.topology.levels.0.gb_s: 'x': "),
    (BROKEN.replace("gpu7", "gpu9"),
     "8: cluster.overrides.2.node: 'gpu9' is not among the nodes; accepted: gpu0, "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_input_names_file_line_field_and_value(
    text: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    assert refused(path).startswith(f"{path}:{message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dgx-1w"], "'dgx-1w' is neither a file nor a bundled name; did you mean dgx"),
        (["absent.yaml"], "'absent.yaml': no such file; expected a YAML file"),
        (["dgx-1v", "-o", "/dev/null/x"], "--output /dev/null/x: "),
    ],
)
def test_names_and_paths_that_are_not_there(arguments: list[str], message: str) -> None:
    assert refused(*arguments).startswith(message)


def test_what_another_tool_printed_is_told_by_the_command_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as YAML with tabs."""
    monkeypatch.chdir(tmp_path)
    text = good.IMPORTS["nvidia_smi"][0]
    (tmp_path / "topo.txt").write_text(text, encoding="utf-8")
    result = run("topology", "topo.txt")
    assert (result.code, result.stdout) == (2, "")
    told = unwrapped(result.stderr)
    assert "topo.txt: is no topology; it looks like nvidia_smi: " in told
    assert "meshwright import nvidia_smi topo.txt --gpu GPU -o cluster.yaml" in told
