"""Values that a configuration of DeepSpeed leaves to the Trainer, and its sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.frameworks.base.registry import framework
from meshwright.imports.launches.settings import OPTIONS
from meshwright.imports.read import read_launch

TRAINER = """\
deepspeed --num_gpus 8 run_clm.py --deepspeed zero.json --do_train --bf16 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out
"""


def configuration(**zero: Any) -> str:
    return json.dumps(
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 3, **zero},
        }
    )


def test_the_trainer_fills_in_what_is_left_to_it(tmp_path: Path) -> None:
    file, script = tmp_path / "zero.json", tmp_path / "run.sh"
    file.write_text(configuration(stage3_max_live_parameters=1e9))
    script.write_text(TRAINER)
    told = f"{file}:1: train_batch_size: auto: left open: the program that reads it"
    assert any(note.startswith(told) for note in read_launch(file).notes())
    launch = read_launch(script)
    assert (launch.value("micro_batch"), launch.value("microbatches")) == (2, 4)
    assert not [note for note in launch.notes() if "auto" in note]
    assert not launch.unknown


@pytest.mark.parametrize(
    ("option", "usual", "other", "told"),
    [
        ("sub_group_size", 1e9, 1e8, "updates are priced by 1e9 parameters"),
        ("reduce_bucket_size", 500000000, 2e8, "buckets are priced at 5e8 elements"),
        (
            "stage3_param_persistence_threshold", 100000, 1e6,
            "all weights are priced as sharded",
        ),
    ],
)  # fmt: skip
def test_sizes_are_priced_as_they_are_by_default(
    option: str, usual: float, other: float, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "zero.json"
    for value in (usual, "auto"):
        file.write_text(configuration(**{option: value}))
        launch = read_launch(file)
        assert f"zero_optimization.{option}" not in " ".join(launch.unjudged)
        assert not launch.unknown
    file.write_text(configuration(**{option: other}))
    (note,) = read_launch(file).unjudged
    assert note.endswith(f"is not judged: {told}")


def test_sizes_that_are_told_are_those_that_are_priced() -> None:
    known, told = framework("deepspeed"), OPTIONS["deepspeed"]["unpriced"]
    for option, priced in {
        "reduce_bucket_size": known.bucket_params,
        "sub_group_size": known.updated_params,
        "stage3_prefetch_bucket_size": known.prefetched_params,
    }.items():
        sentence, usual = told[f"zero_optimization.{option}"]
        assert float(usual) == priced
        assert f"{priced:.0e}".replace("e+0", "e") in sentence
