"""How a launch splits layers over stages, and how many of them it recomputes."""

from __future__ import annotations

from typing import Any

from meshwright.imports.launch import Launch
from meshwright.spec.recompute_modules import UNLESS_NAMED

FEWER = "accepted: at most the layers of a stage"


def decide_stages(launch: Launch, n_layers: int | None, pins: dict[str, Any]) -> None:
    """Decide the layers and the chunks of each stage, where they are known.

    Raises:
        SpecError: the options contradict each other, or the number of layers.
    """
    pp = pins.get("pp")
    chunks = launch.setting("vpp") or launch.setting("layers_per_chunk")
    if pp == 1 and chunks is not None and launch.value("vpp") != 1:
        chunks.refuse("needs stages, and the pipeline-parallel size is 1")
    if pp is None:
        return
    if "stages" in launch.said:
        _decide_by_layout(launch, n_layers, pp, pins)
    elif n_layers is not None:
        layers = [n_layers] if pp == 1 else _balanced(launch, n_layers, pp)
        if layers:
            pins["layers"] = layers
            _decide_chunks(launch, n_layers, pp, pins)


def _decide_by_layout(
    launch: Launch, n_layers: int | None, pp: int, pins: dict[str, Any]
) -> None:
    counts, own = launch.value("stages"), launch.setting("stages")
    assert own is not None
    if len(counts) % pp:
        own.refuse(f"has {len(counts)} stages; expected a multiple of the {pp} ranks")
    if n_layers is not None and sum(counts) != n_layers:
        own.refuse(f"has {sum(counts)} layers; expected {n_layers}")
    pins["vpp"] = len(counts) // pp
    pins["layers"] = [sum(counts[rank::pp]) for rank in range(pp)]


def _balanced(launch: Launch, n_layers: int, pp: int) -> list[int] | None:
    """Return the layers of each stage as Megatron Core balances them; None elsewhere.

    The embedding and the loss may count as a layer, and the first and the last stage
    may be given.
    """
    if launch.framework not in ("megatron", "deepspeed"):
        return None
    first, last = launch.value("first_stage"), launch.value("last_stage")
    if first is not None or last is not None:
        return _given_ends(launch, n_layers, pp, first, last)
    at_start = bool(launch.value("counts_embedding"))
    at_end = bool(launch.value("counts_loss"))
    total = n_layers + at_start + at_end
    own = launch.setting("pp")
    if total % pp:
        if launch.framework == "megatron" and own is not None:
            own.refuse(
                f"does not divide {total} layers; accepted: a divisor, or "
                "pipeline_model_parallel_layout beside it"
            )
        return None
    layers = [total // pp] * pp
    layers[0] -= at_start
    layers[-1] -= at_end
    return layers


def _given_ends(
    launch: Launch, n_layers: int, pp: int, first: int | None, last: int | None
) -> list[int] | None:
    own = launch.setting("first_stage") or launch.setting("last_stage")
    assert own is not None
    middle = pp - (first is not None) - (last is not None)
    rest = n_layers - (first or 0) - (last or 0)
    if rest < 0 or (rest if middle <= 0 else rest % middle):
        own.refuse(f"leaves {rest} layers for {max(middle, 0)} stages")
    share = [rest // middle] * middle if middle > 0 else []
    ends = [] if first is None else [first]
    return [*ends, *share, *([] if last is None else [last])]


def _decide_chunks(
    launch: Launch, n_layers: int, pp: int, pins: dict[str, Any]
) -> None:
    """Decide the virtual stages of a rank from the layers of each."""
    size, own = launch.value("layers_per_chunk"), launch.setting("layers_per_chunk")
    if size is None or own is None:
        return
    counted = bool(launch.value("counts_embedding")) + bool(launch.value("counts_loss"))
    of_stage = (n_layers + counted) // pp
    if of_stage % size:
        own.refuse(f"does not divide the {of_stage} layers of a stage")
    pins["vpp"] = of_stage // size


def decide_recompute(
    launch: Launch, n_layers: int | None, pins: dict[str, Any]
) -> None:
    """Decide how many layers of each stage are recomputed.

    Raises:
        SpecError: more layers are recomputed than a stage has.
    """
    if pins.get("recompute") == "selective" and launch.framework == "megatron":
        modules = launch.value("recompute_modules") or (UNLESS_NAMED,)
        pins["recompute_modules"] = "+".join(modules)
    count = launch.value("recompute_per_chunk")
    if count is None:
        if pins.get("recompute") in ("full", "selective"):
            pins["recompute_layers"] = "all"
        return
    setting = launch.setting("recompute_per_chunk")
    assert setting is not None
    layers, vpp = pins.get("layers"), pins.get("vpp", 1)
    if layers is None:
        pins["recompute_layers"] = "any"
        return
    chunks = launch.value("stages") or [n // vpp for n in layers for _ in range(vpp)]
    if count > max(chunks):
        setting.refuse(f"is more than {max(chunks)}; {FEWER}")
    pp = len(layers)
    if launch.value("stages"):
        taken = [min(count, own) for own in chunks]
        pins["recompute_layers"] = [sum(taken[rank::pp]) for rank in range(pp)]
    else:
        pins["recompute_layers"] = [min(count * vpp, own) for own in layers]
