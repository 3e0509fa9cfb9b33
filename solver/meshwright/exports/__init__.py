"""Plans as files that start a training framework: one module for each target.

The programs on top of Hugging Face's Trainer share one.
A target either says all of a plan in the framework's own words, with a comment on where
each number comes from, or refuses it and names the check that would fail.
"""

from typing import Literal, get_args

TargetName = Literal[
    "megatron", "megatron-bridge", "deepspeed", "torchtitan", "accelerate",
    "axolotl", "llama-factory", "trl", "nanotron", "verl", "slime",
]  # fmt: skip
TARGETS: tuple[TargetName, ...] = get_args(TargetName)

LauncherName = Literal["torchrun", "sbatch", "kubernetes", "skypilot"]
LAUNCHERS: tuple[LauncherName, ...] = get_args(LauncherName)
"""The launcher of every host's ranks: a person, or a scheduler."""
