"""How many GPUs a launcher starts: torchrun, srun, deepspeed, accelerate, sbatch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from meshwright.imports.launch import Launch
from meshwright.imports.settings.arguments import ALL, FLAGS, LAUNCHER, NODES, RANKS
from meshwright.imports.settings.setting import Setting, Settings
from meshwright.imports.text import whole
from meshwright.reading.document import Where

_SBATCH = re.compile(r"^#SBATCH[ \t]+(--?[\w-]+)(?:[= \t]+(\S{1,80}))?", re.M)


def say_gpus(settings: Settings, launch: Launch) -> None:
    """Say how many GPUs the options of a launcher start, where they do."""
    settings.skip(*LAUNCHER, *FLAGS)
    if total := _count(settings, ALL):
        launch.say("gpus", *total)
    nodes, ranks = _count(settings, NODES), _count(settings, RANKS)
    if ranks is None:
        return
    if nodes is None and any(name in settings for name in NODES):
        return
    count, own = nodes or (1, ranks[1])
    launch.say("gpus", count * ranks[0], own if ranks[0] == 1 else ranks[1])


def say_batch_job(text: str, launch: Launch) -> None:
    """Say how many GPUs the `#SBATCH` lines of a script ask for, where they do."""
    if "gpus" in launch.said:
        return
    asked = {own.name: own for own in _asked(text, launch.name)}
    nodes = next((asked[name] for name in ("nodes", "N") if name in asked), None)
    names = ("gpus_per_node", "gres", "ntasks_per_node")
    ranks = next((asked[name] for name in names if name in asked), None)
    if nodes is None or ranks is None:
        return
    counts = [whole(str(own.value).rpartition(":")[2], 10**7) for own in (nodes, ranks)]
    if counts[0] and counts[1]:
        launch.say("gpus", counts[0] * counts[1], ranks)


def _asked(text: str, name: str) -> Iterator[Setting]:
    for found in _SBATCH.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        canonical = found[1].lstrip("-").replace("-", "_")
        yield Setting(canonical, found[2], Where(name, line), f"#SBATCH {found[1]}")


def _count(settings: Settings, names: Iterable[str]) -> tuple[int, Setting] | None:
    """Return a number of hosts or ranks; None for `gpu`, `auto`, `1:4` and the like."""
    own = settings.get(*names)
    number = None if own is None else whole(str(own.value), 10**7)
    return (number, own) if own is not None and number else None
