"""A launch: what a configuration says of a plan, a job and a model, option by option.

Fields have the names of specs: those of plans (`tp`, `zero`), `training.seq_len`,
`model.n_layers`. A few more stand for what only the model or the cluster turns into
fields of a plan; `launch_plan.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshwright.escape import printable
from meshwright.imports.launches.settings import Setting, Settings

MOST_NAMED = 12
"""Most options that a note lists by name."""


@dataclass(frozen=True)
class Said:
    """A value of a field, and the option that says so."""

    value: Any
    setting: Setting | None = None
    """None where the value is what the framework does without an option."""


@dataclass
class Launch:
    """What a configuration says."""

    kind: str
    """The kind of its file, as `meshwright import` names it."""
    title: str
    framework: str
    """The framework whose plan it is, by the name that specs give it."""
    name: str
    """The name of its file."""
    said: dict[str, Said] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    """Sentences on options that are known and change nothing here."""
    unjudged: list[str] = field(default_factory=list)
    """Sentences on options that touch time or memory and that no price knows."""
    unset: list[str] = field(default_factory=list)
    """Sentences on options whose value is not in the file."""
    ignored: list[str] = field(default_factory=list)
    """Names of options that touch neither plan nor price."""
    files: list[Setting] = field(default_factory=list)
    """Settings that name other files, which say the rest."""

    def say(self, name: str, value: Any, setting: Setting | None = None) -> None:
        """Keep the value of a field.

        Raises:
            SpecError: another option says another value.
        """
        before = self.said.get(name)
        if before is None or (before.setting is None and setting is not None):
            self.said[name] = Said(value, setting)
        elif setting is not None and before.value != value:
            other = before.setting
            assert other is not None
            setting.refuse(f"contradicts {other} ({other.where}); accepted: one")

    def value(self, name: str) -> Any:
        """Return the value of a field, None where nothing says it."""
        said = self.said.get(name)
        return None if said is None else said.value

    def setting(self, name: str) -> Setting | None:
        """Return the option that says a field."""
        said = self.said.get(name)
        return None if said is None else said.setting

    def changes_nothing(self, setting: Setting, why: str) -> None:
        """Note that an option changes nothing."""
        told = f"{setting.where}: {printable(str(setting))} changes nothing: {why}"
        if told not in self.idle:
            self.idle.append(told)

    def is_not_judged(self, setting: Setting, why: str) -> None:
        """Note that an option touches time or memory, and no price knows it."""
        told = f"{setting.where}: {printable(str(setting))} is not judged: {why}"
        if told not in self.unjudged:
            self.unjudged.append(told)

    def close(self, settings: Settings) -> None:
        """Note what nothing has read, what is given twice, and what is not there."""
        for own in settings.repeated:
            self.changes_nothing(own, "it is given again, and the last one counts")
        for own in settings.open:
            self.unset.append(f"{own.where}: {printable(str(own))}: {_why_open(own)}")
        self.ignored += [own.written for own in settings.unread()]

    def notes(self) -> list[str]:
        """Return what is to be said of the options, each kind once."""
        told = [*self.unset, *self.unjudged, *self.idle]
        names = list(dict.fromkeys(map(printable, self.ignored)))
        if names:
            shown = ", ".join(own[:40] for own in names[:MOST_NAMED])
            more = len(names) - MOST_NAMED
            rest = f" and {more} more" if more > 0 else ""
            told.append(
                f"{self.name}: ignored, as they touch neither plan nor price: "
                f"{shown}{rest}"
            )
        return told


def _why_open(own: Setting) -> str:
    if not own.unset:
        return "left open: the program that reads it decides"
    if own.unset == (own.value,):
        return "left open: only a run knows it"
    return f"left open: {listed(own.unset)} is not set in the file"


def listed(words: Iterable[str]) -> str:
    """Return words as a sentence has them."""
    own = [printable(word)[:40] for word in words]
    return own[0] if len(own) == 1 else f"{', '.join(own[:-1])} and {own[-1]}"
