"""Remarks on numbers that are legal, and that were probably meant otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.loading.load import load_cluster


def notes(
    gb_s: float | str = 450,
    gpu: str = "h100",
    training: tuple[int, int] = (1024, 8),
    **more: Any,
) -> list[str]:
    level = {"name": "nvlink", "size": 8, "gb_s": gb_s, "latency_us": 1}
    topology = {"gpu": gpu, "levels": [level | {"uplink": "per_gpu"}], **more}
    seq_len, global_batch = training
    found: list[str] = []
    mw.load(
        {
            "model": "llama3-8b",
            "cluster": {"topology": topology, "count": 2 if more else 1},
            "training": {"seq_len": seq_len, "global_batch": global_batch},
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


def infiniband(gb_s: float | str, uplink: str = "per_gpu") -> list[str]:
    rail = {"name": "ib", "gb_s": gb_s, "latency_us": 3, "uplink": uplink}
    return notes(training=(1024, 16), scale_out=rail)


def test_gbit_that_are_written_as_gb_are_told() -> None:
    (note,) = infiniband(400)
    assert note == (
        "level ib: 400 GB/s is more than any NIC has (800 Gbit/s, 100 GB/s): gb_s is "
        "in bytes, and 400 Gbit/s are 50"
    )
    assert infiniband("400 Gbit/s") == infiniband(100) == []
    assert infiniband(400, "shared") == [], "eight NICs of 400 Gbit/s"


def test_a_batch_that_was_written_as_the_length_is_told() -> None:
    (note,) = notes(training=(64, 4096))
    assert note == (
        "training.seq_len: 64 tokens with a global_batch of 4,096 sequences: were "
        "they swapped?"
    )
    assert notes(training=(128, 256)) == [], "as BERT"
    assert notes(training=(4096, 64)) == []


def test_a_batch_that_hardly_any_number_of_copies_divides_is_told() -> None:
    (note,) = notes(training=(1024, 65))
    assert note == (
        "training.global_batch: 65 sequences on 8 GPUs let one copy of the model "
        "alone train at a time; 64 or 72 let 8"
    )
    assert notes(training=(1024, 60)) == notes(training=(1024, 3)) == []


@pytest.mark.parametrize("name", catalog.names("topologies/machines"))
def test_no_bundled_machine_is_told(name: str) -> None:
    found: list[str] = []
    load_cluster(name, found)
    assert not [one for one in found if one.startswith("level ")]


@pytest.mark.parametrize("name", catalog.names("specs"))
def test_no_bundled_spec_is_told(name: str) -> None:
    found: list[str] = []
    mw.load(name, notes=found)
    assert not [one for one in found if one.startswith(("level ", "training."))]
