"""Reads the configurations that teams published, each with its source."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from meshwright.spec.base import SpecModel

FOLDER = Path(__file__).parent


class Configuration(SpecModel):
    """One published configuration: a spec, and the plan that the team chose."""

    id: str
    source: dict[str, str] = Field({}, description="Repository, commit and date.")
    from_: str = Field(alias="from", description="Where it stands in the source.")
    runs_on: str = Field(description="The code base that the team ran.")
    framework: str = Field("", description="The framework that it is taken as.")
    model: Any = None
    cluster: dict[str, Any] = Field({}, description="As in a spec.")
    training: dict[str, Any] = Field({}, description="As in a spec.")
    plan: dict[str, Any] = Field({}, description="As `explain --plan` reads it.")
    gpus: int | None = Field(None, description="Where no cluster says it.")
    measured_step_s: float | None = None
    differs: tuple[str, ...] = Field(
        (), description="In what the spec is not the published one."
    )
    lacks: str = Field("", description="What it has that no spec can say.")

    @property
    def spec(self) -> dict[str, Any]:
        """Return the fields of its spec."""
        names = ("model", "cluster", "framework", "training")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}


class NamedReason(SpecModel):
    """Why a configuration is refused, or does not fit."""

    kind: Literal["source", "not modelled"]
    reason: str


def configurations() -> list[Configuration]:
    """Return all configurations, file by file."""
    clusters = _yaml(FOLDER / "clusters.yaml")
    paths = sorted((FOLDER / "configurations").glob("*.yaml"))
    return [one for path in paths for one in _of_file(_yaml(path), clusters)]


def _of_file(data: dict[str, Any], clusters: dict[str, Any]) -> Iterator[Configuration]:
    shared = {name: value for name, value in data.items() if name != "configurations"}
    for one in data["configurations"]:
        cluster = one.get("cluster", {})
        if cluster.get("topology") in clusters:
            cluster["topology"] = copy.deepcopy(clusters[cluster["topology"]])
        yield Configuration.model_validate({**shared, **one})


def exceptions() -> dict[str, NamedReason]:
    """Return the named reasons, by the id of the configuration."""
    read = _yaml(FOLDER / "exceptions.yaml")
    return {name: NamedReason.model_validate(one) for name, one in read.items()}


def _yaml(path: Path) -> dict[str, Any]:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data
