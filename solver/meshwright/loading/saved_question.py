"""Writes a question that was asked on the command line as a spec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from meshwright.imports.registry import kinds
from meshwright.reading.document import Document


def saved(document: Document, to: Path) -> str:
    """Return a spec as YAML, with the paths of files as seen from its folder.

    The document must not yet be resolved: names stand for what they name.
    """
    data = {**document.data}
    if isinstance(model := data.get("model"), str):
        data["model"] = seen_from(to, model)
    if isinstance(cluster := data.get("cluster"), dict):
        data["cluster"] = _cluster(to, cluster)
    return spec_text(data)


def spec_text(fields: dict[str, Any]) -> str:
    """Return the fields of a spec as YAML, the sections that all have first."""
    import yaml

    order = ("model", "cluster", "framework", "training")
    data = {name: fields[name] for name in order if name in fields} | fields
    head = "# Every field: `meshwright schema spec`.\n"
    return head + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def in_one_line(to: Path, cluster: dict[str, Any]) -> str:
    """Return the section `cluster` of a spec in a line of YAML."""
    import yaml

    data, wide = _cluster(to, cluster), float("inf")
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=True, width=wide)
    return str(text).strip()


def _cluster(to: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    files = {"topology", *kinds("machines", "fabrics")}
    return {
        name: seen_from(to, value) if name in files else value
        for name, value in cluster.items()
    }


def seen_from(to: Path, value: Any) -> Any:
    """Return the path of a file as seen from the folder of a spec; else the value."""
    if not isinstance(value, str) or not os.path.exists(value):
        return value
    folder, path = to.resolve().parent, Path(value).resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
