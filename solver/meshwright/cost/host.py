"""Seconds of the host that starts the kernels and collectives of a GPU.

A GPU waits where its host is slower. All times follow `dispatch_s`, what a layer of
plain PyTorch operations takes: a slower host slows them all.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.traffic import Collective
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Bools, Floats
from meshwright.plans.skeletons import Skeletons

COLLECTIVE = 0.5
"""Host time of a collective, 0.1 ms: bookkeeping of a process group, events between
streams, and the launch of NCCL."""

SEND = 1.5
"""Host time of a message to a neighbouring stage, 0.3 ms: a batch of sends and receives
that the host waits for (megatron-core, pipeline_parallel/p2p_communication.py:
torch.cuda.synchronize)."""

STEP = 50
"""Host time between two steps, 10 ms: data, the norm of gradients, which the host
reads, the launches of the update, and logs."""


def pass_s(
    job: Job, rows: Skeletons, dispatch_s: Floats, operations: Iterable[Collective]
) -> Floats:
    """Return the seconds in which the host starts one pass of a layer."""
    call_s = COLLECTIVE * job.efficiency.dispatch_s
    seconds = np.array(dispatch_s)
    for one in operations:
        is_there = (one.whole_bytes > 0) & (one.members > 1)
        seconds = seconds + np.where(is_there, one.calls * call_s, 0.0)
    return np.where(_has_graphs(job, rows), 0.0, seconds)


def _has_graphs(job: Job, rows: Skeletons) -> Bools:
    """Return whether CUDA graphs replay the kernels, so that no pass waits."""
    said = job.spec.training.cuda_graphs
    if said is not None:
        return np.full(len(rows), said is True)
    is_usual = framework_of(job.spec).has_cuda_graphs
    return np.asarray(is_usual & (rows.pp == 1) & (rows.ep == 1))


def send_s(job: Job, rows: Skeletons) -> Floats:
    """Return the seconds of the host for a message to a neighbouring stage."""
    return np.where(rows.pp > 1, SEND * job.efficiency.dispatch_s, 0.0)


def step_s(job: Job) -> float:
    """Return the seconds of the host between two steps."""
    return STEP * job.efficiency.dispatch_s
