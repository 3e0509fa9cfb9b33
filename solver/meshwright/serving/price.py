"""Seconds of deployments: what each layer and each end of a stage takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints, Parts, added, scaled
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.kernels import Kernels
from meshwright.serving.passes import Pass, decode_pass, prefill_passes


@dataclass(frozen=True)
class Phase:
    """Seconds on the stages of a replica, a row per deployment, by part."""

    layer: Parts
    first: Parts
    """What the first stage has beside its layers."""
    last: Parts
    send: Parts
    """What every stage but the last has."""

    def times(self, factor: Floats | Ints | float) -> Phase:
        """Return the phase so many times."""
        own = vars(self).values()
        return Phase(*(scaled(parts, factor) for parts in own))

    def plus(self, other: Phase) -> Phase:
        """Return both phases, one after the other."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Phase(*(added(pair) for pair in pairs))

    def on_stages(self, layers: Ints) -> Parts:
        """Return the seconds of each stage of the first row, by part."""
        stage = np.arange(len(layers))
        ends = {
            "layer": layers,
            "first": stage == 0,
            "last": stage == len(layers) - 1,
            "send": stage < len(layers) - 1,
        }
        return added(
            {name: part[0] * times for name, part in getattr(self, field).items()}
            for field, times in ends.items()
        )


@dataclass(frozen=True)
class Prices:
    """What a replica does: see `rounds`."""

    first_token: Phase
    """The prefill of one prompt alone."""
    fill: Phase
    """The prefill of all prompts of a group."""
    step: Phase
    """One token of each request of a group."""

    def before(self, job: ServingJob) -> Phase:
        """Return what the objective counts once, on one stage after the other."""
        is_latency = job.inference.objective == "latency"
        return self.first_token.times(float(is_latency))

    def cycle(self, job: ServingJob) -> Phase:
        """Return what the objective has groups go through in rounds.

        A request's latency is that of its prompt and its tokens; a replica's
        throughput takes in the prefill of all that it serves.
        """
        own = job.inference
        steps = self.step.times(own.output_len - 1)
        is_latency = own.objective == "latency"
        return steps if is_latency else self.fill.plus(steps)


def price(job: ServingJob, rows: Deployments) -> Prices:
    """Return the prices of deployments."""
    one = np.ones(len(rows), dtype=np.int64)
    return Prices(
        first_token=_phase(job, rows, *prefill_passes(job, one)),
        fill=_phase(job, rows, *prefill_passes(job, rows.group)),
        step=_phase(job, rows, decode_pass(job, rows.group), one),
    )


def _phase(job: ServingJob, rows: Deployments, own: Pass, passes: Ints) -> Phase:
    kernels = Kernels(job, rows, own)
    layer = kernels.layer_s()
    lead = job.model.first_dense_layers
    leading = added([kernels.dense_layer_s(), scaled(layer, -1.0)]) if lead else {}
    phase = Phase(layer, scaled(leading, lead), kernels.head_s(), kernels.send_s())
    return phase.times(passes)
