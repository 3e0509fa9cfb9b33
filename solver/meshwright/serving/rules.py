"""The rules of serving, as data: name, sentence, source, test; pins are rules too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Bools
from meshwright.pin_rules import accepted
from meshwright.plan import BrokenRule
from meshwright.serving.deployment import Deployments
from meshwright.spec.pins import AXES, Range
from meshwright.spec.serving import ServingSpec
from meshwright.topology.paths import Meshes

_FIELDS = ("tp", "pp", "dp_replicate", "microbatches")


@dataclass(frozen=True)
class ServingRule:
    """A named test of deployments."""

    name: str
    sentence: str
    source: str
    holds: Callable[[ServingSpec, Deployments], Bools]
    numbers: str = ""
    """The values compared, as a format of `spec` and the fields of a plan."""


def serving_rules(spec: ServingSpec, meshes: Meshes) -> list[ServingRule]:
    """Return the rules that apply to a spec, pins last; rows point into `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*RULES, *limits, *_pins(spec, meshes)]


def holding(rules: list[ServingRule], spec: ServingSpec, rows: Deployments) -> Bools:
    """Return which rows hold every rule."""
    result = np.ones(len(rows), dtype=bool)
    for rule in rules:
        result &= rule.holds(spec, rows)
    return result


def broken(
    rules: list[ServingRule], spec: ServingSpec, rows: Deployments
) -> list[BrokenRule]:
    """Return the rules that the first row breaks, with the values compared."""
    values = {name: getattr(rows, name)[0] for name in _FIELDS}
    result = []
    for rule in rules:
        if not rule.holds(spec, rows)[0]:
            numbers = rule.numbers.format(spec=spec, **values)
            sentence = f"{rule.sentence} ({numbers})" if numbers else rule.sentence
            result.append(BrokenRule(rule=rule.name, sentence=sentence))
    return result


RULES = (
    ServingRule(
        "heads_divisible",
        "tp divides the query heads",
        "vLLM, config/model.py: verify_with_parallel_config",
        lambda spec, rows: spec.model.n_heads % rows.tp == 0,
        "{spec.model.n_heads} heads, tp {tp}",
    ),
    ServingRule(
        "kv_heads_divisible",
        "tp divides the KV heads, or is a multiple of them (they are repeated)",
        "vLLM, models/llama.py: LlamaAttention",
        lambda spec, rows: (
            (spec.model.n_kv_heads % rows.tp == 0)
            | (rows.tp % spec.model.n_kv_heads == 0)
        ),
        "{spec.model.n_kv_heads} KV heads, tp {tp}",
    ),
    ServingRule(
        "mlp_divisible",
        "tp divides the inner width of MLP and experts",
        "vLLM, layers/linear.py: divide",
        lambda spec, rows: np.asarray(
            (spec.model.d_ff % rows.tp == 0)
            & ((spec.model.moe.d_ff if spec.model.moe else 0) % rows.tp == 0)
        ),
        "d_ff {spec.model.d_ff}, tp {tp}",
    ),
    ServingRule(
        "layers_cover_stages",
        "every pipeline stage has a layer, and the first all that lead",
        "vLLM, distributed/utils.py: get_pp_indices",
        lambda spec, rows: (
            rows.pp - 1 + max(spec.model.first_dense_layers, 1) <= spec.model.n_layers
        ),
        "{spec.model.n_layers} layers, pp {pp}",
    ),
    ServingRule(
        "groups_have_requests",
        "every group has a request",
        "the definition of a group",
        lambda _spec, rows: rows.microbatches <= rows.requests,
        "{microbatches} groups",
    ),
)


def _tp_link_is_fast(spec: ServingSpec, rows: Deployments) -> Bools:
    least = spec.limits.tp_min_link_gb_s or 0.0
    return np.asarray(rows.tp_s_per_byte * least * 1e9 <= 1 + 1e-9)


TP_LINK = ServingRule(
    "tp_link_bandwidth",
    "every tensor-parallel GPU has limits.tp_min_link_gb_s to itself",
    "the spec",
    _tp_link_is_fast,
    "tp {tp}, limit {spec.limits.tp_min_link_gb_s:g} GB/s",
)


def _pins(spec: ServingSpec, meshes: Meshes) -> list[ServingRule]:
    pins = spec.pins
    ranges = {name: getattr(pins, name) for name in _FIELDS}
    rules = [_range_pin(name, pin) for name, pin in ranges.items() if pin is not None]
    if pins.layers is not None:
        stages = len(pins.layers)
        rules.append(_pin(f"layers: {stages} stages", lambda r: r.pp == stages))
    for axis, name in enumerate(AXES):
        wanted = getattr(pins.mesh, name) if pins.mesh else None
        if wanted is not None:
            rules.append(_mesh_pin(meshes, axis, wanted))
    return rules


def _pin(text: str, holds: Callable[[Deployments], Bools]) -> ServingRule:
    name = f"pin {text.split(':')[0]}"
    return ServingRule(
        name, f"pins.{text}", "the spec", lambda _spec, rows: holds(rows)
    )


def _range_pin(name: str, pin: Range) -> ServingRule:
    return _pin(f"{name}: {pin}", lambda rows: accepted(pin, getattr(rows, name)))


def _mesh_pin(meshes: Meshes, axis: int, wanted: tuple[int, ...]) -> ServingRule:
    text = f"mesh.{AXES[axis]}: {list(wanted)}"
    return _pin(text, lambda rows: (meshes[rows.mesh, axis] == wanted).all(axis=1))
