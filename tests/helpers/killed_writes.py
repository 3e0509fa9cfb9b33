"""Kills commands that write: `killed_writes.py FOLDER TIMES SEED`.

A process that has imported everything runs each command once and keeps what it writes.
Then it forks one life after another: every other is killed after a random time, and
the rest in the midst of a file, where the system's limit on the size of files ends
them. After each, every file is what stood there before, or what the command writes.
Prints a line for each life: how it was killed, and how many files were new.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from tests.helpers.command import run

SPEC = "gpt2-xl-2xh100-nvlink"

COMMANDS = (
    ("solve", SPEC, "-o", "answer.txt", "--format", "json"),
    ("solve", SPEC, "--report", "page.html", "--trace", "step.json"),
    ("solve", SPEC, "--certificate", "certificate.json.gz"),
    ("export", SPEC, "-o", "exported"),
    ("schema", "--all", "schemas"),
    ("calibrate", "--template", "-o", "runs.yaml"),
)

OLD = b"what stood here before\n"

Files = dict[str, bytes]


def files(folder: Path) -> Files:
    """Return the files of a folder but those that are not finished."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if path.suffix != ".part"
    }


def live(words: tuple[str, ...], longest_s: float, rng: random.Random) -> str:
    """Run a command in a process that is killed, and say how."""
    is_timed = rng.random() < 0.5
    most, wait_s = int(10 ** rng.uniform(0, 5)), rng.uniform(0, longest_s / 2)
    child = os.fork()
    if child == 0:
        if not is_timed:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        os._exit(run(*words).code)
    if is_timed:
        time.sleep(wait_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return "ended"
    return signal.Signals(os.WTERMSIG(status)).name


def main(folder: Path, times: int, seed: int) -> None:
    rng, wholes, took_s = random.Random(seed), list[Files](), list[float]()
    for index, words in enumerate(COMMANDS):
        result = folder / str(index)
        result.mkdir()
        os.chdir(result)
        start_s = time.monotonic()
        assert run(*words).code == 0, words
        took_s.append(time.monotonic() - start_s)
        wholes.append(files(result))
    for _ in range(times):
        index = rng.randrange(len(COMMANDS))
        result = folder / str(index)
        os.chdir(result)
        before = rng.choice([{}, dict.fromkeys(wholes[index], OLD)])
        for name in wholes[index]:
            (result / name).unlink(missing_ok=True)
        for name, data in before.items():
            (result / name).write_bytes(data)
        how = live(COMMANDS[index], took_s[index], rng)
        found, new = files(result), 0
        for name, data in found.items():
            is_new = data == wholes[index].get(name)
            assert is_new or data == before.get(name), f"{name} is half written"
            new += is_new
        assert {*before} <= {*found}, f"{ {*before} - {*found} } are lost"
        print(how, new)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
