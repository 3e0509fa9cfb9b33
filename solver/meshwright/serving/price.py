"""The seconds of deployments: those of each layer, and of each end of a stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints, Parts, added, scaled
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob, jobs_of_kinds
from meshwright.serving.kernels import ForwardPass, Kernels, decode_pass, prefill_passes

SLACK = 1 + 1e-9
"""Factor on a limit, so that a wait equal to it passes despite rounding."""


@dataclass(frozen=True)
class Phase:
    """Seconds of passes through the stages of a replica, by part, one row each."""

    layer: Parts
    """Seconds of every layer."""
    first: Parts
    """Seconds of the first stage beside its layers."""
    last: Parts
    """Seconds of the last stage beside its layers."""
    send: Parts
    """Seconds of every stage but the last, to send on to the next."""

    def times(self, factor: Floats | Ints | float) -> Phase:
        """Return the phase repeated `factor` times."""
        return Phase(*(scaled(parts, factor) for parts in vars(self).values()))

    def plus(self, other: Phase) -> Phase:
        """Return both phases, one after the other."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Phase(*(added(pair) for pair in pairs))

    def on_stages(self, layers: Ints) -> Parts:
        """Return the seconds of each stage of the first row, by part."""
        stage = np.arange(len(layers))
        counts = {
            "layer": layers,
            "first": stage == 0,
            "last": stage == len(layers) - 1,
            "send": stage < len(layers) - 1,
        }
        return added(
            {name: part[0] * count for name, part in getattr(self, field).items()}
            for field, count in counts.items()
        )


@dataclass(frozen=True)
class Prices:
    """The phases of a replica's work: see `round_time`."""

    first_token: Phase
    """The prefill of one prompt alone."""
    fill: Phase
    """The prefill of all prompts of a group."""
    step: Phase
    """One token of each request of a group."""

    def once(self, job: ServingJob) -> Phase:
        """Return the part of the objective that passes the stages once."""
        is_latency = job.inference.objective == "latency"
        return self.first_token.times(float(is_latency))

    def cycle(self, job: ServingJob) -> Phase:
        """Return the part of the objective that groups go through in rounds.

        A request's latency is that of its prompt and its tokens; a replica's
        throughput includes the prefill of all requests that it serves.
        """
        steps = self.step.times(job.inference.output_len - 1)
        is_latency = job.inference.objective == "latency"
        return steps if is_latency else self.fill.plus(steps)


def price(job: ServingJob, rows: Deployments) -> Prices:
    """Return the phases of deployments."""
    one = np.ones(len(rows), dtype=np.int64)
    return Prices(
        first_token=_phase(job, rows, *prefill_passes(job, one)),
        fill=_phase(job, rows, *prefill_passes(job, rows.group_size)),
        step=_phase(job, rows, decode_pass(job, rows.group_size), one),
    )


def _phase(
    job: ServingJob, rows: Deployments, forward: ForwardPass, passes: Ints
) -> Phase:
    kernels = Kernels(job, rows, forward)
    layer = added(
        scaled(Kernels(kind, rows, forward).layer_s(), share)
        for share, kind in jobs_of_kinds(job)
    )
    lead = job.model.first_dense_layers
    leading = added([kernels.dense_layer_s(), scaled(layer, -1.0)]) if lead else {}
    phase = Phase(layer, scaled(leading, lead), kernels.head_s(), kernels.send_s())
    return phase.times(passes)


def round_s(stages_s: Floats, groups: int) -> float:
    """Return the seconds in which every group passes every stage once."""
    return float(max(stages_s.sum(), groups * stages_s.max()))


def bubble(stages_s: Floats, groups: int) -> float:
    """Return the mean share of a round for which stages wait."""
    busy_s = groups * float(stages_s.mean())
    return 1 - busy_s / round_s(stages_s, groups)


def wait_s(limit_ms: float | None) -> float:
    """Return the longest wait that a limit allows, seconds."""
    return math.inf if limit_ms is None else limit_ms * 1e-3 * SLACK
