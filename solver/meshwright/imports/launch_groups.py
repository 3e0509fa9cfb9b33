"""How many micro-batches pass a virtual stage in a row, as a launch says it."""

from __future__ import annotations

from typing import Any

from meshwright.imports.launch import Launch
from meshwright.spec.microbatch_groups import group_size

OPTION = "--microbatch-group-size-per-virtual-pipeline-stage"


def check_groups(launch: Launch, pins: dict[str, Any]) -> None:
    """Hold groups of micro-batches against those that are priced.

    Megatron Core takes groups of the number of stages unless told, and no group below
    that number (schedules.py: forward_backward_pipelining_with_interleaving).

    Raises:
        SpecError: a group would have fewer micro-batches than there are stages.
    """
    own, pp = launch.setting("microbatch_group"), pins.get("pp")
    if own is not None and (pp == 1 or pins.get("vpp") == 1):
        launch.changes_nothing(own, "stages have one chunk each")
        return
    count = _microbatches(launch, pins)
    if pp is None or count is None or count < pp or pins.get("vpp", 1) == 1:
        return
    least = group_size(count, pp)
    if own is None:
        own = _who_interleaves(launch)
        if own is not None and launch.value("groups_are_pp") and least != pp:
            own.refuse(
                f"has groups of {pp} micro-batches, which leave {count % pp} of "
                f"{count}; accepted: {OPTION} {least} beside it"
            )
        return
    size = launch.value("microbatch_group")
    if not pp <= size <= count or 0 < count % size < pp:
        own.refuse(
            f"makes groups of {size} from {count} micro-batches, and no group may "
            f"have fewer than the {pp} stages; accepted: {least}"
        )
    if size != least:
        why = f"groups of {least} count, which hold less and take as long"
        launch.is_not_judged(own, why)


def _who_interleaves(launch: Launch) -> Any:
    names = ("vpp", "layers_per_chunk", "stages")
    return next(filter(None, map(launch.setting, names)), None)


def _microbatches(launch: Launch, pins: dict[str, Any]) -> int | None:
    """Return the micro-batches of a step, None where they are not known."""
    dp = pins.get("dp")
    if "dp_replicate" in pins and "dp_shard" in pins:
        dp = pins["dp_replicate"] * pins["dp_shard"]
    batch = launch.value("training.global_batch")
    per_round = (dp or 0) * pins.get("micro_batch", 0)
    if not batch or not per_round or batch % per_round:
        return None
    return int(batch // per_round)
