"""Finds the command of a script that starts training; its words are settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    canonical,
)
from meshwright.imports.launches.shell import Argument, Script, read_script
from meshwright.imports.launches.shell_values import unmarked
from meshwright.imports.text import fail, whole
from meshwright.reading.document import Where

_LAUNCHERS = OPTIONS["launchers"]
NODES, RANKS, ALL = (_LAUNCHERS[name] for name in ("nodes", "ranks", "all"))
"""Options of launchers that hold hosts, ranks of a host, and ranks of all hosts."""

LAUNCHER = (*NODES, *RANKS, *ALL, *_LAUNCHERS["one_word"])
"""Options of launchers, each of which takes one word; the program stands behind."""

SINGLE = (*LAUNCHER, *_LAUNCHERS["one_of_plan"])
"""The same, with those of `accelerate launch` that decide a plan."""

FLAGS = (*_LAUNCHERS["no_word"],)
"""Options of launchers that take no word."""

_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(.*)", re.ASCII | re.S)


def options(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, `--name value ...` or `--name=value`.

    An option has all the words up to the next one as its value; one of a launcher has
    one word at most.
    """
    found: Argument | None = None
    values: list[str] = []
    for word in [*words, Argument("--end", 0)]:
        text, equals, value = word.text.partition("=")
        if not _OPTION.fullmatch(text):
            values += [word.text]
            continue
        if found is not None:
            short = canonical(found.text)
            most = 0 if short in FLAGS else 1 if short in SINGLE else len(values)
            yield option(found, values[:most], name)
        found, values = Argument(text, word.line), [value] if equals else []


def option(word: Argument, values: list[str], name: str) -> Setting:
    """Return an option with its values: none, one, or a list."""
    shown = [unmarked(value) for value in values]
    unset = tuple(dict.fromkeys(variable for _, names in shown for variable in names))
    texts = [text for text, _ in shown]
    value: Any = None if not texts else texts[0] if len(texts) == 1 else texts
    where = Where(name, word.line)
    return Setting(canonical(word.text), value, where, word.text, unset)


