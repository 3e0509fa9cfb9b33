"""Bandwidths that are given for both ways together."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.loading.load import load_cluster


def notes(gb_s: float | str, gpu: str = "h100") -> list[str]:
    level = {"name": "nvlink", "size": 8, "gb_s": gb_s, "latency_us": 1}
    found: list[str] = []
    mw.load(
        {
            "model": "gpt2-xl",
            "cluster": {
                "topology": {"gpu": gpu, "levels": [level | {"uplink": "per_gpu"}]}
            },
            "training": {"seq_len": 1024, "global_batch": 8},
        },
        notes=found,
    )
    return found


def test_nvlink_of_900_is_told_to_be_both_ways() -> None:
    (note,) = notes("900 GB/s")
    assert "450 in all: that is both ways together" in note
    (note,) = notes(600, "a100-80gb")
    assert "300 in all: that is both ways together" in note


def test_what_is_one_way_is_not_told() -> None:
    assert notes(450) == notes(300, "a100-80gb") == notes(64, "rtx-4090") == []


@pytest.mark.parametrize("name", catalog.names("topologies/machines"))
def test_no_bundled_machine_is_told(name: str) -> None:
    found: list[str] = []
    load_cluster(name, found)
    assert not [own for own in found if own.startswith("level ")]
