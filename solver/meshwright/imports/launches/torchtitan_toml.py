"""torchtitan's TOML, up to 0.2.2."""

from __future__ import annotations

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.options.torchtitan import say_plan
from meshwright.imports.settings.fields import fields
from meshwright.imports.settings.setting import Settings, check_characters
from meshwright.imports.settings.toml import parse_toml


def parse(text: str, name: str) -> Launch:
    """Return what a file says.

    Raises:
        SpecError: the text is no TOML, or a value is none that its field takes.
    """
    check_characters(text, name)
    launch = Launch("torchtitan_toml", "torchtitan", "torchtitan", name)
    settings = Settings(fields(parse_toml(text, name)))
    say_plan(settings, launch, is_complete=True)
    launch.close(settings)
    return launch


IMPORTER = LaunchImporter(
    sign=r"(?m)^\[(?:parallelism|activation_checkpoint|training|job)\][ \t]*(?:#.*)?$",
    parse=parse,
)
