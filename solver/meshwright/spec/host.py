"""The machine around the GPUs: the memory that a plan may offload to."""

from __future__ import annotations

from pydantic import Field, model_validator

from meshwright.spec.base import Count, Problem, SpecModel, refuse
from meshwright.spec.units import GBPerS, GiB


class Host(SpecModel):
    """One host; without this section nothing is offloaded."""

    gpus: Count | None = Field(
        None, description="GPUs of a host; default the size of the innermost level."
    )
    memory_gib: GiB = Field(description="Memory of a host.")
    pcie_gb_s: GBPerS = Field(
        description="What copies of one GPU reach, per direction."
    )
    memory_gb_s: GBPerS = Field(description="Rated bandwidth of a host's memory.")
    nvme_gb_s: GBPerS | None = Field(
        None, description="What the drives of a host reach, reads and writes together."
    )
    nvme_gib: GiB | None = Field(None, description="Room on the drives of a host.")

    @model_validator(mode="after")
    def _check_drives(self) -> Host:
        given = {"nvme_gb_s": self.nvme_gb_s, "nvme_gib": self.nvme_gib}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == 1:
            (name,) = given.keys() - missing
            sentence = f"without {missing[0]}; accepted: both or neither"
            refuse([Problem((name,), given[name], sentence)])
        return self
