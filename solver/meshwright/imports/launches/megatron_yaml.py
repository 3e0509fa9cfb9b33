"""Arguments of Megatron-LM in YAML: `--yaml-cfg`, or `MODEL_ARGS` of a test case."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.launches.megatron import say_arguments
from meshwright.imports.settings.fields import fields
from meshwright.imports.settings.setting import (
    Setting,
    Settings,
    canonical,
    check_characters,
)
from meshwright.reading.document import Document
from meshwright.reading.yaml_text import parse_yaml

SECTIONS = ("language_model", "model_parallel")
"""Sections of `--yaml-cfg`; other options stand beside them."""

ARGUMENTS = "MODEL_ARGS"


def parse(text: str, name: str) -> Launch:
    """Return what the arguments say.

    Raises:
        SpecError: the text is no YAML, or a value is none that its option takes.
    """
    check_characters(text, name)
    document = parse_yaml(text, name)
    launch = Launch("megatron_yaml", "Megatron-LM", "megatron", name)
    settings = Settings(_settings(document))
    say_arguments(settings, launch)
    launch.close(settings)
    return launch


def _settings(document: Document) -> Iterator[Setting]:
    for own in fields(document):
        section, _, name = own.written.partition(".")
        if section == ARGUMENTS:
            value = None if own.value is True else own.value
            if own.value is not False:
                yield Setting(canonical(name), value, own.where, name)
        elif section in SECTIONS or not name:
            short = name or section
            if own.value is not None:
                yield Setting(canonical(short), own.value, own.where, own.written)


IMPORTER = LaunchImporter(
    sign=r"(?m)^(?:MODEL_ARGS|language_model|model_parallel)[ \t]{0,9}:[ \t]*$",
    parse=parse,
)
