"""State in host memory: what leaves the GPU, and what its way there and back takes.

Sources: Ren et al. 2021 (ZeRO-Offload), sections 3 and 4; Rajbhandari et al. 2021
(ZeRO-Infinity), sections 5 and 6; PyTorch fully_shard: CPUOffloadPolicy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.state import (
    sharded_bytes,
    state_bytes,
    summed_gradients,
)
from meshwright.cost.weights import Weights
from meshwright.frameworks.base.framework import StateBytes
from meshwright.plans.columns import Bools, Floats, Parts, total
from meshwright.plans.skeletons import (
    GRADIENTS,
    KEEPS_ALL,
    OPTIMIZER,
    PARAMETERS,
    Skeletons,
)

UPDATE_SHARE = 0.5
"""Of the rated host memory bandwidth, what a fused update on the CPU reaches: an
estimate, for it reads and writes seven streams at once."""


def kept_state(job: Job, rows: Skeletons, held: list[Weights], whole: Parts) -> Parts:
    """Return what stays on the GPU of weights, gradients and optimizer state, bytes.

    ZeRO-2 keeps gathered weights on the GPU until the step ends, and only the shards
    leave. Whatever comes and goes is workspace; what an update makes for itself is part
    of the optimizer, and made where that lives.
    """
    gathered = sum(own.params for own in held) * state_bytes(job.spec).gathered
    stays = np.where(_gathers_once(rows), gathered, 0.0)
    leaves = rows.offload
    return {
        "weights": np.where(leaves >= PARAMETERS, stays, whole["weights"]),
        "gradients": np.where(leaves >= GRADIENTS, 0.0, whole["gradients"]),
        "optimizer": np.where(leaves >= OPTIMIZER, 0.0, whole["optimizer"]),
    }


def streams_weights(rows: Skeletons) -> Bools:
    """Return which rows bring a layer's weights to the GPU for each use of them."""
    return np.asarray((rows.offload == PARAMETERS) & ~_gathers_once(rows))


def _gathers_once(rows: Skeletons) -> Bools:
    """Return which rows, if weights are offloaded, gather them once per step."""
    return np.asarray(rows.sharding.shards_gradients & ~rows.sharding.shards_weights)


def host_bytes(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes that a GPU has on its host, (rows,)."""
    result = np.zeros(len(rows))
    for own in held:
        result = result + own.params * total(_offloaded(job, rows, own))
    return result


def _offloaded(job: Job, rows: Skeletons, own: Weights) -> Parts:
    """Return the bytes per parameter on the host, by what they are.

    The host holds shards: of weights under ZeRO-2 too, which gathers them on the GPU.
    """
    is_whole = (rows.offload == PARAMETERS) & _gathers_once(rows)
    shards = replace(own.sharding, zero=np.where(is_whole, 3, rows.zero))
    sizes = sharded_bytes(state_bytes(job.spec), shards)
    codes = (PARAMETERS, GRADIENTS, OPTIMIZER)
    names = ("weights", "gradients", "optimizer")
    return {
        name: np.where(rows.offload >= code, size, 0.0)
        for name, code, size in zip(names, codes, sizes, strict=True)
    }


@dataclass(frozen=True)
class Copies:
    """Seconds over PCIe, one way each, and of the update; nothing hidden yet."""

    up_s: Floats
    """Weights to the GPU, once per forward and once per backward."""
    down_s: Floats
    """Gradients of one micro-batch."""
    end_down_s: Floats
    """Gradients of the whole step."""
    update_s: Floats
    """The optimizer, and new weights on their way up behind it."""

    @property
    def forward_s(self) -> Floats:
        """Return what a forward copies."""
        return self.up_s

    @property
    def backward_s(self) -> Floats:
        """Return what a backward copies; PCIe carries both ways at once."""
        return np.maximum(self.up_s, self.down_s)


def copies(job: Job, rows: Skeletons, held: list[Weights]) -> Copies:
    """Return what the offloaded state of some weights takes.

    - optimizer: once per step gradients go down and new weights come up, tile by tile
      beside the update (ZeRO-Offload, section 4.1);
    - gradients: those of every micro-batch go down as they are reduced;
    - parameters: weights come up for every forward and backward (ZeRO-Infinity,
      section 5); under ZeRO-2 once per step.
    """
    host = job.spec.cluster.topology.host
    if host is None or (rows.offload == KEEPS_ALL).all():
        none = np.zeros(len(rows))
        return Copies(none, none, none, none)
    state, code = state_bytes(job.spec), rows.offload
    shares = [w.params / w.sharding.optimizer for w in held]
    own = np.sum(shares, axis=0)
    up = own * np.where(code == PARAMETERS, state.weights, state.gathered)
    down, summed = own * state.gradients, own * summed_gradients(state, rows.sharding)
    streams = streams_weights(rows)
    path_s = 1 / (host.pcie_gb_s * 1e9)
    way_s = max(path_s, _drive_s_per_byte(job))
    update_s = np.maximum(
        _update_s(job, own, state), np.where(streams, 0.0, up * path_s)
    )
    return Copies(
        up_s=np.where(streams, up * way_s, 0.0),
        down_s=np.where(code >= GRADIENTS, down * way_s, 0.0),
        end_down_s=np.where(code == OPTIMIZER, summed * path_s, 0.0),
        update_s=np.where(code >= OPTIMIZER, update_s, 0.0),
    )


def is_never_faster(job: Job) -> bool:
    """Return whether an update on the host takes as long as on the GPU, or longer."""
    host, gpu = job.spec.cluster.topology.host, job.spec.cluster.topology.gpu
    if host is None:
        return True
    on_host = UPDATE_SHARE * host.memory_gb_s / job.spec.cluster.gpus_per_host
    return on_host <= job.efficiency.memory * gpu.memory_gb_s


def _update_s(job: Job, own: Floats, state: StateBytes) -> Floats:
    """Return the seconds of the update of `own` parameters on the host.

    Its GPUs share the memory, and the drives where the state lives there: these are
    read and written beside the update (ZeRO-Infinity, section 6.2).
    """
    host, gpus = job.spec.cluster.topology.host, job.spec.cluster.gpus_per_host
    if host is None:
        return np.zeros_like(own)
    rate = UPDATE_SHARE * host.memory_gb_s * 1e9 / gpus
    drive_s = 2 * state.optimizer * _drive_s_per_byte(job)
    return np.maximum(own * state.updated / rate, own * drive_s)


def _drive_s_per_byte(job: Job) -> float:
    """Return a GPU's seconds per byte on its share of the drives; 0 without."""
    host, gpus = job.spec.cluster.topology.host, job.spec.cluster.gpus_per_host
    if host is None or host.nvme_gb_s is None or job.spec.training.offload_to == "cpu":
        return 0.0
    return gpus / (host.nvme_gb_s * 1e9)
