"""Rules on models whose layers are of several kinds, or have no attention."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.registry import has_pattern, is_whole, partition_of
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec


def _state_space_counts(spec: Spec) -> tuple[int, ...]:
    mixer = spec.model.state_space
    return () if mixer is None else (mixer.n_heads, mixer.groups)


def _has_state_space(spec: Spec) -> bool:
    return spec.model.state_space is not None


def _widths_divide(spec: Spec, rows: Skeletons) -> Bools:
    """Return where tp divides the inner widths that kinds of layers have."""
    widths = [kind.d_ff for kind in spec.model.kinds.values() if kind.d_ff]
    divides = np.ones(len(rows.tp), dtype=bool)
    for width in widths:
        divides = divides & (width % rows.tp == 0)
    return divides


def _holds_patterns(spec: Spec, rows: Skeletons) -> Bools:
    """Return where every stage, and every chunk, can hold whole patterns."""
    order, chunks = spec.model.order, rows.pp * rows.vpp
    leads = len(order.leading) > 0
    interleaved = (order.repeats % chunks == 0) & ~np.bool_(leads)
    enough = (rows.pp == 1) | (order.repeats >= rows.pp)
    result = enough & ((rows.vpp == 1) | interleaved)
    partition = partition_of(spec)
    for stages in np.unique(rows.pp[result]).tolist():
        if partition is not None and stages > 1:
            layers = list(partition.layers(spec.model, stages))
            result = result & ((rows.pp != stages) | is_whole(spec.model, layers))
    return np.asarray(result)


def _heads_divide(spec: Spec, rows: Skeletons) -> Bools:
    divides = np.ones(len(rows.tp), dtype=bool)
    for count in _state_space_counts(spec):
        divides = divides & (count % rows.tp == 0)
    return divides


KIND_DEGREE_RULES: tuple[Rule, ...] = (
    Rule(
        "state_space_divisible",
        "tp divides the heads and the groups of state-space layers",
        "Megatron-LM core/ssm/mamba_mixer.py: heads and groups are split over tp",
        _heads_divide,
        "{spec.model.state_space.n_heads} heads, {spec.model.state_space.groups} "
        "groups, tp {tp}",
        is_inherited=True,
        concerns=_has_state_space,
    ),
    Rule(
        "kinds_divisible",
        "tp divides the inner widths of all kinds of layers",
        "Shoeybi et al. 2019, section 3: each GPU has as many columns",
        _widths_divide,
        "tp {tp}",
        is_inherited=True,
        concerns=lambda spec: any(kind.d_ff for kind in spec.model.kinds.values()),
    ),
    Rule(
        "state_space_context",
        "state-space layers have whole sequences: no context parallelism",
        "exchanges of states between parts of a sequence are not priced",
        lambda spec, rows: rows.cp == 1,
        "cp {cp}",
        is_inherited=True,
        concerns=_has_state_space,
    ),
)

KIND_PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "whole_patterns",
        "every stage, and under interleaving every chunk, holds the pattern of kinds "
        "of layers a whole number of times",
        "prices of layers are means over the pattern",
        _holds_patterns,
        "{spec.model.order.repeats} patterns of {spec.model.order.period} layers, pp "
        "{pp}, vpp {vpp}",
        concerns=lambda spec: has_pattern(spec.model),
    ),
)
