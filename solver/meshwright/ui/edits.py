"""Edits of a spec: a path and its new value, from a slider, a list or a repair."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.reading.document import FieldPath, field_path, shown
from meshwright.reading.yaml_and_csv import MAX_DEPTH, parse_yaml
from meshwright.results.outcome_parts import Repair
from meshwright.spec.plan_fields import Pins

Fields = dict[str, Any]

RULES = "rules."
"""How the path of a user's rule starts; its name follows."""

_ARROW = " -> "
_SECOND = ", recompute_layers: "
"""Before the second value of a repair of `recompute`."""


class Edit(NamedTuple):
    """A field of a spec, by its path, and its new value; None removes the field."""

    path: str
    value: Any


def edits_of(repair: Repair) -> list[Edit]:
    """Return the edits of a repair, whose text is `PATH: OLD -> NEW` with YAML."""
    return [edit for text in repair.edits for edit in _edits_in(text)]


def _edits_in(text: str) -> list[Edit]:
    path, _, change = text.partition(": ")
    value, second, layers = change.rpartition(_ARROW)[2].partition(_SECOND)
    edits = [_edit(path, value)]
    return [*edits, _edit("recompute_layers", layers)] if second else edits


def _edit(path: str, value: str) -> Edit:
    whole = f"pins.{path}" if path in Pins.model_fields else path
    return Edit(whole, parse_yaml(value, path, has_lines=False).data)


def edited(fields: Fields, resolved: Fields, edits: Iterable[Edit]) -> Fields:
    """Return the fields of a spec with edits.

    Args:
        fields: The spec as written.
        resolved: The same with every name replaced by what it stands for.
        edits: The edits, in their order.

    Raises:
        SpecError: a path is none of a spec.
    """
    changed = copy.deepcopy(fields)
    for edit in edits:
        if edit.path.startswith(RULES):
            _drop_rule(changed, edit.path.removeprefix(RULES))
        else:
            _put(changed, resolved, edit)
    return changed


def _drop_rule(fields: Fields, name: str) -> None:
    rules = fields.get("rules")
    if isinstance(rules, list):
        numbered = enumerate(rules, start=1)
        kept = [rule for number, rule in numbered if _rule_name(rule, number) != name]
        fields["rules"] = kept


def _rule_name(rule: Any, number: int) -> Any:
    """Return the name of a rule; one without has that of its place."""
    named = rule.get("name") if isinstance(rule, dict) else None
    return named or f"rule_{number}"


def _put(fields: Fields, resolved: Any, edit: Edit) -> None:
    """Set the value at a path, below copies of what names stand for."""
    steps = field_path(edit.path)
    if not steps:
        raise SpecError(f"{shown(edit.path)}: no path of a spec")
    if len(steps) > MAX_DEPTH:
        told = f"{len(steps):,} steps; expected at most {MAX_DEPTH}"
        raise SpecError(f"{shown(edit.path)}: {told}")
    node: Any = fields
    for step, known in zip(steps[:-1], _known(resolved, steps), strict=True):
        node = _opened(node, step, known, edit.path)
    _check(node, steps[-1], edit.path)
    if edit.value is not None:
        node[steps[-1]] = edit.value
    elif isinstance(node, dict):
        node.pop(steps[-1], None)


def _known(resolved: Any, steps: FieldPath) -> list[Any]:
    """Return the resolved values along a path, None from where there is none."""
    values = []
    for step in steps[:-1]:
        try:
            resolved = resolved[step]
        except (KeyError, IndexError, TypeError):
            resolved = None
        values.append(resolved)
    return values


def _opened(node: Any, step: str | int, known: Any, path: str) -> Any:
    """Return the mapping or list below a node, made where it is missing."""
    _check(node, step, path)
    value = node.get(step) if isinstance(node, dict) else node[step]
    if not isinstance(value, dict | list):
        node[step] = _spelled_out(step, value, known)
    return node[step]


def _spelled_out(step: str | int, value: Any, known: Any) -> Any:
    """Return a mapping or list that stands for a value some field of which changes."""
    if isinstance(value, str) and isinstance(known, dict):
        return {"topology" if step == "cluster" else "preset": value}
    if step == "gpu" and isinstance(known, dict):
        try:
            gpu = catalog.bundled(catalog.GPUS, str(known.get("name")))
            return {"preset": gpu.stem}
        except SpecError:
            pass
    return copy.deepcopy(known) if isinstance(known, dict | list) else {}


def _check(node: Any, step: str | int, path: str) -> None:
    """Refuse a step that leads nowhere; a machine is named as a topology from now on.

    Raises:
        SpecError: the node lacks the field.
    """
    if isinstance(node, dict) and step == "topology" and "machine" in node:
        node[step] = node.pop("machine")
    is_key = isinstance(node, dict) and isinstance(step, str)
    if is_key or (isinstance(node, list) and step in range(len(node))):
        return
    raise SpecError(f"{shown(path)}: no path of this spec")
