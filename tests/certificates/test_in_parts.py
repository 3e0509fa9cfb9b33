"""A survey looks at few skeletons at a time, and tells what it tells of all at once."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import meshwright as mw
from meshwright.certificates import cover, survey
from meshwright.planner.memory_fit import MemoryFit
from meshwright_verify import verify

FEW = 150


@pytest.mark.parametrize(
    ("name", "memory_gib"),
    [
        ("mixtral-8x7b-64xh100", None),
        ("llama3-8b-2xh100-nvlink", None),
        ("llama3-8b-2xh100-nvlink", 3),
        ("gpt2-xl-2x3090-2x4090", None),
    ],
)
def test_parts_of_any_size_make_the_same_certificate(
    name: str, memory_gib: float | None
) -> None:
    """All at once took gigabytes: of DeepSeek-V3 on 2,048 GPUs two million are near."""
    spec = mw.load(name, mw.Spec)
    if memory_gib is not None:
        spec = spec.having("limits", memory_gib=memory_gib)
    found = mw.solve(spec, by_kind=False, safety=False, repair=False)
    whole = mw.certificate(spec, found)
    verify(whole)
    assert (found.status == "infeasible") == (memory_gib is not None)
    priced, price = list[int](), MemoryFit.__init__

    def noted(memory: MemoryFit, job: Any, lattice: Any) -> None:
        priced.append(len(lattice))
        price(memory, job, lattice)

    with (
        patch.object(survey, "MEASURED_AT_ONCE", FEW),
        patch.object(cover, "MEASURED_AT_ONCE", FEW),
        patch.object(MemoryFit, "__init__", noted),
    ):
        assert mw.certificate(spec, found) == whole
    assert sum(priced) > 3 * FEW
    assert max(priced) <= FEW
