"""Layout strings of Megatron Core: which layers stand on which virtual stage."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.settings.setting import Setting

ACCEPTED = "expected a layout, such as Et*3|t*4|t*4|t*3L: E embedding, t layer, L loss"

MOST_CHARACTERS = 20_000
"""Most characters of a layout, after what is repeated is written out."""

_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,5})")
_REPEATED = re.compile(r"([^()*\d])\*(\d{1,5})")

_NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def layers_of_stages(setting: Setting) -> list[int]:
    """Return the layers of each virtual stage, in the order of the layers.

    Raises:
        SpecError: it is no layout, or its embedding and loss are not at the ends.
    """
    stages = _stages(setting)
    text = "".join(stages)
    if not text or set(text) - set("Etm L"):
        setting.refuse(ACCEPTED)
    if not (text.startswith("E") and text.endswith("L")):
        setting.refuse(f"E stands first and L last; {ACCEPTED}")
    return [stage.count("t") for stage in stages]


def has_prediction(setting: Setting) -> bool:
    """Return whether a layout has layers that predict more tokens."""
    return "m" in "".join(_stages(setting))


def _stages(setting: Setting) -> list[str]:
    value = setting.value
    if isinstance(value, list):
        return [_stage(row, setting) for row in value]
    text = re.sub(r"[,\s]", "", str(value))
    text = _unrolled(_unrolled(text, _GROUP, setting), _REPEATED, setting)
    return text.split("|")


def _stage(row: Any, setting: Setting) -> str:
    """Return the letters of a stage that is a list of names."""
    if isinstance(row, str):
        return row
    names = row if isinstance(row, list) else [row]
    letters = [_NAMES.get(str(name).lower().rpartition(".")[2]) for name in names]
    if None in letters:
        setting.refuse(ACCEPTED)
    return "".join(filter(None, letters))


def _unrolled(text: str, pattern: re.Pattern[str], setting: Setting) -> str:
    size = len(text) + sum(
        len(found[1]) * int(found[2]) for found in pattern.finditer(text)
    )
    if size > MOST_CHARACTERS:
        setting.refuse(f"expected at most {MOST_CHARACTERS:,} layers and stages")
    return pattern.sub(lambda found: found[1] * int(found[2]), text)
