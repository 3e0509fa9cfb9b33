"""Records what commands print: `python -m tests.recorded write|compare FILE`.

`compare FILE --every 5` runs one command in five; `--only explain` those that begin so.

MESHWRIGHT_SHARED names the folder with the real files that imports read; without it
those commands are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.helpers.command import run
from tests.recorded.commands import Command, commands
from tests.recorded.specs import ROOT, write_specs

SWEEPS = {
    "scaling.yaml": """\
base:
  model: llama3-8b
  cluster: {machine: dgx-h100, count: 1}
  framework: megatron
  training: {seq_len: 8192, global_batch: 512, precision: bf16}
  run: {tokens: 1.0e+12}
sweep:
  model: [llama3-8b, llama3-70b]
  cluster.machine: [dgx-a100, dgx-h100]
  cluster.count: {log2: [1, 8]}
group: model
front: [train_days, gpus]
""",
    "axes.yaml": """\
base: llama2-13b-8xa100
sweep:
  framework: [megatron, deepspeed, torchtitan]
  training.global_batch: [32, 64, 65]
  pins.tp: [1, 8]
where: training.global_batch != 64 or pins.tp == 1
""",
}
MEASURED = re.compile(r'"(solve_s|seconds|worker|peak_mib|wall_s|cpu_s)": [^,\n}]+')
"""What a clock says of a command, and is different each time."""
KEY = re.compile(r'"[0-9a-f]{64}"')
"""The key of a row of a search, which every change of the code changes."""

Printed = dict[str, object]


def _printed(command: Command) -> Printed:
    result = run(*command)
    printed: Printed = {"code": result.code, "stdout": result.stdout}
    printed["stderr"] = result.stderr
    if command[0] == "search" and Path("rows.json").exists():
        printed["rows"] = Path("rows.json").read_text()
        Path("rows.json").unlink()
    return {
        k: MEASURED.sub("", v) if isinstance(v, str) else v for k, v in printed.items()
    }


def _start(folder: Path) -> None:
    path = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(folder, path, dirs_exist_ok=True)
    os.chdir(path)
    Path("ranks").mkdir()


def _record(listed: list[Command], workers: int) -> dict[str, Printed]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "specs"
        folder.mkdir()
        write_specs(folder)
        for name, text in SWEEPS.items():
            (folder / name).write_text(text)
        shared = os.environ.get("MESHWRIGHT_SHARED")
        if shared:
            (folder / "samples").symlink_to(Path(shared).resolve() / "samples")
        runs = ROOT / "benchmarks" / "runs"
        shutil.copytree(runs, folder / "runs")
        recorded: dict[str, Printed] = {}
        with ProcessPoolExecutor(
            workers, initializer=_start, initargs=(folder,)
        ) as pool:
            for command, printed in zip(
                listed, pool.map(_printed, listed), strict=True
            ):
                recorded[" ".join(command)] = printed
                print(
                    f"{len(recorded)}/{len(listed)}", " ".join(command), file=sys.stderr
                )
        return recorded


def _without_keys(recorded: dict[str, Printed]) -> dict[str, Printed]:
    return {
        name: {k: KEY.sub('""', v) if isinstance(v, str) else v for k, v in one.items()}
        for name, one in recorded.items()
    }


def _compare(before: dict[str, Printed], after: dict[str, Printed]) -> int:
    before, after = _without_keys(before), _without_keys(after)
    differ = [name for name in before | after if before.get(name) != after.get(name)]
    for name in differ:
        print("differs:", name)
    print(f"{len(differ)} of {len(before | after)} commands differ")
    return int(bool(differ))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.recorded")
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Write what is printed now to a file, or compare it with what is written there."""
    asked = _asked()
    chosen = [
        command for command in commands() if " ".join(command).startswith(asked.only)
    ]
    chosen, file = chosen[:: asked.every], asked.file.resolve()
    recorded = _record(chosen, asked.workers)
    if asked.verb == "write":
        file.write_text(json.dumps(recorded, indent=1))
        return
    file.with_suffix(".now.json").write_text(json.dumps(recorded, indent=1))
    before = json.loads(file.read_text())
    every = len(chosen) == len(commands())
    known = before if every else {k: before[k] for k in recorded if k in before}
    sys.exit(_compare(known, recorded))


if __name__ == "__main__":
    main()
