"""How an exported script starts its program, without starting it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import meshwright as mw

CATCHER = """#!{python}
import json, os, sys
with open(os.environ["CAUGHT"], "w") as file:
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    json.dump({{"words": words, "environment": dict(os.environ)}}, file)
"""

CAUGHT_COMMANDS = ("torchrun", "accelerate", "python")


def written(exported: mw.Export, folder: Path) -> Path:
    """Write the files of an export into a new folder, and return the folder."""
    folder.mkdir()
    for file in exported.files:
        (folder / file.name).write_text(file.text)
    return folder


def caught(folder: Path, ranks: dict[str, str]) -> dict[str, Any]:
    """Return how the script of a folder starts its program, without starting it."""
    commands = folder / "caught-commands"
    commands.mkdir()
    for name in CAUGHT_COMMANDS:
        (commands / name).write_text(CATCHER.format(python=sys.executable))
        (commands / name).chmod(0o755)
    clean = {
        "NODE_RANK": "0",
        "MASTER_ADDR": "node0",
        "SLURMD_NODENAME": "node0",
        **ranks,
    }
    clean |= {"PROGRAM": "program.py", "PROMPTS": "prompts", "CHECKPOINT": "model"}
    clean |= {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CAUGHT": str(folder / "caught"),
    }
    subprocess.run(["bash", "launch.sh"], cwd=folder, env=clean, check=True)
    started = json.loads((folder / "caught").read_text())
    kept = {"PATH", "CAUGHT", "_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE"}
    found = {k: v for k, v in started["environment"].items() if k not in kept}
    return {"words": started["words"], "environment": found}
