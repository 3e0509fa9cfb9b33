"""DeepSpeed's configuration in JSON or Hjson, or a script that names one."""

from __future__ import annotations

import re

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.launch_command import command_settings, say_script
from meshwright.imports.options.deepspeed import say_defaults, say_plan
from meshwright.imports.options.megatron import DEGREES, say_recompute
from meshwright.imports.options.megatron_model import say_model
from meshwright.imports.settings.fields import fields
from meshwright.imports.settings.hjson import parse_hjson
from meshwright.imports.settings.setting import Settings, check_characters
from meshwright.imports.settings.shell import read_script

FILES = ("deepspeed_config", "deepspeed_config_file")
"""Options that name the configuration."""

CHECKPOINTS = ("checkpoint_activations", "deepspeed_activation_checkpointing")
"""Flags of Megatron-DeepSpeed that recompute every layer."""

_HJSON = re.compile(r"\A(?:\s|#[^\n]*\n|//[^\n]*\n|/\*[\s\S]{0,9999}?\*/){0,999}\{")


def parse(text: str, name: str) -> Launch:
    """Return what a configuration says, or a script that names one.

    Raises:
        SpecError: the text is neither, or a value is none that its key takes.
    """
    check_characters(text, name)
    launch = Launch("deepspeed", "DeepSpeed", "deepspeed", name)
    if _HJSON.match(text):
        settings = Settings(fields(parse_hjson(text, name)))
        say_plan(settings, launch)
    else:
        settings = _say_script(text, launch)
    launch.close(settings)
    return launch


def _say_script(text: str, launch: Launch) -> Settings:
    """Say what a script has; options of Megatron-DeepSpeed among them."""
    script = read_script(text, launch.name)
    settings = Settings(command_settings(script, (*FILES, "deepspeed")))
    say_script(script, text, settings, launch)
    settings.skip("deepspeed")
    say_defaults(launch)
    file = settings.get(*FILES)
    launch.files += [file] if file is not None and file.value else []
    for field, names in DEGREES.items():
        if field != "ep" and (found := settings.count(*names)):
            launch.say(field, *found)
    say_recompute(settings, launch, is_complete=False)
    if own := settings.is_on(*CHECKPOINTS):
        launch.say("recompute", "full", own)
    for field, option in (
        ("micro_batch", "micro_batch_size"),
        ("training.global_batch", "global_batch_size"),
        ("training.seq_len", "seq_length"),
        ("zero", "zero_stage"),
    ):
        if found := settings.count(option, least=0):
            launch.say(field, *found)
    say_model(settings, launch, is_complete=False)
    return settings


IMPORTER = LaunchImporter(
    sign=r"\A(?:[\s\S]{0,20000}--deepspeed(?:[ _]config)?\b"
    r"|(?=[\s\S]{0,4000}\{)(?=[\s\S]{0,20000}(?<![\w.])\"?(?:zero_optimization"
    r"|train_batch_size|train_micro_batch_size_per_gpu)\"?[ \t]{0,9}:))"
    r"(?![\s\S]{0,20000}distributed_type[ \t]{0,9}:)",
    parse=parse,
)
