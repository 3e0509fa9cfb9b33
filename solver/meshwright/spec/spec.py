"""The spec: one question to Meshwright."""

from __future__ import annotations

from pydantic import Field, model_validator

from meshwright.spec import consistency
from meshwright.spec.base import SpecModel, refuse
from meshwright.spec.cluster import Cluster
from meshwright.spec.framework_names import FrameworkName
from meshwright.spec.gpu import Precision
from meshwright.spec.model import Model
from meshwright.spec.pins import Pins
from meshwright.spec.run import TrainingRun
from meshwright.spec.training import Limits, Training


class Spec(SpecModel):
    """A model, a cluster, a training job, and what the user has already decided."""

    model: Model
    cluster: Cluster
    framework: FrameworkName = Field(
        "megatron", description="Legality and memory profile."
    )
    training: Training
    limits: Limits = Field(default_factory=lambda: Limits())
    pins: Pins = Field(default_factory=lambda: Pins())
    run: TrainingRun = Field(default_factory=lambda: TrainingRun())

    @model_validator(mode="after")
    def _check_agreement(self) -> Spec:
        refuse(consistency.problems(self))
        return self

    @property
    def title(self) -> str:
        """Return the question in one line."""
        topology, training = self.cluster.topology, self.training
        precision = " or ".join(training.precisions)
        parts = [(part.gpus, part.topology.gpu) for part in self.cluster.parts]
        gpus = parts or [(self.cluster.gpus, topology.gpu)]
        names = " + ".join(f"{count:,} x {gpu.name}" for count, gpu in gpus)
        return (
            f"{self.model.name} on {names} "
            f"({topology.name}), {self.framework}, {precision}, "
            f"sequence {training.seq_len:,}, batch {training.global_batch:,}"
        )

    @property
    def usable_gib(self) -> float:
        """Return the memory per GPU that a plan may use, GiB."""
        return self.limits.usable_gib(self.cluster.topology.gpu.memory_gib)

    @property
    def usable_host_gib(self) -> float:
        """Return the offloaded state that a plan may put on a host, GiB."""
        host = self.cluster.topology.host
        if host is None:
            return 0.0
        is_nvme = self.training.offload_to == "nvme"
        room = host.nvme_gib if is_nvme else host.memory_gib
        return (room or 0.0) * (1 - self.limits.memory_margin)

    def at(self, precision: Precision) -> Spec:
        """Return the spec with one precision decided, as costs read it."""
        decided = {"precisions": (precision,)}
        training = self.training.model_copy(update=decided)
        return self.model_copy(update={"training": training})

    @property
    def peak_flops(self) -> float:
        """Return the dense matmul peak of one GPU at the spec's precision, FLOP/s."""
        return self.cluster.topology.gpu.peak_tflops.flops(self.training.precision)
