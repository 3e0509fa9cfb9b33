"""The page on what the model definition must be."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.escape import in_markdown
from meshwright.exports.files import ExportedFile
from meshwright.spec.spec import Spec


def model_page(spec: Spec, title: str, notes: Iterable[str]) -> ExportedFile:
    """Return model.md: the model's shape, and what its definition must do."""
    shape = spec.model.model_dump(
        mode="json", exclude={"name", "published_params"}, exclude_none=True
    )
    lines = [f"# What the model definition must be: {in_markdown(title)}", ""]
    lines += [f"- {note}" for note in notes]
    lines += ["", f"The model is {in_markdown(spec.model.name)}:", ""]
    lines += ["| field | value |", "| --- | --- |"]
    for name, value in shape.items():
        inner = value if isinstance(value, dict) else {"": value}
        for below, own in inner.items():
            full = f"{name}.{below}".rstrip(".")
            lines.append(f"| `{full}` | {in_markdown(str(own))} |")
    text = "\n".join(lines) + "\n"
    return ExportedFile(name="model.md", text=text)
