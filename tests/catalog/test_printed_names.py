"""Names of GPUs as nvidia-smi, rocm-smi, lspci, Kubernetes and clouds print them."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshwright import catalog
from meshwright.catalog import matches, spoken
from meshwright.errors import SpecError

KIND = catalog.GPUS

PRINTED = {
    "a100-sxm-40gb": """NVIDIA A100-SXM4-40GB|A100-SXM4-40GB|NVIDIA-A100-SXM4-40GB
        NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev a1)|nvidia-tesla-a100|A100-40GB
        A100 SXM4 40GB|nvidia_a100_sxm4_40gb|A100-PG509-200|A100:40GB SXM""",
    "a100-sxm-80gb": """NVIDIA A100-SXM4-80GB|NVIDIA-A100-SXM4-80GB|A100-80GB|A100 80G
        NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)|nvidia-a100-80gb
        A100-SXM-80GB|A100_80GB_SXM|a100-80gb-sxm4|NVIDIA A100 SXM4 80 GB""",
    "a100-pcie-40gb": """NVIDIA A100-PCIE-40GB|A100-PCIE-40GB|NVIDIA-A100-PCIE-40GB
        NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)|A100 40GB PCIe""",
    "a100-pcie-80gb": """NVIDIA A100 80GB PCIe|NVIDIA-A100-80GB-PCIe|A100 80GB PCIE
        NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev a1)|A100-PCIe-80GB""",
    "a800-sxm-80gb": """NVIDIA A800-SXM4-80GB|A800-SXM4-80GB|NVIDIA-A800-SXM4-80GB
        A800 SXM4 80GB|A800-80GB""",
    "a800-pcie-80gb": "NVIDIA A800 80GB PCIe|NVIDIA-A800-80GB-PCIe|A800 PCIe",
    "a30-24gb": "NVIDIA A30|NVIDIA-A30|A30|NVIDIA Corporation GA100GL [A30 PCIe]",
    "a10-24gb": "NVIDIA A10|NVIDIA-A10|A10|NVIDIA Corporation GA102GL [A10] (rev a1)",
    "t4-16gb": """Tesla T4|NVIDIA T4|Tesla-T4|NVIDIA-Tesla-T4|T4
        NVIDIA Corporation TU104GL [Tesla T4] (rev a1)""",
    "a10g-24gb": "NVIDIA A10G|NVIDIA-A10G|A10G|nvidia-a10g",
    "a40-48gb": "NVIDIA A40|NVIDIA-A40|A40|NVIDIA Corporation GA102GL [A40] (rev a1)",
    "a5000-24gb": "NVIDIA RTX A5000|RTX A5000|NVIDIA-RTX-A5000|RTXA5000",
    "a6000-48gb": """NVIDIA RTX A6000|RTX A6000|NVIDIA-RTX-A6000|RTXA6000|A6000
        NVIDIA Corporation GA102GL [RTX A6000] (rev a1)""",
    "h100-sxm-80gb": """NVIDIA H100 80GB HBM3|NVIDIA-H100-80GB-HBM3|H100-SXM5-80GB
        NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)|nvidia-h100-80gb|H100-80GB
        nvidia-h100-mega-80gb|H100-MEGA-80GB|H100|H100 SXM|H100 SXM5
        NVIDIA H100 SXM5 80GB""",
    "h100-pcie-80gb": """NVIDIA H100 PCIe|NVIDIA-H100-PCIe|H100 PCIe|H100-PCIE-80GB
        NVIDIA Corporation GH100 [H100 PCIe] (rev a1)|NVIDIA H100 80GB HBM2e""",
    "h100-nvl-94gb": """NVIDIA H100 NVL|NVIDIA-H100-NVL|H100NVL|H100 NVL|H100-NVL-94GB
        NVIDIA Corporation GH100 [H100 NVL] (rev a1)""",
    "h200-sxm-141gb": """NVIDIA H200|NVIDIA-H200|nvidia-h200-141gb|H200|H200 SXM
        NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)|H200-141GB
        NVIDIA H200 SXM""",
    "h200-nvl-141gb": """NVIDIA H200 NVL|NVIDIA-H200-NVL|H200 NVL|H200NVL
        NVIDIA Corporation GH100 [H200 NVL] (rev a1)""",
    "h20-sxm-96gb": "NVIDIA H20|NVIDIA-H20|H20|H20 96GB|H20-SXM5-96GB",
    "h800-sxm-80gb": "NVIDIA H800|NVIDIA-H800|H800|H800-SXM5-80GB|H800 80GB HBM3",
    "gh200-96gb": """NVIDIA GH200 480GB|NVIDIA-GH200-480GB|GH200|GH200 96GB
        NVIDIA GH200 96G HBM3""",
    "gh200-144gb": "NVIDIA GH200 144G HBM3e|GH200 144GB|GH200-144GB-HBM3e",
    "b200-sxm-180gb": """NVIDIA B200|NVIDIA-B200|B200|nvidia-b200|B200 180GB|B200-SXM
        B200 192GB""",
    "b300-sxm-288gb": "NVIDIA B300 SXM6 AC|NVIDIA-B300-SXM6-AC|B300|NVIDIA B300",
    "gb200-186gb": "NVIDIA GB200|NVIDIA-GB200|GB200|nvidia-gb200|GB200 192GB",
    "gb300-288gb": "NVIDIA GB300|NVIDIA-GB300|GB300|nvidia-gb300",
    "gb10-128gb": "NVIDIA GB10|NVIDIA-GB10|GB10|DGX Spark",
    "l4-24gb": "NVIDIA L4|NVIDIA-L4|L4|nvidia-l4|NVIDIA Corporation AD104GL [L4]",
    "l40-48gb": "NVIDIA L40|NVIDIA-L40|L40|L40 48GB",
    "l40s-48gb": "NVIDIA L40S|NVIDIA-L40S|L40S|nvidia-l40s|L40S 48GB",
    "rtx-3090": """NVIDIA GeForce RTX 3090|GeForce RTX 3090|NVIDIA-GeForce-RTX-3090
        RTX3090|RTX 3090|3090|NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)""",
    "rtx-4090": """NVIDIA GeForce RTX 4090|GeForce RTX 4090|NVIDIA-GeForce-RTX-4090
        RTX4090|RTX 4090|4090|NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)""",
    "rtx-5090-32gb": """NVIDIA GeForce RTX 5090|NVIDIA-GeForce-RTX-5090|RTX5090|RTX 5090
        NVIDIA Corporation GB202 [GeForce RTX 5090] (rev a1)""",
    "rtx-6000-ada-48gb": """NVIDIA RTX 6000 Ada Generation|RTX 6000 Ada
        NVIDIA-RTX-6000-Ada-Generation|RTX6000-Ada|RTX6000Ada""",
    "rtx-pro-6000-96gb": """NVIDIA RTX PRO 6000 Blackwell Workstation Edition
        RTX PRO 6000|NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition|RTXPRO6000""",
    "rtx-pro-6000-server-96gb": """NVIDIA RTX PRO 6000 Blackwell Server Edition
        NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition|nvidia-rtx-pro-6000
        rtx-pro-server-6000""",
    "rtx-pro-6000-max-q-96gb": """RTX PRO 6000 Max-Q
        NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition""",
    "v100-sxm-16gb": """Tesla V100-SXM2-16GB|Tesla-V100-SXM2-16GB|V100|V100-SXM2
        nvidia-tesla-v100|NVIDIA Corporation GV100GL [Tesla V100 SXM2 16GB] (rev a1)""",
    "v100-sxm-32gb": """Tesla V100-SXM2-32GB|Tesla V100-SXM3-32GB|V100-32GB
        NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB] (rev a1)""",
    "v100-pcie-16gb": "Tesla V100-PCIE-16GB|V100 PCIe 16GB",
    "v100-pcie-32gb": "Tesla V100-PCIE-32GB|V100-PCIE-32GB",
    "mi210-64gb": "AMD Instinct MI210|MI210|AMD-Instinct-MI210|INSTINCT MI210",
    "mi250x": "AMD Instinct MI250X|MI250X|AMD-Instinct-MI250X",
    "mi300a-128gb": "AMD Instinct MI300A|MI300A|AMD-Instinct-MI300A",
    "mi300x-192gb": """AMD Instinct MI300X|AMD Instinct MI300X OAM|MI300X
        AMD_Instinct_MI300X_OAM|AMD-Instinct-MI300X-OAM|AMD Instinct MI300X VF
        MI300X 192GB""",
    "mi325x-256gb": """AMD Instinct MI325X|AMD Instinct MI325X OAM|MI325X
        AMD-Instinct-MI325X-OAM|AMD Instinct MI325X VF""",
    "mi355x-288gb": "AMD Instinct MI355X|MI355X|AMD-Instinct-MI355X|MI355X OAM",
    "gaudi3-128gb": "HL-325L|Gaudi3|Intel Gaudi 3|Intel(R) Gaudi(R) 3|gaudi3 128GB",
}  # fmt: skip

NAMES = [
    pytest.param(name.strip(), gpu, id=name.strip())
    for gpu, names in PRINTED.items()
    for name in names.replace("\n", "|").split("|")
]


def test_there_are_many_names() -> None:
    assert len(NAMES) >= 150
    assert set(PRINTED) == set(catalog.names(KIND))


@pytest.mark.parametrize(("printed", "gpu"), NAMES)
def test_a_printed_name_is_its_gpu(printed: str, gpu: str) -> None:
    assert catalog.locate(KIND, printed, Path()).stem == gpu


@pytest.mark.parametrize("name", ["A100", "NVIDIA A100", "a100"])
def test_a100_alone_asks_which(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        catalog.locate(KIND, name, Path())
    told = str(caught.value)
    assert all(
        f"a100-{board}-{gb}gb" in told for board in ("sxm", "pcie") for gb in (40, 80)
    )
    assert told.endswith("say which")


OTHERS = (
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "Tesla P4",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA H20-3e", "NVIDIA A100-SXM-64GB",
    "Quadro RTX 6000",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A16", "NVIDIA L20", "NVIDIA H800 PCIe",
    "NVIDIA A800 40GB Active", "NVIDIA RTX PRO 6000D", "AMD Instinct MI250", "gfx942",
    "NVIDIA L40S-48Q", "NVIDIA RTX 5000 Ada Generation", "", "GPU", "80GB", "SXM",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_gpu_is_not_taken_for_a_bundled_one(name: str) -> None:
    with pytest.raises(SpecError):
        catalog.locate(KIND, name, Path())


@given(st.text(max_size=80))
def test_any_text_has_words_or_none(text: str) -> None:
    assert all(word == word.lower() for word in spoken(text).model)
    matches(text, catalog.names(KIND))
