"""Builds the specs of a sweep from its base; each bundled name is read once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from meshwright.errors import MeshwrightError, SpecError
from meshwright.imports.registry import kinds
from meshwright.loading.load import open_sections, refuse_inference, resolve_names
from meshwright.reading.document import Document, FieldPath
from meshwright.reading.messages import DISAGREEMENT, FOLLOWS, explain, shown
from meshwright.spec.spec import Spec
from meshwright.sweeps.axes import Setting

_SECTIONS = ("training", "limits", "pins", "run")
"""Sections that a setting may add to a base that lacks them."""

_RESOLVED = {"preset", "topology", "machine", "gpu", *kinds("machines", "fabrics")}
"""Fields of a cluster or model that name a file; all others are set after it."""

_EITHER = {"machine": "topology", "topology": "machine"}
"""Fields of a cluster of which one replaces the other."""


class InconsistentSettings(MeshwrightError):
    """Settings that are valid one by one and contradict each other."""


class Builder:
    """Builds specs of one base."""

    def __init__(self, base: Document, notes: list[str]) -> None:
        """Take a base as it was written.

        Args:
            base: The fields of a spec, names unresolved.
            notes: Gets the assumptions made where an imported file is silent.
        """
        open_sections(base)
        self._base = base
        self._notes = notes
        self._resolved: dict[str, Document] = {}

    def document(self, settings: Sequence[Setting]) -> Document:
        """Return the base with settings, all names resolved.

        Raises:
            SpecError: a name is unknown, or a setting is no field of the base.
        """
        names = [setting for setting in settings if _is_name(setting.path)]
        resolved = self._resolve(sorted(names, key=lambda setting: len(setting.path)))
        data, places = resolved.data, {}
        for setting in settings:
            if setting not in names:
                data = _with(data, setting.path, setting)
                places[setting.path] = setting.where
        return replace(resolved, data=data, places=resolved.places | places)

    def spec(self, settings: Sequence[Setting]) -> Spec:
        """Return the base with settings as a spec.

        Raises:
            SpecError: a setting is wrong by itself.
            InconsistentSettings: settings contradict each other.
        """
        document = self.document(settings)
        refuse_inference(document)
        try:
            return Spec.model_validate(document.data)
        except ValidationError as error:
            kinds = {problem["type"] for problem in error.errors()}
            are_apart = kinds <= {DISAGREEMENT, FOLLOWS}
            raised = InconsistentSettings if are_apart else SpecError
            raise raised(explain(document, error, Spec)) from None

    def _resolve(self, names: Sequence[Setting]) -> Document:
        """Return the base with names set and resolved; cached by the names set."""
        key = repr([(setting.path, setting.value) for setting in names])
        if key not in self._resolved:
            document = copy.deepcopy(self._base)
            for setting in names:
                _graft(document, setting)
            for note in resolve_names(document):
                if note not in self._notes:
                    self._notes.append(note)
            self._resolved[key] = document
        return self._resolved[key]


def _is_name(path: FieldPath) -> bool:
    if path in {("model",), ("cluster",)}:
        return True
    return path[0] in ("model", "cluster") and path[-1] in _RESOLVED


def _graft(document: Document, setting: Setting) -> None:
    """Put a value into a spec as it is written, before names are resolved."""
    path = setting.path
    for size in range(1, len(path)):
        _open(document, path[:size], setting)
    other = _EITHER.get(str(path[-1]))
    if path[0] == "cluster" and other:
        document.value(path[:-1]).pop(other, None)
    value = copy.deepcopy(setting.value)
    document.graft(path, Document(value, {(): setting.where}))


def _open(document: Document, path: FieldPath, setting: Setting) -> None:
    """Turn the value at a path into a mapping: a name becomes `{preset: name}`."""
    parent, step = document.value(path[:-1]), path[-1]
    if isinstance(parent, dict) and parent.get(step) is None:
        parent[step] = {}
    elif isinstance(parent, dict) and isinstance(parent[step], str):
        field = "topology" if path == ("cluster",) else "preset"
        parent[step] = {field: parent[step]}
    elif not _has(parent, step) or not isinstance(parent[step], dict | list):
        raise _no_field(setting, path)


def _with(data: Any, path: FieldPath, setting: Setting) -> Any:
    """Return a copy of data with a value at a path; all other data is shared."""
    step, rest = path[0], path[1:]
    done = setting.path[: len(setting.path) - len(path) + 1]
    if isinstance(data, dict) and rest and setting.path[0] in _SECTIONS:
        data = {step: {}, **data}
    if rest and not _has(data, step):
        raise _no_field(setting, done)
    if not rest and not (isinstance(data, dict) or _has(data, step)):
        raise _no_field(setting, done)
    changed = copy.copy(data)
    changed[step] = _with(data[step], rest, setting) if rest else setting.value
    return changed


def _has(data: Any, step: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(step, int) and step < len(data)
    return isinstance(data, dict) and step in data


def _no_field(setting: Setting, path: FieldPath) -> SpecError:
    name = ".".join(map(str, path))
    return SpecError(
        f"{setting.where}: {setting.name}: {shown(setting.value)}: the spec has no "
        f"fields in {name}; expected the path of a field of the base"
    )
