"""Matches names of GPUs, as drivers and clouds print them, with the bundled ones.

A name has words for the model, the board (SXM, PCIe, NVL) and the memory, in any order
and among words that tell nothing: 'NVIDIA A100-SXM4-80GB', 'A100 80GB PCIe',
'NVIDIA-H100-80GB-HBM3', 'GH100 [H100 SXM5 80GB]'. The model must be the same; a board
or memory that the name has must be that of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

NOISE = frozenset(
    re.findall(
        r"\S+",
        "nvidia amd intel habana labs inc corporation tesla geforce instinct graphics "
        "gpu gpus accelerator oam generation edition blackwell workstation tensor core "
        "rtx ac mega vf superchip grace hopper ampere controller 3d display rev a1",
    )
)
"""Words that tell no GPU from another."""

BOARDS = frozenset({"sxm", "pcie", "nvl"})

NEAR_MEMORY = 0.08
"""Relative difference of two sizes that are the same memory: 192 GB are sold as 180."""

MOST_GPU_GB = 400
"""Sizes above are those of a CPU beside the GPU, as in GH200 480GB."""

_BRACKETS = re.compile(r"\[([^\[\]]{2,80})\]")
_MEMORY = re.compile(r"(\d{1,4})(?:g|gb|gib)")
_PARTS = (
    (re.compile(r"\brtx(?=[a-z0-9])"), "rtx "),
    (re.compile(r"\bgaudi[\W_]{0,6}(?:r\W{0,3})?(?=\d\b)"), "gaudi"),
    (re.compile(r"(?<=\d)(?=nvl|sxm|pcie)"), " "),
    (re.compile(r"\bmax[\W_]{0,3}q\b"), "max q"),
    (re.compile(r"\((?:r|tm)\)"), " "),
    (re.compile(r"(?<=\d) (?=(?:gb|gib)\b)"), ""),
)


class Spoken(NamedTuple):
    """What a name says of a GPU."""

    model: frozenset[str]
    board: str = ""
    memory_gb: int | None = None


def spoken(name: str) -> Spoken:
    """Return the model, board and memory in a name."""
    text = name.lower()
    if (inner := _BRACKETS.search(text)) and any(map(str.isdigit, inner[1])):
        text = inner[1]
    for pattern, plain in reversed(_PARTS):
        text = pattern.sub(plain, text)
    model, board, memory_gb = set(), "", None
    for word in re.findall(r"[a-z0-9]+", text):
        plain = re.sub(r"^(sxm|pcie)\d$", r"\1", word)
        if plain in BOARDS:
            board = plain
        elif match := _MEMORY.fullmatch(word):
            size = int(match[1])
            memory_gb = size if size <= MOST_GPU_GB else memory_gb
        elif word not in NOISE and not word.startswith("hbm"):
            model.add(word)
    return Spoken(frozenset(model), board, memory_gb)


def matches(name: str, known: Iterable[str]) -> list[str]:
    """Return the bundled GPUs that a name may mean, those of nearest memory alone."""
    wanted = spoken(name)
    if not wanted.model:
        return []
    able = [(other, spoken(other)) for other in known]
    able = [pair for pair in able if _is_meant(wanted, pair[1])]
    if wanted.memory_gb is not None:
        distances = {
            other: abs((own.memory_gb or wanted.memory_gb) - wanted.memory_gb)
            for other, own in able
        }
        least = min(distances.values(), default=0)
        return [other for other, distance in distances.items() if distance == least]
    return [other for other, _ in able]


def _is_meant(wanted: Spoken, own: Spoken) -> bool:
    if wanted.model != own.model or wanted.board not in ("", own.board or wanted.board):
        return False
    if wanted.memory_gb is None or own.memory_gb is None:
        return True
    return abs(wanted.memory_gb / own.memory_gb - 1) <= NEAR_MEMORY
