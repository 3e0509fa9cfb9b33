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
    import yaml

    data = {**document.data}
    order = ("model", "cluster", "framework", "training")
    data = {name: data[name] for name in order if name in data} | data
    if isinstance(model := data.get("model"), str):
        data["model"] = _seen_from(to, model)
    if isinstance(cluster := data.get("cluster"), dict):
        files = {"topology", *kinds("machines", "fabrics")}
        data["cluster"] = {
            name: _seen_from(to, value) if name in files else value
            for name, value in cluster.items()
        }
    head = "# Every field: `meshwright schema spec`.\n"
    return head + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _seen_from(to: Path, value: Any) -> Any:
    if not isinstance(value, str) or not os.path.exists(value):
        return value
    folder, path = to.resolve().parent, Path(value).resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
