"""Nothing of a launch file is dropped silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.launches.harmless import is_harmless
from meshwright.imports.launches.launch import Launch
from meshwright.imports.read import read_launch
from tests.helpers.command import run

MEGATRON = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 "


def launch_of(folder: Path, options: str) -> Launch:
    script = folder / "run.sh"
    script.write_text(MEGATRON + options + "\n")
    return read_launch(script)


def test_options_that_may_matter_are_named_unknown(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "--fsdp-double-buffer --seed 1 --lr 1e-4 --vast 3")
    assert launch.unknown == ["--fsdp-double-buffer", "--vast"]
    assert launch.ignored == ["--seed", "--lr"]
    assert any("not judged: --fsdp-double-buffer, --vast" in n for n in launch.notes())


def test_all_harmless_options_are_named_when_asked_for(tmp_path: Path) -> None:
    many = " ".join(f"--save-{i} 1" for i in range(30))
    launch_of(tmp_path, many)
    script = str(tmp_path / "run.sh")
    assert "and 18 more, which --verbose names" in run("import", script).stderr
    whole = run("import", script, "--verbose").stderr
    assert "--save-29" in whole
    assert "more, which" not in whole


@pytest.mark.parametrize(
    "name",
    ["lr", "train.train_iters", "checkpoint.save", "optimizer.params.lr", "seed",
     "logger.log_interval", "metrics.enable_tensorboard"],
)  # fmt: skip
def test_is_harmless(name: str) -> None:
    assert is_harmless(name)


@pytest.mark.parametrize(
    "name",
    ["fsdp_double_buffer", "compile.enable", "training.seq_len", "micro_batch_size",
     "recompute_modules", "activation_checkpoint.mode", "communication_data_type",
     "sequence_parallel", "model.converters", "use_megatron_fsdp"],
)  # fmt: skip
def test_may_matter(name: str) -> None:
    assert not is_harmless(name)
