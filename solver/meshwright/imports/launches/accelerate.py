"""Accelerate's configuration in YAML, or a script that runs `accelerate launch`."""

from __future__ import annotations

import re

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.launch_command import command_settings, say_script, variables
from meshwright.imports.options import accelerate, deepspeed
from meshwright.imports.settings.fields import fields
from meshwright.imports.settings.setting import Setting, Settings, check_characters
from meshwright.imports.settings.shell import read_script
from meshwright.reading.yaml_text import parse_yaml

_YAML = re.compile(r"^(?:distributed_type|compute_environment)[ \t]*:", re.M)

CONFIG = "config_file"
FILE = "deepspeed_config.deepspeed_config_file"


def parse(text: str, name: str) -> Launch:
    """Return what a configuration says, or a script that names one.

    Raises:
        SpecError: the text is neither, or a value is none that its key takes.
    """
    check_characters(text, name)
    if not _YAML.search(text):
        return _of_script(text, name)
    document = parse_yaml(text, name)
    given = Settings(fields(document))
    kind = accelerate.kind_of(given)
    if kind == "deepspeed":
        return _of_deepspeed([*fields(document)], name)
    launch = Launch("accelerate", "Accelerate", "fsdp", name)
    accelerate.say_plan(given, launch, kind)
    launch.close(given)
    return launch


def _of_deepspeed(settings: list[Setting], name: str) -> Launch:
    """Return what a configuration with DeepSpeed in it says."""
    names = accelerate.DEEPSPEED
    renamed = [
        Setting(names.get(own.name, own.name), own.value, own.where, own.written)
        for own in settings
    ]
    given = Settings(renamed)
    launch = Launch("accelerate", "Accelerate with DeepSpeed", "deepspeed", name)
    given.skip("distributed_type", *accelerate.AS_COUNTED)
    accelerate.say_job(given, launch)
    file = given.get(FILE)
    if file is not None and file.value:
        launch.files.append(file)
    else:
        deepspeed.say_plan(given, launch)
    launch.close(given)
    return launch


def _of_script(text: str, name: str) -> Launch:
    script = read_script(text, name)
    settings = Settings(
        [*command_settings(script, (CONFIG,)), *variables(script, accelerate.STEPS)]
    )
    launch = Launch("accelerate", "Accelerate", "", name)
    say_script(script, text, settings, launch)
    accelerate.say_job(settings, launch)
    file = settings.get(CONFIG)
    launch.files += [file] if file is not None and file.value else []
    launch.close(settings)
    return launch


IMPORTER = LaunchImporter(
    sign=r"(?m)^distributed_type[ \t]{0,9}:|\baccelerate[ ]{1,9}launch\b",
    parse=parse,
)
