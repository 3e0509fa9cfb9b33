"""Finds the values of a spec that other fields of it rule out, whatever the plan.

A combination of pins that no legal plan meets is not looked for here: it has an
answer, which is that nothing fits and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from meshwright.spec.base import Problem
from meshwright.spec.divisors import nearest

if TYPE_CHECKING:
    from meshwright.spec.spec import Spec

_DATA_AXES = ("dp", "dp_shard", "dp_replicate")
_MOST_ZERO = 3


def problems(spec: Spec) -> Iterable[Problem]:
    """Return every value that the rest of the spec rules out."""
    checks = (
        _precision,
        _offload_to,
        _positions,
        _degrees,
        _experts,
        _zero,
        _layers,
        _recomputed,
        _mesh,
    )
    return chain.from_iterable(check(spec) for check in checks)


def _precision(spec: Spec) -> Iterable[Problem]:
    gpu = spec.cluster.topology.gpu
    for precision in spec.training.precisions:
        if precision not in gpu.peak_tflops.known:
            accepted = ", ".join(gpu.peak_tflops.known)
            sentence = f"has no peak on {gpu.name}; accepted: {accepted}"
            yield Problem(("training", "precision"), precision, sentence)


def _offload_to(spec: Spec) -> Iterable[Problem]:
    host, target = spec.cluster.topology.host, spec.training.offload_to
    if target == "nvme" and (host is None or host.nvme_gb_s is None):
        sentence = "needs cluster.topology.host with nvme_gb_s and nvme_gib"
        yield Problem(("training", "offload_to"), target, sentence)


def _positions(spec: Spec) -> Iterable[Problem]:
    known, asked = spec.model.learned_positions, spec.training.seq_len
    if 0 < known < asked:
        sentence = f"is above model.learned_positions; accepted: up to {known}"
        yield Problem(("training", "seq_len"), asked, sentence)


def _degrees(spec: Spec) -> Iterable[Problem]:
    """Refuse single degrees that do not divide what they are a share of."""
    gpus = {f"the {spec.cluster.gpus} GPUs": spec.cluster.gpus}
    heads = {f"model.n_heads {spec.model.n_heads}": spec.model.n_heads}
    batch = spec.training.global_batch
    sequences = {f"training.global_batch {batch}": batch}
    shared = {"tp": gpus | heads, "pp": gpus}
    shared |= dict.fromkeys(_DATA_AXES, gpus | sequences)
    layers = {f"model.n_layers {spec.model.n_layers}": spec.model.n_layers}
    shared |= {"cp": gpus, "vpp": layers}
    if spec.model.moe is not None:
        count = spec.model.moe.n_experts
        shared["ep"] = {f"model.moe.n_experts {count}": count}
    for axis, wholes in shared.items():
        pin = getattr(spec.pins, axis)
        if pin is not None and pin.single is not None:
            yield from _indivisible(axis, pin.single, wholes)


def _experts(spec: Spec) -> Iterable[Problem]:
    value = spec.pins.ep.single if spec.pins.ep is not None else None
    if value not in (None, 1) and spec.model.moe is None:
        yield Problem(("pins", "ep"), value, "without model.moe; accepted: 1")


def _indivisible(axis: str, value: int, wholes: dict[str, int]) -> Iterable[Problem]:
    for name, whole in wholes.items():
        if value == 0 or whole % value:
            near = nearest(value, *wholes.values())
            yield Problem(("pins", axis), value, f"does not divide {name}; {near}")
            return


def _zero(spec: Spec) -> Iterable[Problem]:
    value = spec.pins.zero.single if spec.pins.zero is not None else None
    if value is not None and value > _MOST_ZERO:
        sentence = f"is not a ZeRO stage; accepted: 0 to {_MOST_ZERO}"
        yield Problem(("pins", "zero"), value, sentence)


def _layers(spec: Spec) -> Iterable[Problem]:
    layers, total = spec.pins.layers, spec.model.n_layers
    if layers is not None and sum(layers) != total:
        sentence = f"sums to {sum(layers)}; accepted: model.n_layers {total}"
        yield Problem(("pins", "layers"), list(layers), sentence)


def _recomputed(spec: Spec) -> Iterable[Problem]:
    recomputed, layers = spec.pins.stage_recompute, spec.pins.layers
    path = ("pins", "recompute_layers")
    if recomputed is None:
        return
    if layers is not None and len(layers) != len(recomputed):
        sentence = f"has length {len(recomputed)}, pins.layers has {len(layers)}"
        yield Problem(path, list(recomputed), sentence)
    elif layers is not None:
        for stage, (count, most) in enumerate(zip(recomputed, layers, strict=True)):
            if count > most:
                sentence = f"is above the stage's layers; accepted: up to {most}"
                yield Problem((*path, stage), count, sentence)
    elif sum(recomputed) > spec.model.n_layers:
        most = spec.model.n_layers
        sentence = f"sums to {sum(recomputed)}; accepted: up to model.n_layers {most}"
        yield Problem(path, list(recomputed), sentence)


def _mesh(spec: Spec) -> Iterable[Problem]:
    sizes = spec.cluster.fan_outs
    for axis, factors in spec.pins.mesh or ():
        if factors is not None and len(factors) != len(sizes):
            sentence = (
                f"has {_counted(factors, 'factor')}; the cluster has "
                f"{_counted(sizes, 'level')} of {list(sizes)}, innermost first"
            )
            yield Problem(("pins", "mesh", axis), list(factors), sentence)


def _counted(things: tuple[int, ...], name: str) -> str:
    return f"{len(things)} {name}" + ("s" if len(things) != 1 else "")
