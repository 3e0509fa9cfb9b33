"""Profiles: efficiencies fitted to measured runs, per GPU and framework."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from meshwright.cost.efficiency import Efficiency
from meshwright.errors import SpecError
from meshwright.spec.base import SpecModel
from meshwright.spec.source import read_yaml
from meshwright.spec.spec import Spec


class Fitted(SpecModel):
    """What was fitted for one GPU and framework, on which rows, and how well."""

    gpu: str
    framework: str
    efficiency: Efficiency
    rows: int = Field(description="Runs that were fitted.")
    sources: dict[str, int] = Field(description="Runs by source.")
    mape_before: float = Field(description="Mean error of the defaults.")
    mape_fitted: float = Field(description="Mean error on the fitted runs.")
    mape_cross_validated: float | None = Field(
        None, description="Mean error on runs that were left out of the fit."
    )
    unidentified: tuple[str, ...] = Field(
        (), description="Parameters that these runs say nothing about: at default."
    )


class Profile(SpecModel):
    """A profile file."""

    profiles: tuple[Fitted, ...]

    def efficiency(self, spec: Spec) -> Efficiency:
        """Return the efficiency for a spec's GPU and framework.

        Raises:
            SpecError: the profile has none; names those it has.
        """
        wanted = (spec.cluster.topology.gpu.name, spec.framework)
        for fitted in self.profiles:
            if (fitted.gpu, fitted.framework) == wanted:
                return fitted.efficiency
        known = ", ".join(f"{f.gpu} with {f.framework}" for f in self.profiles)
        raise SpecError(
            f"--profile: nothing for {wanted[0]} with {wanted[1]}; it has {known}"
        )


def load_profile(path: Path) -> Profile:
    """Return a profile from its file.

    Raises:
        SpecError: it cannot be read, or is not a profile.
    """
    document = read_yaml(path)
    try:
        return Profile.model_validate(document.data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "profile"
        where = document.where(tuple(first["loc"]))
        raise SpecError(f"{where}: {field}: {first['msg']}") from None
