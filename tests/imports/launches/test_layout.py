"""Layout strings are read as Megatron Core reads them."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports.launches.megatron import layers_of_stages
from meshwright.imports.launches.settings import Setting
from meshwright.reading.document import Where


def setting(value: object) -> Setting:
    """Return a setting that has a layout."""
    return Setting("layout", value, Where("run.sh", 3), "--layout")


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("Et*7|t*9|t*9|t*7,L", [7, 9, 9, 7]),
        ("Ettt|(tt|)*29,m|L", [3, *[2] * 29, 0, 0]),
        ("E|(t|)*4L", [0, 1, 1, 1, 1, 0]),
        ("EttL", [2]),
        ([["embedding", "decoder"], ["decoder", "decoder", "loss"]], [1, 2]),
    ],
)
def test_layers_of_each_stage(layout: object, layers: list[int]) -> None:
    assert layers_of_stages(setting(layout)) == layers


@pytest.mark.parametrize(
    "layout", ["", "t|t", "Ex|L", "LtE", "E" + "(t|)*99999" * 9 + "L", [["x"]], 3]
)
def test_no_layout_is_refused(layout: object) -> None:
    with pytest.raises(SpecError, match=r"run\.sh:3: --layout"):
        layers_of_stages(setting(layout))
