"""The memory of stages as the data of its chart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from meshwright.report.answer_page.numbers import rounded
from meshwright.report.safety import probability_text
from meshwright.results.priced_plan import StageMemory

Told = dict[str, Any]
"""What is told of a stage beside its memory: its GPU, layers and capacity."""


def memory_data(stages: Sequence[StageMemory], told: Sequence[Told]) -> dict[str, Any]:
    """Return the memory of stages by part; stages that are alike stand together."""
    names = [
        name
        for name in stages[0].parts
        if any(stage.parts[name] > 0 for stage in stages)
    ]
    cells = [_cell(*own, names) for own in zip(stages, told, strict=True)]
    groups = []
    for alike, group in groupby(range(len(cells)), key=lambda index: cells[index]):
        members = list(group)
        first, last = members[0], members[-1]
        span = f"stage {first}" if first == last else f"stages {first}-{last}"
        groups.append({"label": span, **alike})
    fullest = max(stages, key=lambda stage: stage.total_gib - stage.usable_gib)
    left = fullest.usable_gib - fullest.total_gib
    sentence = f"The fullest GPU has {left:.2f} GiB left of what a plan may use."
    if left < 0:
        sentence = f"The fullest GPU lacks {-left:.2f} GiB."
    has_host = any(stage.host_gib > 0 for stage in stages)
    return {"names": names, "groups": groups, "told": sentence, "hasHost": has_host}


def _cell(memory: StageMemory, told: Told, names: list[str]) -> Told:
    return {
        **told,
        "parts": {name: rounded(memory.parts[name]) for name in names},
        "total": rounded(memory.total_gib),
        "usable": rounded(memory.usable_gib),
        "host": rounded(memory.host_gib),
        "fits": probability_text(memory.fit_probability),
    }
