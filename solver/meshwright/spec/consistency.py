"""Checks the consistency of a spec: no field may rule out the value of another.

Whether any plan meets a combination of pins is no question of consistency: the solver
answers it, with the reason why nothing fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, product
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from meshwright.spec.base import Problem, divisors, nearest_of
from meshwright.spec.cluster import usd_per_hour
from meshwright.spec.plan_fields import Pins, written
from meshwright.spec.training import GROUPS, Lora, projections
from meshwright.spec.units import counted
from meshwright.spec.user_rules import rule_problems

if TYPE_CHECKING:
    from meshwright.spec.model import Model
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec

_DATA_AXES = ("dp", "dp_shard", "dp_replicate")
_MOST_ZERO = 3


def problems(spec: Spec) -> Iterable[Problem]:
    """Return every value that the rest of the spec rules out."""
    checks = (
        _precision,
        _pinned_precision,
        _offload_to,
        _offload_fraction,
        _positions,
        _adapters,
        _further_tokens,
        _reference,
        _offloaded_activations,
        _degrees,
        _experts,
        _zero,
        pinned_layers,
        _recomputed,
        _mesh,
        _rules,
        _of_serving,
    )
    return chain.from_iterable(check(spec) for check in checks)


def _of_serving(spec: Spec) -> Iterable[Problem]:
    for name in Pins.ONLY_SERVING:
        value = getattr(spec.pins, name)
        if value is not None:
            yield Problem(("pins", name), written(value), "is of inference alone")


def _rules(spec: Spec) -> Iterable[Problem]:
    price = usd_per_hour(spec.cluster, spec.run.gpu_hour_price)
    has_tokens = spec.run.tokens is not None
    return rule_problems(spec.rules, has_price=price is not None, has_tokens=has_tokens)


def _precision(spec: Spec) -> Iterable[Problem]:
    gpu = spec.cluster.topology.gpu
    for precision in spec.training.precisions:
        if precision not in gpu.peak_tflops.known:
            accepted = ", ".join(gpu.peak_tflops.known)
            sentence = f"has no peak on {gpu.name}; accepted: {accepted}"
            yield Problem(("training", "precision"), precision, sentence)


def _pinned_precision(spec: Spec) -> Iterable[Problem]:
    for pinned in spec.pins.precision or ():
        if pinned not in spec.training.precisions:
            accepted = ", ".join(spec.training.precisions)
            sentence = f"is not in training.precision; accepted: {accepted}"
            yield Problem(("pins", "precision"), pinned, sentence)


def _offload_to(spec: Spec) -> Iterable[Problem]:
    host, target = spec.cluster.topology.host, spec.training.offload_to
    if target == "nvme" and (host is None or host.nvme_gb_s is None):
        sentence = "needs cluster.topology.host with nvme_gb_s and nvme_gib"
        yield Problem(("training", "offload_to"), target, sentence)


def _offload_fraction(spec: Spec) -> Iterable[Problem]:
    share, path = spec.training.offload_fraction, ("training", "offload_fraction")
    if share < 1 and spec.cluster.topology.host is None:
        yield Problem(path, share, "needs cluster.topology.host; accepted: 1")
    if share < 1 and spec.training.offload_to == "nvme":
        yield Problem(path, share, "beside training.offload_to nvme; accepted: 1")


def _positions(spec: Spec) -> Iterable[Problem]:
    known, asked = spec.model.learned_positions, spec.training.seq_len
    if 0 < known < asked:
        sentence = f"is above model.learned_positions; accepted: up to {known}"
        yield Problem(("training", "seq_len"), asked, sentence)


def _adapters(spec: Spec) -> Iterable[Problem]:
    """Refuse adapters on matrices that no layer has; of all matrices, one is enough."""
    lora, known = spec.training.lora, adaptable(spec.model)
    if lora is None:
        return
    path = ("training", "lora", "targets")
    groups = {name for name, matrices in GROUPS.items() if known & {*matrices}}
    told = f"no matrix of the model; accepted: {', '.join(sorted(known | groups))}"
    if Lora().projections <= lora.projections:
        if not lora.projections & known:
            yield Problem(path, [*lora.targets], f"name {told}")
        return
    for name in lora.targets:
        if not projections([name]) & known:
            yield Problem(path, name, f"names {told}")


def _further_tokens(spec: Spec) -> Iterable[Problem]:
    if spec.model.mtp_layers and spec.training.lora is not None:
        path = ("model", "mtp_layers")
        sentence = "beside training.lora, which trains none; accepted: 0"
        yield Problem(path, spec.model.mtp_layers, sentence)


def _reference(spec: Spec) -> Iterable[Problem]:
    if spec.model.mtp_layers and spec.training.has_reference:
        path = ("model", "mtp_layers")
        sentence = "beside training.reference_model, which predicts none; accepted: 0"
        yield Problem(path, spec.model.mtp_layers, sentence)


def adaptable(model: Model) -> frozenset[str]:
    """Return the matrices of any layer that may have adapters; routed experts' not."""
    names, kinds = set[str](), [*map(model.of_kind, model.order.names)]
    if any(kind.mixer == "attention" for kind in kinds):
        names |= {*GROUPS["attention"]}
    if any(kind.mixer == "state_space" for kind in kinds):
        names |= {*GROUPS["state_space"]}
    if any(
        kind.d_ff
        if kind.moe is None or kind.first_dense_layers
        else kind.moe.shared_d_ff
        for kind in kinds
    ):
        names |= {*GROUPS["mlp"]}
    return frozenset(names if model.gated_mlp else names - {"gate_proj"})


