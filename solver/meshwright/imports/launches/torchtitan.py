"""torchtitan's arguments from 0.3.0 on: in a script, or a configuration in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshwright.imports.importer import LaunchImporter
from meshwright.imports.launch import Launch
from meshwright.imports.launch_command import command_settings, say_script
from meshwright.imports.options.torchtitan import say_plan
from meshwright.imports.settings.arguments import option, options
from meshwright.imports.settings.python_source import python_settings
from meshwright.imports.settings.setting import Setting, Settings, check_characters
from meshwright.imports.settings.shell import read_script
from meshwright.imports.settings.shell_script import Argument
from meshwright.reading.document import Where

_PYTHON = re.compile(r"^(?:from|import)[ \t]+torchtitan\b", re.M)
_FILE = re.compile(r"[\w./-]{1,200}\.(?:toml|py)", re.ASCII)
_POLICY = re.compile(r"activation[-_]checkpoint:([a-z_-]{1,40})")

_VARIABLES = ("CONFIG_FILE", "NGPU")
"""Variables that torchtitan's own `run_train.sh` reads."""


def parse(text: str, name: str) -> Launch:
    """Return what a script or a configuration says.

    Raises:
        SpecError: the text is neither, or a value is none that its field takes.
    """
    check_characters(text, name)
    launch = Launch("torchtitan", "torchtitan", "torchtitan", name)
    if _PYTHON.search(text):
        settings = Settings(python_settings(text, name))
        say_plan(settings, launch, is_complete=True)
        launch.close(settings)
        return launch
    script = read_script(text, name)
    marks = ("module", "job.config_file", "parallelism.tensor_parallel_degree",
             "parallelism.data_parallel_shard_degree", "training.local_batch_size",
             "parallelism.pipeline_parallel_degree")  # fmt: skip
    settings = Settings(command_settings(script, marks, _words))
    say_script(script, text, settings, launch)
    say_plan(settings, launch, is_complete=False)
    _name_files(settings, launch)
    launch.close(settings)
    return launch


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, and the policy of its last word."""
    plain = []
    for word in words:
        if found := _POLICY.fullmatch(word.text):
            at = Where(name, word.line)
            kind = found[1].replace("_", "-")
            yield Setting("activation_checkpoint.mode", kind, at, word.text[:21])
        else:
            plain.append(word)
    yield from options(plain, name)


def _name_files(settings: Settings, launch: Launch) -> None:
    """Name the files that have the rest: TOML, or a module beside the script."""
    file = settings.get("job.config_file")
    if file is not None and _FILE.fullmatch(str(file.value)):
        launch.files.append(file)
    module = settings.get("module")
    if module is not None and re.fullmatch(r"\w{1,100}", str(module.value), re.ASCII):
        path = Argument(module.written, module.where.line)
        launch.files.append(option(path, [f"{module.value}.py"], launch.name))


IMPORTER = LaunchImporter(
    sign=r"(?m)\btorchtitan[./]train\b|--parallelism\.\w|"
    r"^(?:from|import)[ \t]{1,9}torchtitan\b",
    parse=parse,
)
