"""The names of targets, one for each module of this room that defines a `TARGET`."""

from typing import Literal, get_args

TargetName = Literal[
    "megatron", "megatron-bridge", "deepspeed", "torchtitan", "accelerate"
]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
