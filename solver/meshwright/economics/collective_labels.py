"""The place of a collective in its block, in words."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.cost.blocks import EMBEDDING, HEAD
from meshwright.cost.traffic import Collective
from meshwright.topology.groups import EXPERT_REPLICATE, EXPERT_SHARD

OUTPUTS = ("attention output", "mlp output")
INPUTS = ("attention input", "mlp input")

_TENSOR = {
    ("forward", "all_reduce"): OUTPUTS,
    ("forward", "all_gather"): INPUTS,
    ("forward", "reduce_scatter"): OUTPUTS,
    ("backward", "all_reduce"): INPUTS,
    ("backward", "all_gather"): OUTPUTS,
    ("backward", "reduce_scatter"): INPUTS,
}
"""Shoeybi et al. 2019, figure 4: f and g are each other's backward; under sequence
parallelism likewise (Korthikanti et al. 2022, figure 5)."""

_ENDS = {EMBEDDING: "output", HEAD: "input"}

_REPEATED: dict[str, Callable[[Collective], tuple[str, ...]]] = {
    "latents": lambda _one: ("latents",),
    "mlp": lambda one: _TENSOR["forward", one.operation][1:],
    "experts": lambda _one: ("tokens to experts", "tokens from experts"),
    "inputs": lambda one: INPUTS[: one.calls],
    "keys and values": lambda _one: ("keys and values",),
    "checkpoints": lambda _one: ("layer input",),
}
"""Labels of what selective recomputation repeats: see `Block.repeated`."""


def call_labels(
    block: str, part: str, phase: str, collective: Collective, zero: int
) -> tuple[str, ...]:
    """Return a label for each call of a collective in one block.

    The phase `recompute` repeats the calls of `forward`, or those of some modules.
    """
    if part in _REPEATED:
        return _REPEATED[part](collective)
    phase = "forward" if phase == "recompute" else phase
    if part == "ep":
        what = "tokens" if phase == "forward" else "gradients"
        return (f"{what} to experts", f"{what} from experts")
    if part == "tp" and block in _ENDS:
        return (_ENDS[block],)
    if part == "tp":
        return _TENSOR[phase, collective.operation][: collective.calls]
    if part == "cp" and collective.operation == "all_to_all":
        return ("heads for tokens",)
    if part == "cp":
        is_sum = collective.operation == "reduce_scatter"
        return ("gradients of keys and values" if is_sum else "keys and values",)
    if part == "pp":
        return ("activations" if phase == "forward" else "gradients",)
    return (_state_label(collective, is_all_reduce=part == "dp" and zero == 0),)


def _state_label(collective: Collective, is_all_reduce: bool) -> str:
    """Return which part of the state ZeRO or data parallelism sends.

    Without ZeRO an all-gather is the second half of an all-reduce of gradients.
    """
    is_weights = collective.operation == "all_gather" and not is_all_reduce
    is_expert = collective.group in (EXPERT_SHARD, EXPERT_REPLICATE)
    return ("expert " if is_expert else "") + ("weights" if is_weights else "gradients")
