"""config.json of a Hugging Face model."""

from __future__ import annotations

from meshwright.imports.hf.read import MOST_CHARACTERS, parse
from meshwright.imports.registry import ModelImporter

IMPORTERS = {
    "hf": ModelImporter(
        sign=r"\A\s*\{[\s\S]*\"(model_type|architectures)\"\s*:",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
