"""The imported model: a config.json that a spec names instead of a model's fields.

`model: {hf_config: path/config.json}` may have fields of the model beside it, which
then stand for those of the file. `model: path/config.json` names the file alone, or the
folder that it is in. What the file leaves out is a note.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.registry import detect, importer, kinds
from meshwright.imports.text import read_text
from meshwright.loading.named_files import Files
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.messages import shown
from meshwright.spec.base import shortened

MODEL: FieldPath = ("model",)

FIELD = "hf_config"
"""The field of a model that names a config.json."""

CONFIG = "config.json"


def fill_model(document: Document, files: Files) -> list[str]:
    """Replace a config.json that the section `model` names by the fields it stands for.

    Returns:
        Notes on what was assumed.

    Raises:
        SpecError: there is no such file, or its architecture is not supported.
    """
    document.stand_ins[MODEL] = (FIELD,)
    value = document.data.get("model")
    if isinstance(value, dict) and FIELD in value:
        return _fill(document, dict(value), files)
    if isinstance(value, str):
        near = Path(document.where(MODEL).file).parent
        path, is_sure = _config(value, near, files)
        if path is not None and (is_sure or detect(read_text(path), "models")):
            return _graft(document, path, {}, {})
    return []


def _config(name: str, near: Path, files: Files) -> tuple[Path | None, bool]:
    """Return the file of a name, and whether it is the config.json of a folder."""
    inside = files.file(os.path.join(name, CONFIG), near)
    return inside or files.file(name, near), inside is not None


def _fill(document: Document, value: dict[str, Any], files: Files) -> list[str]:
    name, place = value.pop(FIELD), document.where((*MODEL, FIELD))
    if not isinstance(name, str) or not name:
        raise SpecError(f"{place}: model.{FIELD}: {shown(name)}: expected a file")
    if "preset" in value:
        raise SpecError(f"{place}: model.{FIELD}: given beside a preset; keep one")
    path, _ = _config(name, Path(place.file).parent, files)
    if path is None:
        raise SpecError(f"{place}: model.{FIELD}: {shown(name)}: {files.no_file}")
    places = {p: w for p, w in document.places.items() if p[:1] == MODEL}
    return _graft(document, path, value, places)


def _graft(
    document: Document,
    path: Path,
    overrides: dict[str, Any],
    places: dict[FieldPath, Where],
) -> list[str]:
    fields, notes = read_model(path)
    document.graft(MODEL, Document({**fields, **overrides}, {(): Where(str(path))}))
    for place, where in places.items():
        if len(place) > 1 and place[1] in overrides:
            document.places[place] = where
    return notes


def read_model(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of the model that a file describes, and notes.

    Raises:
        SpecError: the file cannot be read, or its architecture is not supported.
    """
    text, name = read_text(path), printable(str(path))
    kind = detect(text, "models") or kinds("models")[0]
    read = importer(kind).parse(text, name)
    return {"name": model_name(path), **read.fields}, [
        f"{path.name}: {note}" for note in read.notes
    ]


def model_name(path: Path) -> str:
    """Return the name of the model in a file: of its folder if that says more."""
    name = path.resolve().parent.name if path.name == CONFIG else path.stem
    return shortened(printable(name or "model"))
