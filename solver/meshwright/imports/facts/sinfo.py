"""`sinfo` of Slurm: partitions, nodes and their GPUs, with any format that names them.

Columns are found by the heading: NODELIST (or HOSTNAMES), NODES, GRES, STATE,
PARTITION, MEMORY. A node of several partitions counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.imports.facts.scontrol import gpus_of_gres
from meshwright.imports.importer import FactsImporter
from meshwright.imports.slurm.hostlist import HostLists
from meshwright.imports.text import Line, fail, read_lines, shown


@dataclass(frozen=True)
class SlurmInfo:
    """The nodes, each with its GPUs, in the order of their first line."""

    name: str
    gpus: Mapping[str, Mapping[str, int]]
    """By node, GPUs by type; none where the format has no GRES."""
    states: Mapping[str, int]
    """Nodes by state."""
    partitions: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.gpus)

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each type all nodes have."""
        total: Counter[str] = Counter()
        for gpus in self.gpus.values():
            total.update(gpus)
        return dict(total)


def parse(text: str, name: str) -> SlurmInfo:
    """Return the nodes that sinfo lists.

    Raises:
        SpecError: no heading with NODELIST, or a column that is not understood.
    """
    titles: list[str] = []
    hosts = HostLists(name)
    gpus: dict[str, dict[str, int]] = {}
    states: dict[str, str] = {}
    partitions: dict[str, None] = {}
    for line in read_lines(text, name):
        words = line.text[:200_000].replace("|", " ").split()
        if not words:
            continue
        if any(title in words for title in ("NODELIST", "HOSTNAMES")):
            titles = words
        elif titles:
            row = _row(titles, words, line, name)
            listed = hosts.expand(row[_list_title(titles)], line.number)
            found = gpus_of_gres(row.get("GRES", ""), line, name)
            partitions[row.get("PARTITION", "").rstrip("*")] = None
            for host in listed:
                states[host] = row.get("STATE", "").rstrip("*~#$@^!%-+")
                known = gpus.setdefault(host, found)
                if sum(found.values()) > sum(known.values()):
                    gpus[host] = found
    if not gpus:
        fail(name, 0, "no node below a heading with NODELIST; expected that of sinfo")
    counts = dict(Counter(state for state in states.values() if state))
    return SlurmInfo(name, gpus, counts, tuple(p for p in partitions if p))


def _list_title(titles: list[str]) -> str:
    return "NODELIST" if "NODELIST" in titles else "HOSTNAMES"


def _row(titles: list[str], words: list[str], line: Line, name: str) -> dict[str, str]:
    """Return the fields of a row by title.

    Raises:
        SpecError: it has not one word for each title.
    """
    if titles[-1] == "REASON":  # the one column that has blanks
        words = [*words[: len(titles) - 1], " ".join(words[len(titles) - 1 :])]
    if len(words) != len(titles):
        sentence = f"{shown(line.text.strip())}: {len(words)} columns; the heading has"
        fail(name, line.number, f"{sentence} {len(titles)}")
    return dict(zip(titles, words, strict=True))


IMPORTER = FactsImporter(
    sign=r"(?m)^\s{0,9}(?:PARTITION|NODELIST|HOSTNAMES)\b.{0,200}\b(?:NODELIST|STATE|GRES)\b",
    parse=parse,
)
