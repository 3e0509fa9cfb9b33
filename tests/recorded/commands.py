"""The commands that are recorded, each a list of words; files lie where they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.recorded.specs import (
    CHANGES,
    FRAMEWORKS,
    UNDER_EACH_FRAMEWORK,
    bundled,
)

Command = tuple[str, ...]
JSON = ("--format", "json")

SLOW_EXPLAINS = (
    "llama3-405b-16384xh100",
    "llama3-8b-512xa100-degraded",
    "llama2-13b-8xh100-8xa100",
)
"""Bundled specs whose explanations take long; their solves are recorded too."""

PLANS = {
    "llama2-13b-8xa100": (
        "tp=8",
        "pp=4",
        "tp=2,zero=1",
        "tp=16",
        "zero=3,recompute=full",
    ),
    "gpt2-xl-2x4090-pcie": ("tp=2", "pp=2", "zero=0,micro_batch=4", "cp=2"),
    "llama3-70b-16xh100": ("tp=8,pp=2", "zero=3", "tp=4,pp=4,vpp=2"),
    "llama3-70b-256xh100": ("tp=8,pp=4", "tp=2,pp=8"),
    "gpt-1.3b-dgx-1v": ("tp=4", "tp=4,pp=2"),
    "mixtral-8x7b-64xh100": ("ep=8", "tp=2,ep=4"),
    "serve-llama3-70b-8xh100": ("tp=8", "tp=2,pp=2"),
}

LARGE = ("deepseek-v3-16384xh100", "deepseek-v3-2048xh100", "llama3-405b-4096xh100")

MACHINES = (
    "dgx-1v",
    "dgx-2",
    "gb200-nvl72",
    "mi300x-8",
    "a6000-4-nvlink-pairs",
    "p4d.24xlarge",
    "g5.48xlarge",
    "ndv2",
    "a3-megagpu-8g",
    "rtx-4090-pcie-8",
)


def commands() -> list[Command]:
    """Return every command, the same list on every machine that has the samples."""
    return [*_solves(), *_explains(), *_compares(), *_others(), *_imports()]


def _solves() -> Iterator[Command]:
    for name in bundled():
        yield ("solve", name, *JSON)
    for name in CHANGES:
        yield ("solve", f"{name}.yaml", *JSON)
    for name in UNDER_EACH_FRAMEWORK:
        for framework in FRAMEWORKS:
            yield ("solve", f"{framework}-{name}.yaml", *JSON)
    for name in (
        *LARGE,
        "llama3-70b-512xa100-nic",
        "gpt-1.3b-16xa6000-tp2",
        "llama2-13b-16xa100-idle",
    ):
        yield ("solve", f"{name}.yaml", *JSON)
    for pin in (
        "tp=4",
        "pp=8",
        "zero=3",
        "zero=1",
        "micro_batch=1",
        "recompute=none",
        "schedule=zb-h1",
        "schedule=gpipe",
        "vpp=2",
        "cp=2",
        "offload=none",
        "dp_shard=8",
        "tp={max: 2}",
        "mesh={tp: [8]}",
        "ep=2",
        "dp=4",
        "tp=7",
        "nonsense=1",
    ):
        yield ("solve", "llama2-13b-8xa100", "--pin", pin, *JSON)
    for name in (
        "llama3-8b-2x3090-nvlink",
        "llama2-13b-8xa100",
        "mixtral-8x7b-64xh100",
    ):
        yield ("solve", name, "--top", "5", *JSON)
        yield ("solve", name, "--by-kind", *JSON)
        yield ("solve", name, "--profile", "unfitted", *JSON)
        yield ("solve", name)
        yield ("solve", name, "--format", "markdown", "--ranks", "ranks")
    for name in ("misspelt", "no-batch", "bad-unit", "odd-heads"):
        yield ("solve", f"{name}.yaml")


def _explains() -> Iterator[Command]:
    for name in bundled():
        if name not in SLOW_EXPLAINS:
            yield ("explain", name, *JSON)
    for name in CHANGES:
        yield ("explain", f"{name}.yaml", *JSON)
    for name, plans in PLANS.items():
        for plan in plans:
            yield ("explain", name, "--plan", plan, *JSON)
    for framework in FRAMEWORKS:
        yield (
            "explain",
            f"{framework}-llama2-13b-8xa100.yaml",
            "--plan",
            "tp=2,pp=2",
            *JSON,
        )
        yield ("explain", f"{framework}-gpt2-xl-2x4090-pcie.yaml", *JSON)
        yield ("explain", "--rules", framework, *JSON)
    for words in (("--collectives",), ()):
        yield ("explain", "llama3-8b-2xh100-nvlink", *words)
        yield ("explain", "tight-24.yaml", *words)


def _compares() -> Iterator[Command]:
    for name in (
        "gpt2-xl-2x4090-pcie",
        "llama3-8b-2xh100-nvlink",
        "llama2-13b-8xa100",
        "mixtral-8x7b-64xh100",
        "gpt-1.3b-2xa100-pcie",
        "llama3-70b-16xh100",
    ):
        yield ("compare", name, *JSON)
    yield ("compare", "llama2-13b-8xa100", "--plan", "tp=2", "--plan", "zero=3", *JSON)
    yield (
        "compare",
        "llama2-13b-8xa100",
        "--plan",
        "tp=8",
        "--plan",
        "pp=2,zero=1",
        "--vary",
        "topology.levels[0].gb_s=8:900",
        *JSON,
    )
    yield ("compare", "llama3-8b-2xh100-nvlink")


def _others() -> Iterator[Command]:
    for machine in MACHINES:
        yield ("topology", machine, *JSON)
    for name in (
        "llama3-8b-512xa100-degraded",
        "gpt2-xl-2x3090-2x4090",
        "llama3-405b-16384xh100",
    ):
        yield ("topology", name, *JSON)
        yield ("topology", name)
    for size, *words in (
        ("4096",),
        ("16384",),
        ("65536",),
        ("1000",),
        ("32768", "--dtype", "fp8"),
        ("8192", "--gpus", "8"),
        ("100000", "--gpus", "2"),
        ("8192", "--split-k", "4", "--bias", "--residual"),
        ("8192", "--gpu", "rtx-4090"),
        ("40000", "--usable", "1GiB"),
        ("8192", "--dtype", "fp32", "--vram", "8GiB"),
    ):
        gpu = () if "--gpu" in words else ("--gpu", "h100-sxm-80gb")
        yield ("gemm", size, size, size, *words, *gpu, *JSON)
    for sweep in ("context-length", "scaling.yaml", "axes.yaml"):
        yield (
            "search",
            sweep,
            "--store",
            f"{sweep}.sqlite",
            "-o",
            "rows.json",
            "--workers",
            "1",
            *JSON,
        )
    yield (
        "search",
        "llama2-13b-8xa100",
        "--within",
        "peak_gib",
        "-o",
        "rows.json",
        "--workers",
        "1",
        *JSON,
    )
    yield ("evidence", "runs/korthikanti22.yaml", *JSON)
    yield ("nonsense",)
    for command in (
        "solve",
        "explain",
        "compare",
        "search",
        "topology",
        "gemm",
        "import",
        "evidence",
        "calibrate",
    ):
        yield (command, "--help")


FOLDERS = {
    "topo_nvidia": "nvidia_smi",
    "topo_rocm": "rocm_smi",
    "nccl_topo": "nccl_xml",
    "slurm": "slurm",
    "hwloc": "hwloc",
}
"""Folders of real files that others printed, and how they are imported."""


def _imports() -> Iterator[Command]:
    shared = os.environ.get("MESHWRIGHT_SHARED")
    if not shared:
        return
    for folder, kind in FOLDERS.items():
        for path in sorted((Path(shared) / "samples" / folder).iterdir()):
            gpu = (
                "mi300x-192gb"
                if "rocm" in kind or "mi300" in path.name
                else "a100-sxm-80gb"
            )
            words = ("--machine", "dgx-a100") if kind == "slurm" else ("--gpu", gpu)
            yield ("import", kind, f"samples/{folder}/{path.name}", *words)
    for path in sorted((Path(shared) / "samples" / "nccl_tests").iterdir()):
        yield (
            "import",
            "nccl_tests",
            f"samples/nccl_tests/{path.name}",
            "--onto",
            "dgx-a100",
        )
