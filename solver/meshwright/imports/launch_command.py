"""Finds the command of a script that starts training, and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from meshwright.imports.launch import Launch
from meshwright.imports.options.launchers import say_batch_job, say_gpus
from meshwright.imports.settings.arguments import options
from meshwright.imports.settings.setting import Setting, Settings
from meshwright.imports.settings.shell_script import Argument, Script
from meshwright.imports.text import fail

_BARE = re.compile(r"--?[A-Za-z]")

_PRINTS = ("echo", "printf")
"""Commands that only say what is run."""

Reader = Callable[[Sequence[Argument], str], Iterable[Setting]]
"""Returns the settings in the words of a command."""


def command_settings(
    script: Script, marks: Iterable[str], read: Reader = options
) -> list[Setting]:
    """Return the settings of the command that has options by some names.

    A file without a command is a list of arguments, over several lines or one, or
    sets variables to them that another script uses.

    Raises:
        SpecError: no command has them, or several that differ do.
    """
    wanted = set(marks)
    runs = [run.words for run in script.runs if run.words[0].text not in _PRINTS]
    bare = [word for words in runs if _BARE.match(words[0].text) for word in words]
    lists = [words for words in runs if not _BARE.match(words[0].text)]
    found: list[list[Setting]] = []
    for words in [*lists, bare]:
        settings = [*read(words, script.name)]
        if any(own.name in wanted for own in settings):
            found.append(settings)
    if not found:
        kept = [*read(_kept(script), script.name)]
        found += [kept] if any(own.name in wanted for own in kept) else []
    if not found:
        names = ", ".join(sorted(wanted))
        fail(script.name, 0, f"no command has one of the options {names}")
    _check_same(found, wanted)
    return found[-1]


def _kept(script: Script) -> list[Argument]:
    """Return the options in the variables of a script that others start."""
    return [
        Argument(word, own.line)
        for values in script.variables.values()
        if any(own.text.lstrip().startswith("--") for own in values)
        for own in values
        for word in own.text.split()
    ]


def _check_same(found: list[list[Setting]], wanted: set[str]) -> None:
    """Refuse commands that start different jobs.

    Raises:
        SpecError: names the second of them.
    """
    first = {own.name: own for own in found[0] if own.name in wanted}
    for settings in found[1:]:
        for own in settings:
            before = first.get(own.name)
            if before is not None and before.value != own.value:
                told = f"contradicts {before} ({before.where}) of another command"
                own.refuse(f"{told}; expected a file that starts one job")


def say_script(script: Script, text: str, settings: Settings, launch: Launch) -> None:
    """Say what a script has beside the options of the program: GPUs, and conditions."""
    say_gpus(settings, launch)
    say_batch_job(text, launch)
    for line in script.undecided:
        launch.unset.append(
            f"{script.name}:{line}: only a run decides this condition: the options "
            "behind it are left out"
        )


def variables(script: Script, *names: str) -> list[Setting]:
    """Return the variables of some names that a script sets, as settings."""
    from meshwright.imports.settings.arguments import option

    return [
        option(Argument(name, script.variables[name][0].line), [own.text], script.name)
        for name in names
        for own in script.variables.get(name, [])[:1]
    ]
