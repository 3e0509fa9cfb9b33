"""The switches of a code base: facts of `training` that are on or off.

A spec says a switch, or leaves it to its framework. A switch that is left open may have
been set by whoever wrote the training script, which calibration finds out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from meshwright.frameworks.base.framework import Setting
from meshwright.frameworks.base.registry import framework_of, fused_of, overlap_of
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedOperation, Overlap, Training

CHUNKS = 8
"""Parts of a chunked loss (torchtitan, components/loss.py)."""

NESTED = ("overlap", "lora")
"""Fields of `training` that have fields, of which a switch is one."""


@dataclass(frozen=True)
class Switch:
    """A field of `training` with few positions, or one member of a list of them."""

    name: str
    """The path below `training`, as in 'overlap.tp' or 'fused.norm'."""
    settings: tuple[Setting, ...] = (False, True)

    @property
    def field(self) -> str:
        """Return the field of `training` that says the switch."""
        return self.name.partition(".")[0]

    @property
    def member(self) -> str:
        """Return the part of that field; empty where it is the field itself."""
        return self.name.partition(".")[2]

    def is_said(self, training: Training) -> bool:
        """Return whether a spec says the switch itself."""
        value = getattr(training, self.field)
        if self.field in NESTED:
            return getattr(value, self.member, None) is not None
        return value is not None and self.field in training.model_fields_set

    def at(self, spec: Spec, setting: Setting) -> Spec:
        """Return a spec with the switch in a position."""
        value: Any = setting
        if self.field in NESTED:
            nested = getattr(spec.training, self.field)
            value = nested.model_copy(update={self.member: setting})
        elif self.field == "fused":
            others = fused_of(spec) - {self.member}
            value = tuple(sorted(others | ({self.member} if setting else set())))
        return spec.having("training", **{self.field: value})

    def allowed(self, spec: Spec) -> tuple[Setting, ...]:
        """Return the positions that the framework of a spec has for its model."""
        framework = framework_of(spec)
        if self.field == "context_exchange":
            return tuple(framework.context_exchanges)
        if self.field == "expert_dispatch":
            has_both = framework.has_deepep and spec.model.moe is not None
            return self.settings if has_both else self.settings[:1]
        return self.settings

    def of(self, spec: Spec) -> Setting | None:
        """Return the position that a spec has; None where only its framework knows."""
        if self.field == "overlap":
            return self.member in overlap_of(spec)
        if self.field == "fused":
            return self.member in fused_of(spec)
        if self.field == "loss_chunks":
            return spec.training.loss_chunks or framework_of(spec).loss_chunks
        if self.field == "lora":
            return getattr(spec.training.lora, self.member, None)
        found: Setting | None = getattr(spec.training, self.field)
        return found


SWITCHES = (
    Switch("compile"),
    Switch("attention", ("flash", "plain")),
    *(Switch(f"fused.{name}") for name in get_args(FusedOperation)),
    *(Switch(f"overlap.{name}") for name in Overlap.model_fields),
    Switch("cuda_graphs"),
    Switch("gradients", ("bf16", "fp32")),
    Switch("loss_parallel"),
    Switch("loss_chunks", (1, CHUNKS)),
    Switch("expert_dispatch", ("alltoall", "deepep")),
    Switch("context_exchange", ("ring", "gather", "ulysses")),
    Switch("tuned", ("user", "vendor")),
)
"""All switches; `compile` is first, since it fuses what is not said to be apart."""

SWITCH = {switch.name: switch for switch in SWITCHES}


def with_settings(
    spec: Spec, settings: Mapping[str, Setting], kept: Collection[str] = ()
) -> Spec:
    """Return a spec with switches in some positions, but for those that are kept."""
    for switch in SWITCHES:
        if switch.name in settings and switch.name not in kept:
            spec = switch.at(spec, settings[switch.name])
    return spec


def said_switches(spec: Spec) -> frozenset[str]:
    """Return the names of the switches that a spec says itself."""
    said = (switch.name for switch in SWITCHES if switch.is_said(spec.training))
    return frozenset(said)
