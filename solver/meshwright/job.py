"""A spec with everything that the formulas need, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright.cost.efficiency import Efficiency
from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import build_fabric
from meshwright.topology.paths import Fabric


@dataclass(frozen=True)
class Job:
    """A spec, its cluster compiled, and how efficient its kernels are taken to be."""

    spec: Spec
    fabric: Fabric
    efficiency: Efficiency = field(default_factory=Efficiency)

    def at(self, precision: Precision) -> Job:
        """Return the job with one precision decided."""
        return replace(self, spec=self.spec.at(precision))


def make_job(spec: Spec, efficiency: Efficiency | None = None) -> Job:
    """Return the job of a spec, at default efficiency unless told otherwise."""
    return Job(spec, build_fabric(spec.cluster), efficiency or Efficiency())
