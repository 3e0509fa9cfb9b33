"""Slurm's network: topology.conf (tree, block, ring) and topology.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.imports.importer import FabricImporter
from meshwright.imports.slurm.groups import Group, SlurmTopology
from meshwright.imports.slurm.hostlist import HostLists
from meshwright.imports.slurm.levels import to_levels
from meshwright.imports.slurm.topology_yaml import parse_topologies
from meshwright.imports.text import Line, fail, known, read_lines, shown, whole

KEYS = {
    "switchname": "tree",
    "blockname": "block",
    "blocksizes": "block",
    "ringname": "ring",
}
"""By the first key of a line, the topology plugin that it belongs to."""

_PAIR = re.compile(r"([A-Za-z_]{1,40})=(\S{1,200000})")


def parse(text: str, name: str) -> SlurmTopology:
    """Return the content of topology.conf or topology.yaml.

    Raises:
        SpecError: no switch, block or ring, or a line that is not understood.
    """
    lines = _joined(read_lines(text, name))
    if any(re.match(r"\s{0,40}-\s{1,40}topology\s{0,9}:", line.text) for line in lines):
        return parse_topologies(text, name)
    return _parse_conf(lines, name)


def _joined(lines: list[Line]) -> list[Line]:
    """Return lines without comments, those that end in a backslash made one."""
    joined: list[tuple[int, list[str]]] = []
    is_open = False
    for line in lines:
        text = line.text.split("#", 1)[0].rstrip()
        if is_open:
            joined[-1][1].append(text.lstrip())
        elif text:
            joined.append((line.number, [text]))
        is_open = text.endswith("\\")
    return [Line(number, _without_ends(texts)) for number, texts in joined]


def _without_ends(texts: list[str]) -> str:
    """Return lines as one, without the backslash at the end of all but the last."""
    return "".join([*(text[:-1] for text in texts[:-1]), texts[-1]])


def _parse_conf(lines: list[Line], name: str) -> SlurmTopology:
    groups: dict[str, Group] = {}
    sizes: tuple[int, ...] = ()
    kinds: dict[str, int] = {}
    notes: list[str] = []
    hosts = HostLists(name)
    for line in lines:
        fields = _fields(line, name)
        first = next(iter(fields))
        if first not in KEYS:
            fail(name, line.number, f"{shown(first)}: unknown; {known(KEYS)}")
        kinds.setdefault(KEYS[first], line.number)
        if first == "blocksizes":
            sizes = _sizes(fields[first], line, name)
            continue
        group = _group(fields[first], fields, line, name, hosts)
        if group.name in groups:
            fail(name, line.number, f"{shown(group.name)} stands twice")
        groups[group.name] = group
        notes += _ignored(fields, line, name)
    if not groups:
        fail(name, 0, f"no switch, block or ring; {known(KEYS)}")
    if len(kinds) > 1:
        fail(name, max(kinds.values()), f"{' and '.join(kinds)} in one file")
    return SlurmTopology(name, next(iter(kinds)), groups, sizes, tuple(notes))


def _fields(line: Line, name: str) -> dict[str, str]:
    fields = {key.lower(): value for key, value in _PAIR.findall(line.text)}
    if not fields or len(line.text.split()) != len(_PAIR.findall(line.text)):
        sentence = f"{shown(line.text.strip())}: expected KEY=VALUE pairs"
        fail(name, line.number, f"{sentence}, the first one of {', '.join(KEYS)}")
    return fields


def _group(
    group: str, fields: Mapping[str, str], line: Line, name: str, hosts: HostLists
) -> Group:
    nodes = hosts.expand(fields.get("nodes", ""), line.number)
    switches = hosts.expand(fields.get("switches", ""), line.number)
    if not nodes and not switches and "blockname" not in fields:
        fail(name, line.number, f"{shown(group)} has no Nodes= and no Switches=")
    return Group(group, nodes, switches, line.number)


def _sizes(text: str, line: Line, name: str) -> tuple[int, ...]:
    sizes = [whole(word, 10**7) for word in text.split(",")]
    if not all(sizes):
        sentence = f"BlockSizes={shown(text)}: expected numbers of nodes, as in 8,16"
        fail(name, line.number, sentence)
    return tuple(size for size in sizes if size)


def _ignored(fields: Mapping[str, str], line: Line, name: str) -> list[str]:
    """Return a note for what is not used; LinkSpeed has no meaning to Slurm either."""
    strange = [key for key in fields if key not in (*KEYS, "nodes", "switches")]
    return [f"{name}:{line.number}: {key}= is left out." for key in strange[:1]]


IMPORTER = FabricImporter(
    sign=r"(?im)^\s{0,9}(?:Switch|Block|Ring)Name=|^\s{0,9}- topology:",
    parse=parse,
    to_levels=to_levels,
)