def _offloaded_activations(spec: Spec) -> Iterable[Problem]:
    count, most = spec.training.offload_activations, spec.model.n_layers - 1
    path = ("training", "offload_activations")
    if count > most:
        yield Problem(
            path, count, f"is not below model.n_layers; accepted: 0 to {most}"
        )
    if count and spec.cluster.topology.host is None:
        yield Problem(path, count, "needs cluster.topology.host; accepted: 0")


class Dividend(NamedTuple):
    """A count that a degree must divide: one number, or one of several."""

    name: str
    counts: tuple[int, ...]

    def is_divided(self, value: int) -> bool:
        """Return whether a degree divides any of the numbers."""
        return value > 0 and any(count % value == 0 for count in self.counts)


def _degrees(spec: Spec) -> Iterable[Problem]:
    """Refuse a single pinned degree that does not divide GPUs, heads or sequences."""
    model, batch = spec.model, spec.training.global_batch
    gpus, heads = (
        _gpus(spec),
        Dividend(f"model.n_heads {model.n_heads}", (model.n_heads,)),
    )
    sequences = Dividend(f"training.global_batch {batch}", (batch,))
    shared = {"tp": (gpus, heads), "pp": (gpus,), "cp": (gpus,)}
    shared |= dict.fromkeys(_DATA_AXES, (gpus, sequences))
    if model.moe is not None:
        count = model.moe.n_experts
        shared["ep"] = (Dividend(f"model.moe.n_experts {count}", (count,)),)
    for axis, dividends in shared.items():
        pin = getattr(spec.pins, axis)
        if pin is not None and pin.single is not None:
            yield from _indivisible(axis, pin.single, dividends)


def _gpus(spec: Spec) -> Dividend:
    """Return how many GPUs a plan may use; with unlike parts it may use a few."""
    counts = sorted(
        {cluster.gpus for _, cluster in spec.cluster.part_choices()}, reverse=True
    )
    if not spec.cluster.parts:
        return Dividend(f"the {spec.cluster.gpus} GPUs", tuple(counts))
    tried = " or ".join(
        filter(None, (", ".join(map(str, counts[:-1])), str(counts[-1])))
    )
    return Dividend(f"the {tried} GPUs of any choice of cluster.parts", tuple(counts))


def _experts(spec: Spec) -> Iterable[Problem]:
    value = spec.pins.ep.single if spec.pins.ep is not None else None
    if value not in (None, 1) and spec.model.moe is None:
        yield Problem(("pins", "ep"), value, "without model.moe; accepted: 1")


def _indivisible(
    axis: str, value: int, dividends: tuple[Dividend, ...]
) -> Iterable[Problem]:
    for dividend in dividends:
        if not dividend.is_divided(value):
            every = product(*(dividend.counts for dividend in dividends))
            near = nearest_of(
                value, {d for counts in every for d in divisors(gcd(*counts))}
            )
            sentence = f"does not divide {dividend.name}; {near}"
            yield Problem(("pins", axis), value, sentence)
            return


def _zero(spec: Spec) -> Iterable[Problem]:
    value = spec.pins.zero.single if spec.pins.zero is not None else None
    if value is not None and value > _MOST_ZERO:
        sentence = f"is not a ZeRO stage; accepted: 0 to {_MOST_ZERO}"
        yield Problem(("pins", "zero"), value, sentence)


def pinned_layers(spec: Spec | ServingSpec) -> Iterable[Problem]:
    """Yield pinned layers that do not add up to those of the model."""
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
    sizes = sorted({cluster.fan_outs for _, cluster in spec.cluster.part_choices()})
    told = " or ".join(
        f"{counted(len(fan_outs), 'level')} of {list(fan_outs)}" for fan_outs in sizes
    )
    for axis, factors in spec.pins.mesh or ():
        if factors is not None and len(factors) not in map(len, sizes):
            sentence = (
                f"has {counted(len(factors), 'factor')}; the cluster has {told}, "
                "innermost first"
            )
            yield Problem(("pins", "mesh", axis), list(factors), sentence)
