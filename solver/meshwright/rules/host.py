"""The rules on what lives in the memory of hosts, under any framework."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import KEEPS_ALL, NONE, PARAMETERS
from meshwright.spec.spec import Spec


def _offloads_activations(spec: Spec) -> bool:
    return framework_of(spec).offloads_activations


HOST_PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "activations_offloaded",
        "the framework offloads activations: without a pipeline, nothing recomputed",
        "megatron-core 0.19.2 transformer/transformer_config.py: cpu_offloading",
        lambda spec, rows: (
            _offloads_activations(spec) & (rows.pp == 1) & (rows.recompute == NONE)
        ),
        "framework {spec.framework}, pp {pp}, recompute {recompute}",
        concerns=lambda spec: spec.training.offload_activations > 0,
        fails_with="Currently there is no support for Pipeline parallelism with CPU "
        "offloading",
    ),
    Rule(
        "offload_supported",
        "offload needs the machine around the GPUs: cluster.topology.host",
        "the spec",
        lambda spec, rows: (
            (rows.offload == KEEPS_ALL)
            | np.bool_(spec.cluster.topology.host is not None)
        ),
        "offload {offload}",
    ),
    Rule(
        "offload_fraction",
        "where the GPU updates a part of the parameters, they stay on it",
        "megatron-core 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py; Tang et "
        "al. 2023, ZeRO-Offload++: beside offloaded parameters a part is not priced",
        lambda spec, rows: rows.offload != PARAMETERS,
        "offload {offload}, fraction {spec.training.offload_fraction}",
        concerns=lambda spec: spec.training.offload_fraction < 1,
    ),
)
