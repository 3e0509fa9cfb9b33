"""Arguments of Megatron-LM: alone, or in a script that starts `pretrain_gpt.py`."""

from __future__ import annotations

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.launch_command import command_settings, say_script
from meshwright.imports.options.megatron import say_plan
from meshwright.imports.options.megatron_model import say_model
from meshwright.imports.options.megatron_state import say_precision, say_small_state
from meshwright.imports.settings.setting import Settings, check_characters
from meshwright.imports.settings.shell import read_script

MARKS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size",
    "num_attention_heads",
)  # fmt: skip
"""Options by which a command is told from others."""


def parse(text: str, name: str) -> Launch:
    """Return what the arguments say.

    Raises:
        SpecError: no command has such arguments, several differ, or a value is none
            that its option takes; with file and line.
    """
    check_characters(text, name)
    script = read_script(text, name)
    launch = Launch("megatron", "Megatron-LM", "megatron", name)
    settings = Settings(command_settings(script, MARKS))
    say_script(script, text, settings, launch)
    say_arguments(settings, launch)
    launch.close(settings)
    return launch


def say_arguments(settings: Settings, launch: Launch) -> None:
    """Say all of the arguments of `pretrain_gpt.py`."""
    say_plan(settings, launch, is_complete=True)
    say_precision(settings, launch, is_complete=True)
    say_small_state(settings, launch)
    say_model(settings, launch, is_complete=True)


IMPORTER = LaunchImporter(
    sign=r"(?m)\A(?![\s\S]{0,20000}(?:--deepspeed\b|^MODEL_ARGS:))"
    r"(?=[\s\S]{0,20000}--(?:tensor-model-parallel-size|pipeline-model-parallel-size"
    r"|micro-batch-size|num-attention-heads)\b)",
    parse=parse,
)
