"""`meshwright import` of what starts training: its plan as text, the rest as a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.api.launched_spec import spec_fields
from meshwright.imports.imported import as_yaml
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import Decided, decide
from meshwright.imports.read import read_launch
from meshwright.loading.launched_plan import as_pins, sizes_of

REQUIRED = ("n_layers", "d_model", "n_heads", "d_ff", "vocab")
"""Fields that the model of a spec must have."""


def launch_text(path: Path, kind: str | None) -> tuple[str, tuple[str, ...]]:
    """Return what a launch says as the beginning of a spec, and notes.

    Raises:
        SpecError: the file cannot be read as a launch.
    """
    launch = read_launch(path, kind)
    decided = decide(launch, sizes_of(launch))
    as_pins(launch, decided)
    notes = (*launch.notes(), *_missing(launch, decided))
    plan = f"meshwright explain SPEC --plan '{plan_text(decided.pins)}'"
    made_from = f"{path} ({launch.kind}: {launch.title})"
    return as_yaml(made_from, [*notes, plan], spec_fields(launch, decided)), notes


def plan_text(pins: dict[str, Any]) -> str:
    """Return fields of a plan as `--plan` reads them."""
    return ",".join(f"{name}={_word(value)}" for name, value in pins.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)


def _missing(launch: Launch, decided: Decided) -> list[str]:
    names = ["cluster"]
    if gpus := launch.value("gpus"):
        names = [f"cluster ({gpus} GPUs)"]
    names += [
        f"model.{name}" for name in REQUIRED if launch.value(f"model.{name}") is None
    ]
    if decided.global_batch is None:
        names += ["training.global_batch"] * (
            "training.global_batch" not in launch.said
        )
    names += ["training.seq_len"] * ("training.seq_len" not in launch.said)
    left = ", ".join(decided.open)
    return [
        f"{launch.name}: does not say, and a spec needs: {', '.join(names)}",
        f"{launch.name}: the plan leaves open: {left}",
    ]
