"""Launch files of others, read as a person reads them.

`python -m benchmarks.launch_files --clones FOLDER`: the folder has clones of the
repositories of `launch_files.yaml`, by the last part of their names. Of each file it
is checked that what is read is what a person wrote down beside it; that the options
named unknown are those that are unknown; and that no option is dropped: each is taken
out of the file in turn, and either a value changes by that, or a note. What neither
does says what is so anyway, and stands beside the file as `as_by_default`.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import decide
from meshwright.imports.launches.settings import Setting, Settings
from meshwright.imports.read import read_launch
from meshwright.loading.plan_text import sizes_of

FACTS = Path(__file__).with_suffix(".yaml")


def main() -> None:
    """Read all files, and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clones", required=True, type=Path)
    options.add_argument("--only", default="", help="files whose path has this")
    given = options.parse_args()
    wrong = count = settings = 0
    for one in yaml.safe_load(FACTS.read_text()):
        if given.only not in one["path"]:
            continue
        problems, total = judged(one, given.clones)
        count, settings, wrong = count + 1, settings + total, wrong + bool(problems)
        told = "; ".join(problems) or f"as written down, {total} options"
        name = one["path"] + (f":{one['function']}" if "function" in one else "")
        print(f"{one['repository']} {name}: {told}")
    print(f"{count - wrong} of {count} files, {settings} options")
    raise SystemExit(1 if wrong else 0)


def judged(given: dict[str, Any], clones: Path) -> tuple[list[str], int]:
    """Return what is wrong with how a file is read, and the number of its options."""
    clone = clones / given["repository"].rpartition("/")[2]
    with tempfile.TemporaryDirectory() as name:
        for path in (given["path"], *given.get("beside", [])):
            shown = ["git", "-C", str(clone), "show", f"{given['commit']}:{path}"]
            text = subprocess.run(shown, check=True, capture_output=True).stdout
            (Path(name) / Path(path).name).write_bytes(text)
        file = str(Path(name) / Path(given["path"]).name)
        path = Path(f"{file}:{given['function']}" if "function" in given else file)
        if "refused" in given:
            return [*_not_refused(path, given["refused"])], 0
        with _recorded() as names:
            launch = read_launch(path)
        silent = [name for name in dict.fromkeys(names) if _is_silent(path, name)]
    problems = [*_differences(launch, given)]
    problems += _other("silent", silent, given.get("as_by_default", []))
    return problems, len({*names})


def _not_refused(path: Path, expected: str) -> Iterator[str]:
    try:
        launch = read_launch(path)
        decide(launch, sizes_of(launch))
    except SpecError as error:
        if expected not in str(error):
            yield f"refused with {error}"
    else:
        yield "is read, and contradicts itself"


def _differences(launch: Launch, given: dict[str, Any]) -> Iterator[str]:
    """Yield what is read otherwise than a person reads it."""
    pins = decide(launch, sizes_of(launch)).pins
    for field, expected in given["reads"].items():
        found = pins.get(field, launch.value(field))
        if found != expected:
            yield f"{field}: {found}, and a person reads {expected}"
    yield from _other("unknown", launch.unknown, given.get("unknown", []))
    told = " ".join(launch.notes())
    for text in given.get("told", []):
        if text not in told:
            yield f"no note has {text!r}"


def _other(what: str, found: Iterable[str], expected: Iterable[str]) -> Iterator[str]:
    more, less = sorted({*found} - {*expected}), sorted({*expected} - {*found})
    if more:
        yield f"{what} beside what is written down: {', '.join(more)}"
    if less:
        yield f"not {what}: {', '.join(less)}"


@contextmanager
def _recorded(without: str | None = None) -> Iterator[list[str]]:
    """Record the names of all settings that are read; leave one out."""
    names: list[str] = []
    start, end = Settings.__init__, Launch.close

    def init(self: Settings, settings: Iterable[Setting]) -> None:
        start(self, [setting for setting in settings if setting.name != without])

    def close(self: Launch, settings: Settings) -> None:
        names.extend(settings.starting_with([""]))
        end(self, settings)

    Settings.__init__, Launch.close = init, close  # type: ignore[method-assign]
    try:
        yield names
    finally:
        Settings.__init__, Launch.close = start, end  # type: ignore[method-assign]


def _is_silent(path: Path, name: str) -> bool:
    """Return whether a launch is the same without a setting."""
    whole = _told(read_launch(path))
    try:
        with _recorded(name):
            return _told(read_launch(path)) == whole
    except SpecError:
        return False


def _told(launch: Launch) -> tuple[Any, ...]:
    values = {name: found.value for name, found in launch.values.items()}
    notes = [*launch.notes(is_whole=True)]
    return launch.framework, values, notes, decide(launch, sizes_of(launch)).pins


if __name__ == "__main__":
    main()
