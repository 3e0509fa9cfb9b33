"""Offload: the state in host memory, and the seconds to move and update it.

Sources: Ren et al. 2021 (ZeRO-Offload), sections 3 and 4; Rajbhandari et al. 2021
(ZeRO-Infinity), sections 5 and 6; PyTorch fully_shard: CPUOffloadPolicy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.activations import layer_input_bytes, saved_bytes
from meshwright.cost.job import Job
from meshwright.cost.state import sharded_bytes, summed_gradients
from meshwright.cost.weights import Weights, by_state, reference_weights
from meshwright.frameworks.base.framework import StateBytes
from meshwright.frameworks.base.registry import framework_of, recomputed_bits
from meshwright.plans.columns import Bools, Floats, Parts, total
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import (
    FULL_CPU,
    GRADIENTS,
    KEEPS_ALL,
    OPTIMIZER,
    PARAMETERS,
)
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Host

UPDATE_SHARE = 0.5
"""Share of the rated host memory bandwidth that a fused update on the CPU reaches: 1e9
parameters in 0.22 s and 1e10 in 2.57 s, of 256 GB/s (Ren et al. 2021, ZeRO-Offload,
table 4, CPU-Adam on the 48 cores of a DGX-2)."""

MOST_UPDATE_GB_S = 130
"""The most that it reaches on a host, as there. Hosts of H200 and B200 with more than
twice the bandwidth reach 139 GB/s (ml-engineering 744d01e, insights/
when-to-upgrade-gpus: 8 ranks with DeepSpeed's CPU-Adam)."""


def kept_state(job: Job, rows: Skeletons, held: list[Weights], whole: Parts) -> Parts:
    """Return the bytes of weights, gradients and optimizer that stay on the GPU.

    Of the optimizer `training.offload_fraction` leaves; what stays needs gradients.
    ZeRO-2 keeps gathered weights on the GPU until the step ends; only the shards leave.
    Weights that come and go count as workspace. Temporaries of an update are part of
    the optimizer, and live where it lives. PyTorch's first FSDP copies gradients to the
    host and drops them when the backward ends; they have a stream, and memory, of their
    own (torch 2.13 distributed/fsdp/_runtime_utils.py: `_accumulate_sharded_grad`).
    """
    if keeps_all(rows):
        return whole
    gathered = np.zeros(len(rows))
    for state, blocks in by_state(held):
        gathered = gathered + sum(block.params for block in blocks) * state.gathered
    stays = np.where(_gathers_once(rows), gathered, 0.0)
    leaves, share = rows.offload, 1 - job.spec.training.offload_fraction
    gradients, optimizer = whole["gradients"], whole["optimizer"]
    here = 1.0 if job.spec.training.holds_gradients else share
    return {
        "weights": np.where(leaves >= PARAMETERS, stays, whole["weights"]),
        "gradients": np.where(leaves >= GRADIENTS, here * gradients, gradients),
        "optimizer": np.where(leaves >= OPTIMIZER, share * optimizer, optimizer),
    }


def keeps_all(rows: Skeletons) -> bool:
    """Return whether no row has state on the host."""
    return bool((rows.offload == KEEPS_ALL).all())


def streams_weights(rows: Skeletons) -> Bools:
    """Return the rows that copy a layer's weights to the GPU for each use."""
    return np.asarray((rows.offload == PARAMETERS) & ~_gathers_once(rows))


def _gathers_once(rows: Skeletons) -> Bools:
    """Return the rows that gather offloaded weights once per step, if they have any."""
    return np.asarray(rows.sharding.shards_gradients & ~rows.sharding.shards_weights)


def host_bytes(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes that a GPU has on its host, (rows,)."""
    result = np.zeros(len(rows))
    for block in held if not keeps_all(rows) else []:
        result = result + block.params * total(_offloaded(job, rows, block))
    return result


def _offloaded(job: Job, rows: Skeletons, held: Weights) -> Parts:
    """Return the bytes per parameter on the host, by part of the state.

    The host holds shards, also of weights under ZeRO-2, which the GPU gathers.
    """
    has_shards = rows.offload == PARAMETERS
    shards = held.sharding._replace(zero=np.where(has_shards, 3, rows.zero))
    weights, gradients, optimizer = sharded_bytes(held.state, shards)
    sizes = weights, gradients, job.spec.training.offload_fraction * optimizer
    codes = (PARAMETERS, GRADIENTS, OPTIMIZER)
    names = ("weights", "gradients", "optimizer")
    return {
        name: np.where(rows.offload >= code, size, 0.0)
        for name, code, size in zip(names, codes, sizes, strict=True)
    }


@dataclass(frozen=True)
class Copies:
    """Seconds of copies over PCIe and of the update, before anything is hidden."""

    up_s: Floats
    """Copy of weights to the GPU, once per forward and once per backward."""
    down_s: Floats
    """Copy of gradients to the host, after every micro-batch."""
    end_down_s: Floats
    """Copy of gradients to the host, at the end of the step."""
    update_s: Floats
    """Update by the optimizer, new weights copied to the GPU beside it."""
    activations_s: Floats | float = 0.0
    """Copy of activations to the host in a forward, and back in a backward."""
    waited_s: Floats | float = 0.0
    """The same between kernels, which wait for it."""

    @property
    def forward_s(self) -> Floats:
        """Return the seconds of copies in a forward; PCIe works both ways at once."""
        return np.maximum(self.up_s, self.activations_s)

    @property
    def backward_s(self) -> Floats:
        """Return the seconds of copies in a backward."""
        return np.maximum(self.up_s + self.activations_s, self.down_s)


def copies(job: Job, rows: Skeletons, held: list[Weights]) -> Copies:
    """Return the seconds that the offloaded state of some weights takes.

    - optimizer: once per step gradients go to the host and new weights come back, tile
      by tile beside the update (ZeRO-Offload, section 4.1), those of the share that
      the host updates; the GPU updates the rest meanwhile, and fetches its gradients
      where they are on the host (Tang et al. 2023, ZeRO-Offload++);
    - gradients: those of every micro-batch go to the host as they are reduced;
    - parameters: weights come to the GPU for every forward and backward
      (ZeRO-Infinity, section 5); under ZeRO-2 once per step.

    Frozen weights come to the GPU where weights do, and nothing else of them moves.
    """
    host = job.spec.cluster.topology.host
    zeros = np.zeros(len(rows))
    if host is None or keeps_all(rows):
        return Copies(zeros, zeros, zeros, zeros)
    code, (up, down, summed, updating_s) = rows.offload, [zeros] * 4
    share = job.spec.training.offload_fraction
    for state, blocks in by_state(held):
        shards = [block.params / block.sharding.optimizer for block in blocks]
        params = np.sum(shards, axis=0)
        sums = summed_gradients(state, rows.sharding)
        fetched = np.where(code == GRADIENTS, (1 - share) * sums, 0.0)
        renewed = share * state.renewed + fetched
        up = up + params * np.where(code == PARAMETERS, state.weights, renewed)
        down = down + params * state.gradients
        summed = summed + share * params * sums
        updating_s = updating_s + _update_s(job, share * params, state)
    streams = streams_weights(rows)
    path_s = 1 / (host.pcie_gb_s * 1e9)
    way_s = max(path_s, _drive_s_per_byte(job))
    update_s = np.maximum(updating_s, np.where(streams, 0.0, up * path_s))
    return Copies(
        up_s=np.where(streams, up * way_s, 0.0),
        down_s=np.where(code >= GRADIENTS, down * way_s, 0.0),
        end_down_s=np.where(code == OPTIMIZER, summed * path_s, 0.0),
        update_s=np.where(code >= OPTIMIZER, update_s, 0.0),
    )


def reference_copies(job: Job, rows: Skeletons, trained: list[Weights]) -> Copies:
    """Return the same of a frozen reference, whose weights come up for its forward.

    Beside adapters these are the weights that they are beside.
    """
    copied = reference_weights(job, trained)
    return copies(job, rows, copied or [one for one in trained if not one.is_adapter])


def layer_copies(job: Job, rows: Skeletons, held: list[Weights]) -> Copies:
    """Return the seconds of a layer's copies: of its state, and of activations.

    Activations of some layers leave; their copies are spread over the passes of all.
    So does the input of every recomputed layer.
    """
    moved, left_s = copies(job, rows, held), _activations_s(job, rows)
    host = job.spec.cluster.topology.host
    if host is None:
        return moved
    inputs_s = inputs_on_host(job.spec, rows) / (host.pcie_gb_s * 1e9)
    if framework_of(job.spec).waits_for_inputs:
        return replace(moved, activations_s=left_s, waited_s=inputs_s)
    return replace(moved, activations_s=left_s + inputs_s)


def _activations_s(job: Job, rows: Skeletons) -> Floats | float:
    spec, host = job.spec, job.spec.cluster.topology.host
    if host is None or not spec.training.offload_activations:
        return 0.0
    tokens = rows.shards.tokens(spec.training.seq_len)
    inputs = layer_input_bytes(spec, rows.shards) / rows.recompute_segment
    rest = saved_bytes(spec, rows.shards, recomputed_bits(spec, rows))
    saved = np.where(rows.repeats_layers, inputs, rest)
    return offloaded_share(spec) * tokens * saved / (host.pcie_gb_s * 1e9)


INPUTS_IN_FLIGHT = 2
"""Inputs of layers that stay on the GPU until they have left: `max_fwd_stash_count`."""


def inputs_on_host(spec: Spec, rows: Skeletons) -> Floats:
    """Return the bytes of a recomputed layer's input that leave for the host.

    DeepSpeed copies them beside compute (deepspeed 0.19.8
    runtime/activation_checkpointing/offload_activations.py), PyTorch between kernels.
    """
    tokens = rows.shards.tokens(spec.training.seq_len)
    of_layer = tokens * layer_input_bytes(spec, rows.shards)
    return np.where(rows.recompute == FULL_CPU, of_layer, 0.0)


def offloaded_share(spec: Spec) -> float:
    """Return the share of activations that is on the host.

    Those of `training.offload_activations` layers leave, which all layers count as.
    Those of one layer more are on their way there or back.
    """
    return spec.training.offload_activations / spec.model.n_layers


def is_never_faster(job: Job) -> bool:
    """Return whether an update is no faster with the host than on the GPU alone."""
    host, gpu = job.spec.cluster.topology.host, job.spec.cluster.topology.gpu
    if host is None:
        return True
    on_host = _update_gb_s(job, host) / job.spec.cluster.gpus_per_host
    share = job.spec.training.offload_fraction
    return on_host <= share * job.efficiency.memory * gpu.memory_gb_s


def _update_s(job: Job, params: Floats, state: StateBytes) -> Floats:
    """Return the seconds of the update of some parameters on the host.

    The GPUs of a host share its memory, and its drives if the state lives on them; the
    drives are read and written beside the update (ZeRO-Infinity, section 6.2).
    """
    host, gpus = job.spec.cluster.topology.host, job.spec.cluster.gpus_per_host
    if host is None:
        return np.zeros_like(params)
    rate = _update_gb_s(job, host) * 1e9 / gpus
    drive_s = 2 * state.optimizer * _drive_s_per_byte(job)
    return np.maximum(params * state.updated / rate, params * drive_s)


def _update_gb_s(job: Job, host: Host) -> float:
    """Return the rate at which the CPUs of a host read and write state, GB/s."""
    fused = min(UPDATE_SHARE * host.memory_gb_s, MOST_UPDATE_GB_S)
    return fused / framework_of(job.spec).host_update


def _drive_s_per_byte(job: Job) -> float:
    """Return the seconds per byte on a GPU's share of the drives; 0 without drives."""
    host, gpus = job.spec.cluster.topology.host, job.spec.cluster.gpus_per_host
    if host is None or host.nvme_gb_s is None or job.spec.training.offload_to == "cpu":
        return 0.0
    return gpus / (host.nvme_gb_s * 1e9)
