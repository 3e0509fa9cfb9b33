"""GPUs and machines go by the names people use."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.gpu import Gpu

MACHINES = "topologies/machines"
GPUS = "topologies/gpus"

SPELLINGS = {
    # Product strings of nvidia-smi and rocm-smi, then names of clouds and catalogues.
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA-H100-80GB-HBM3": "h100-sxm-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA B200": "b200-sxm-180gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA L4": "l4-24gb",
    "NVIDIA L40S": "l40s-48gb",
    "NVIDIA A10G": "a10g-24gb",
    "NVIDIA RTX A6000": "a6000-48gb",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada-48gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090-32gb",
    "Tesla V100-SXM2-16GB": "v100-sxm-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "AMD Instinct MI300X": "mi300x-192gb",
    "A100-80GB": "a100-sxm-80gb",
    "V100": "v100-sxm-16gb",
    "V100-32GB": "v100-sxm-32gb",
    "H100": "h100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "H100_sxm_80GB": "h100-sxm-80gb",
    "H100NVL": "h100-nvl-94gb",
    "RTX4090": "rtx-4090",
    "MI325X": "mi325x-256gb",
}

MACHINE_SPELLINGS = {
    "DGX H100": "dgx-h100",
    "NVIDIA DGX A100": "dgx-a100",
    "dgx-a100-80gb": "dgx-a100",
    "DGX-1": "dgx-1v",
    "p4d": "p4d.24xlarge",
    "p4de": "p4de.24xlarge",
    "P5": "p5.48xlarge",
    "p5e": "p5e.48xlarge",
    "a3-mega": "a3-megagpu-8g",
    "8x MI300X": "mi300x-8",
    "ND_A100_v4": "nd-a100-v4",
    "ND_H100_v5": "nd-h100-v5",
    "NDv2": "ndv2",
    "Standard_ND96asr_v4": "nd-a100-v4",
    "Standard_ND96isr_H100_v5": "nd-h100-v5",
    "BM.GPU.H100.8": "dgx-h100",
    "GB200 NVL72": "gb200-nvl72",
    "H100_NVLink_2": "h100-nvlink-2",
}


def aliases() -> dict[str, dict[str, Any]]:
    path = Path(str(catalog.folder("topologies") / catalog.ALIASES))
    content: dict[str, dict[str, Any]] = read_yaml(path).data
    return content


@pytest.mark.parametrize(("section", "kind"), [("gpus", GPUS), ("machines", MACHINES)])
def test_aliases_resolve_and_collide_with_nothing(section: str, kind: str) -> None:
    known = [catalog.fold(name) for name in catalog.names(kind)]
    known += [catalog.fold(n) for n in catalog.names("topologies") if kind == MACHINES]
    folded = [catalog.fold(alias) for alias in aliases()[section]]
    assert max(Counter(known + folded).values()) == 1
    for alias, name in aliases()[section].items():
        path = catalog.locate(kind, alias, Path())
        assert (path.is_file(), path.name) == (True, f"{name}.yaml")


@pytest.mark.parametrize(("written", "name"), SPELLINGS.items())
def test_gpus_go_by_the_names_of_drivers_and_clouds(written: str, name: str) -> None:
    gpu = Gpu.model_validate(read_yaml(catalog.locate(GPUS, written, Path())).data)
    assert gpu.name == name


@pytest.mark.parametrize(("written", "name"), MACHINE_SPELLINGS.items())
def test_machines_go_by_the_names_of_vendors_and_clouds(
    written: str, name: str
) -> None:
    assert read_yaml(catalog.locate("topologies", written, Path())).data["name"] == name


def test_instance_types_may_name_their_cloud() -> None:
    for cloud, instances in aliases()["clouds"].items():
        for instance in instances:
            plain = catalog.locate("clusters", instance, Path())
            assert catalog.locate("clusters", f"{cloud}:{instance}", Path()) == plain
            assert (
                catalog.locate(MACHINES, f"{cloud.upper()}:{instance}", Path()) == plain
            )
    with pytest.raises(
        SpecError, match=r"'aws:p5.49xlarge': no .*accepted: p5.48xlarge"
    ):
        catalog.locate("clusters", "aws:p5.49xlarge", Path())
    with pytest.raises(SpecError, match=r"'gcp:p5\.48xlarge': no instance type"):
        catalog.locate("clusters", "gcp:p5.48xlarge", Path())


def test_a_file_comes_before_other_spellings_but_not_before_a_name(
    tmp_path: Path,
) -> None:
    for name in ("H100", "h100-sxm-80gb"):
        (tmp_path / name).write_text("")
    (tmp_path / "H200").mkdir()
    found = [catalog.locate(GPUS, n, tmp_path) for n in ("H100", "h100-sxm-80gb")]
    assert found[0] == tmp_path / "H100"
    assert found[1] == catalog.locate(GPUS, "h100-sxm-80gb", Path())
    assert catalog.locate(GPUS, "H200", tmp_path).stem == "h200-sxm-141gb"


def test_names_and_files_are_found_without_reading_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_kind: str) -> None:
        raise AssertionError

    monkeypatch.setattr(catalog, "_aliases", refuse)
    (tmp_path / "mine.yaml").write_text("")
    assert catalog.locate("topologies", "p5.48xlarge", tmp_path).is_file()
    assert catalog.locate(GPUS, "mine.yaml", tmp_path).is_file()
    with pytest.raises(AssertionError):
        catalog.locate(GPUS, "H100", tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("topologies", "p5.48xlrge", "did you mean p5.48xlarge or "),
        ("topologies", "dgx-b20", "did you mean dgx-b200?"),
        (MACHINES, "ND96isr_H100_v6", "did you mean nd-h100-v5 or "),
        (GPUS, "NVIDIA A100-SXM4-8GB", "did you mean a100-sxm-80gb or "),
        (GPUS, "Tesla", "bundled: a10-24gb, a100-pcie-40gb, "),
        (GPUS, "h20.yaml", "no such file; expected a YAML file or a bundled name such"),
        ("specs", "H100", "did you mean "),
        ("topologies", "2xRTX4091", "no GPU goes by 'RTX4091'; did you mean rtx-4090"),
        ("topologies", "0xH100", "0 GPUs; expected 1 to 100,000"),
        ("topologies", "4xdgx-h100", "is a machine; expected its name alone, and co"),
        (GPUS, "A100-SXM4-80GB MIG 3g.40gb", "a slice of a GPU (MIG) is not bundled"),
        (catalog.MODELS, "./c.json", "no such file; expected a config.json"),
    ],
)
def test_a_near_miss_names_what_was_meant(kind: str, name: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        catalog.locate(kind, name, Path())
    assert expected in str(caught.value)
    assert repr(name) in str(caught.value)