def assignments(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the words `a.b.c=value` of a command, as Hydra takes them."""
    for word in words:
        if found := _DOTTED.fullmatch(word.text):
            value, unset = unmarked(found[2])
            where = Where(name, word.line)
            yield Setting(canonical(found[1]), value, where, found[1], unset)


def read_gpus(settings: Settings, launch: Launch) -> None:
    """Read the number of GPUs from the options of a launcher."""
    settings.skip(*LAUNCHER, *FLAGS)
    launch.put("gpus", _count(settings, ALL))
    nodes, ranks = _count(settings, NODES), _count(settings, RANKS)
    if ranks is None:
        return
    if nodes is None and any(name in settings for name in NODES):
        return
    count, setting = nodes or (1, ranks[1])
    launch.set("gpus", count * ranks[0], setting if ranks[0] == 1 else ranks[1])


def read_batch_job(script: Script, launch: Launch) -> None:
    """Read the number of GPUs from the `#SBATCH` lines of a script."""
    if "gpus" in launch.values:
        return
    asked = Settings(
        Setting(canonical(name), value, Where(script.name, line), f"#SBATCH {name}")
        for name, (value, line) in script.asked.items()
    )
    nodes = asked.get("nodes", "N")
    ranks = asked.get("gpus_per_node", "gres", "ntasks_per_node")
    if nodes is None or ranks is None:
        return
    counts = [
        whole(str(setting.value).rpartition(":")[2], 10**7)
        for setting in (nodes, ranks)
    ]
    if counts[0] and counts[1]:
        launch.set("gpus", counts[0] * counts[1], ranks)


def _count(settings: Settings, names: Iterable[str]) -> tuple[int, Setting] | None:
    """Return a number of hosts or ranks; None for `gpu`, `auto`, `1:4` and the like."""
    setting = settings.get(*names)
    number = None if setting is None else whole(str(setting.value), 10**7)
    return (number, setting) if setting is not None and number else None


_BARE = re.compile(r"--?[A-Za-z]")

_PRINTS = ("echo", "printf")
"""Commands that only print."""

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
    wanted, found = set(marks), []
    for started in (script.runs[script.spare :], script.runs[: script.spare]):
        runs = [words for words in started if words[0].text not in _PRINTS]
        bare = [word for words in runs if _BARE.match(words[0].text) for word in words]
        lists = [words for words in runs if not _BARE.match(words[0].text)]
        for words in [*lists, bare]:
            settings = [*read(words, script.name)]
            if any(setting.name in wanted for setting in settings):
                found.append(settings)
        if found:
            break
    if not found:
        kept = [*read(_kept(script), script.name)]
        found += [kept] if any(setting.name in wanted for setting in kept) else []
    if not found:
        names = ", ".join(sorted(wanted))
        told = f"no command has one of the options {names}"
        if is_job_in_yaml(script):
            told += (
                "; this describes a job in YAML: expected the command that it starts, "
                "as a script"
            )
        if script.undecided:
            told += "; only a run decides this condition, and what is behind it"
        fail(script.name, min(script.undecided, default=0), told)
    _check_same(found, wanted)
    return found[-1]


def is_job_in_yaml(script: Script) -> bool:
    """Return whether a script is YAML with a command in it, as Beaker and others take.

    Its first words are keys, `tasks:`, where those of a script are programs.
    """
    return any(re.fullmatch(r"[A-Za-z]\w*:", words[0].text) for words in script.runs)


_HAS_OPTIONS = re.compile(r"(?:\A|\s)--[A-Za-z]")


def _kept(script: Script) -> list[Argument]:
    """Return the options in the variables of a script that others start."""
    return [
        Argument(word, value.line)
        for values in script.variables.values()
        if any(_HAS_OPTIONS.search(value.text) for value in values)
        for value in values
        for word in value.text.split()
    ]


def _check_same(found: list[list[Setting]], wanted: set[str]) -> None:
    """Refuse commands that start different jobs."""
    first = {setting.name: setting for setting in found[0] if setting.name in wanted}
    for settings in found[1:]:
        for setting in settings:
            before = first.get(setting.name)
            if before is not None and before.value != setting.value:
                told = f"contradicts {before} ({before.where}) of another command"
                setting.refuse(f"{told}; expected a file that starts one job")


def read_command(
    text: str, launch: Launch, marks: Iterable[str], read: Reader = options
) -> Settings:
    """Return the settings of the command of a script, whose launcher is read.

    The number of GPUs, the files that the script writes, and its undecided conditions
    go into the launch.
    """
    script = read_script(text, launch.name)
    settings = Settings(command_settings(script, marks, read))
    read_gpus(settings, launch)
    read_batch_job(script, launch)
    for setting in variables(script, *_LAUNCHERS["allocator"])[:1]:
        expands = "expandable_segments:true" in str(setting.value).lower()
        launch.set("training.expandable_segments", expands, setting)
    for file, (body, line) in script.files.items():
        launch.written[file] = "\n" * (line - 1) + body
    for line in script.undecided:
        launch.unset.append(
            f"{script.name}:{line}: only a run decides this condition: the options "
            "behind it are left out"
        )
    return settings


def read_ranks(text: str, launch: Launch) -> None:
    """Read the number of GPUs from variables, by which some programs start ranks."""
    script = read_script(text, launch.name)
    read_gpus(Settings(variables(script, *_LAUNCHERS["variables"])), launch)


def variables(script: Script, *names: str) -> list[Setting]:
    """Return the variables of some names that a script sets, as settings."""
    return [
        option(
            Argument(name, script.variables[name][0].line), [value.text], script.name
        )
        for name in names
        for value in script.variables.get(name, [])[:1]
    ]
