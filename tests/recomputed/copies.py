"""What offloaded state takes: copies over PCIe and drives, and the host's update.

Ren et al. 2021, ZeRO-Offload, section 4.1; Rajbhandari et al. 2021, ZeRO-Infinity,
sections 5 and 6.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.recomputed.activations import on_host
from tests.recomputed.case import Case
from tests.recomputed.memory import leaves, streams_weights
from tests.recomputed.parameters import Share, fixed_copy

UPDATE_SHARE = 0.5
"""Of the host's rated memory bandwidth, what an update reaches."""


class Copies(NamedTuple):
    """Seconds, nothing hidden yet."""

    forward: float
    backward: float
    end: float
    """Of gradients on their way down when all micro-batches are done."""
    up: float
    """Of weights on their way up in one pass, and of gradients down."""
    down: float
    update: float
    """Of the host's update, and of the weights that come up behind it."""
    between: float = 0.0
    """Of inputs of layers, in either pass, that kernels wait for."""


def layer_copies(case: Case, shares: list[Share]) -> Copies:
    """A layer's: with activations on their way, as often as layers leave of all."""
    found, host = copies(case, shares), case.spec.cluster.topology.host
    if host is None:
        return found
    leave = on_host(case).left / (host.pcie_gb_s * 1e9)
    if case.spec.framework == "fsdp" and case.plan.recompute == "full-cpu":
        return found._replace(between=leave)
    # In a forward they go against weights, in a backward with them.
    return found._replace(
        forward=max(found.forward, leave), backward=max(found.up + leave, found.down)
    )


def reference_copies(case: Case, shares: list[Share]) -> Copies:
    """Those of a model that is not trained: its weights come up, and nothing leaves."""
    fixed = fixed_copy(case, shares)
    if case.training.lora is not None:
        fixed = [share for share in shares if not share.is_adapter]
    found = copies(case, fixed)
    return found._replace(forward=found.up)


def copies(case: Case, shares: list[Share]) -> Copies:
    host = case.spec.cluster.topology.host
    if host is None or case.plan.offload == "none":
        return Copies(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    gpus = case.spec.cluster.gpus_per_host
    path, drive = host.pcie_gb_s * 1e9, float("inf")
    if case.training.offload_to == "nvme" and host.nvme_gb_s is not None:
        drive = host.nvme_gb_s * 1e9 / gpus
    way = min(path, drive)
    rate = min(UPDATE_SHARE * host.memory_gb_s, 130.0) * 1e9 / gpus
    rate /= 6.0 if case.spec.framework == "fsdp" else 1.0
    of_host = case.training.offload_fraction
    up_bytes = gradients = summed = update = 0.0
    for trained in (False, True):
        params, state = 0.0, None
        for share in shares:
            if share.state.is_trained == trained:
                params += share.numbers / (share.shards if case.plan.zero >= 1 else 1)
                state = share.state
        if state is None:
            continue
        if leaves(case, "parameters"):
            up_bytes += params * state.weights
        elif trained:
            up_bytes += of_host * params * state.gathered
        gradients += params * state.gradients
        # Sums beside the gradients are what an update reads, where there are any.
        sums = params * (state.sums or state.gradients)
        summed += of_host * sums
        if case.plan.offload == "gradients":
            # What the GPU updates of its own comes back to it.
            up_bytes += sums - of_host * sums
        in_memory = of_host * params * state.updated
        on_drives = 2 * params * state.optimizer
        update += max(in_memory / rate, on_drives / drive)
    up = up_bytes / way if streams_weights(case) else 0.0
    down = gradients / way if leaves(case, "gradients") else 0.0
    end = summed / path if case.plan.offload == "optimizer" else 0.0
    if not streams_weights(case):
        update = max(update, up_bytes / path)
    # PCIe carries both ways at once.
    return Copies(up, max(up, down), end, up, down, update)
