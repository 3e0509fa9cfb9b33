"""Slurm's network: topology.conf (tree, block, ring) and topology.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from meshwright.imports.hostfile import HostLists
from meshwright.imports.machines.facts import Pair, components
from meshwright.imports.registry import FabricImporter, Imported, unique
from meshwright.imports.switch_levels import (
    LATENCY_US,
    TIERS,
    Tree,
    level_above,
    note_trees,
    note_unequal,
    regular_sizes,
    trees_of,
)
from meshwright.imports.switch_levels import Group as SwitchGroup
from meshwright.imports.text import Line, fail, known, read_lines, shown, whole
from meshwright.reading.document import Document, FieldPath
from meshwright.reading.yaml_and_csv import parse_yaml

KINDS = ("tree", "block", "ring", "torus3d")
"""Plugins whose files describe how nodes are joined."""


@dataclass(frozen=True)
class Group:
    """A switch, block or ring: nodes, or switches below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ()
    line: int = 0
    dims: tuple[int, ...] = ()
    """Of a torus: nodes along x, y and z."""


@dataclass(frozen=True)
class SlurmTopology:
    """The switches of a tree, or the blocks, or the rings."""

    name: str
    kind: str
    groups: Mapping[str, Group]
    block_sizes: tuple[int, ...] = ()
    """Nodes in a block and in each aggregate of blocks."""
    notes: tuple[str, ...] = ()


def parse(text: str, name: str) -> SlurmTopology:
    """Return the content of topology.conf or topology.yaml.

    Raises:
        SpecError: no switch, block or ring, or a line that is not understood.
    """
    lines = _joined(read_lines(text, name))
    if any(re.match(r"\s{0,40}-\s{1,40}topology\s{0,9}:", line.text) for line in lines):
        return parse_topologies(text, name)
    return _parse_conf(lines, name)


def without_mutual(
    groups: Mapping[str, Group],
) -> tuple[Mapping[str, Group], list[tuple[str, ...]]]:
    """Return groups without switches that list each other, and the sets of those.

    Files of dragonflies list, beside the nodes of a leaf, the leaves that it is joined
    with: neither is below the other.
    """
    listed = {
        name: set(group.switches) for name, group in groups.items() if group.nodes
    }
    mutual = {
        name: {other for other in others if name in listed.get(other, ())} - {name}
        for name, others in listed.items()
    }
    joined = [frozenset((a, b)) for a, others in mutual.items() for b in others]
    plain = {
        name: replace(
            group,
            switches=tuple(s for s in group.switches if s not in mutual.get(name, ())),
        )
        for name, group in groups.items()
    }
    sets = components([name for name, others in mutual.items() if others], joined)
    return plain, sets


GB_S = 50.0
"""Estimate: one 400 Gbit/s port per GPU, as in topologies/dgx-h100-pod.yaml."""
Sizes = list[tuple[str, int]]
"""Name and size of each level, innermost first."""


def to_levels(facts: SlurmTopology) -> Imported:
    """Return the levels above a node, innermost first, with what was assumed.

    Raises:
        SpecError: a switch is not defined, or is below itself, or there are too many
            tiers.
    """
    notes = [*facts.notes]
    sizes = _SIZES[facts.kind](facts, notes)
    guess = (
        f"Slurm's file has no speeds: every uplink is assumed to have {GB_S:g} GB/s "
        f"per GPU (one 400 Gbit/s port) and {LATENCY_US:g} us."
    )
    levels = [level_above(*size, GB_S, "per_gpu") for size in sizes]
    return Imported({"levels": levels}, unique([*notes, guess]), guess, True)


def _tree_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    groups, mutual = without_mutual(facts.groups)
    heights = _heights(facts.name, groups)
    tiers = [
        [_vertex(key) for key, height in heights.items() if height == tier]
        for tier in range(max(heights.values()) + 1)
    ]
    pairs = [*_pairs(groups)]
    if mutual:
        notes.append(
            "Switches that list each other, as in a dragonfly, are taken as joined by "
            "a level above them."
        )
        joint = _vertex(" joint")
        tiers.append([f"{joint}{i}" for i in range(len(mutual))])
        pairs += [
            frozenset((_vertex(switch), f"{joint}{i}"))
            for i, switches in enumerate(mutual)
            for switch in switches
        ]
    hosts = dict.fromkeys(node for g in facts.groups.values() for node in g.nodes)
    trees = trees_of([*hosts], tiers, pairs)
    if not trees:
        fail(facts.name, 0, "no switch has nodes; expected Nodes= of the leaves")
    roots = _roots(groups)
    tops = (tree.tiers[-1][0].switches for tree in trees)
    names = [next(s for s in switches if s in roots).strip() for switches in tops]
    note_trees(names, trees, notes)
    counts = trees[0].counts
    sizes = regular_sizes(counts)
    note_unequal(dict(zip(TIERS, counts, strict=False)), sizes, notes)
    return [*zip(TIERS, sizes, strict=False)]


def _vertex(switch: str) -> str:
    """Return the name of a switch as a vertex, which no host has."""
    return f" {switch}"


def _pairs(groups: Mapping[str, Group]) -> Iterator[Pair]:
    """Yield each switch with the switches and nodes directly below it.

    `scontrol show topology` lists the nodes of upper switches too: they lie below the
    switches that are listed beside them.
    """
    for name, group in groups.items():
        below = {*group.switches}
        inner = {node for child in below for node in groups[child].nodes}
        for child in below:
            yield frozenset((_vertex(name), _vertex(child)))
        for node in group.nodes:
            if node not in inner:
                yield frozenset((_vertex(name), node))


def _roots(groups: Mapping[str, Group]) -> set[str]:
    children = {child for group in groups.values() for child in group.switches}
    return {_vertex(name) for name in groups if name not in children}


def _ring_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    ring = _largest(facts, notes)
    notes.append("A ring of nodes is taken as nodes under one switch.")
    return [("ring", len(ring.nodes))]


def _largest(facts: SlurmTopology, notes: list[str]) -> Group:
    """Return the group with the most nodes, and note the others."""
    groups = [group for group in facts.groups.values() if group.nodes]
    if not groups:
        fail(facts.name, 0, f"no {facts.kind} has nodes; expected Nodes= of one")
    groups.sort(key=lambda group: -len(group.nodes))
    trees = [Tree(((SwitchGroup(group.nodes),),)) for group in groups]
    note_trees([group.name for group in groups], trees, notes)
    return groups[0]


def _heights(name: str, groups: Mapping[str, Group]) -> dict[str, int]:
    """Return the height of each switch above the leaves, from leaves to roots."""
    for group in groups.values():
        for child in group.switches:
            if child not in groups:
                fail(name, group.line, f"{shown(child)}: a switch that is not defined")
    below = {key: group.switches for key, group in groups.items()}
    try:
        order = [*TopologicalSorter(below).static_order()]
    except CycleError as error:
        first = min(error.args[1], key=lambda key: groups[key].line)
        fail(name, groups[first].line, f"{shown(first)} is below itself")
    heights: dict[str, int] = {}
    for key in order:
        heights[key] = max((heights[child] + 1 for child in below[key]), default=0)
    if max(heights.values()) >= len(TIERS):
        fail(name, 0, f"expected at most {len(TIERS)} tiers of switches")
    return heights


def _block_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    """Return the sizes of a block, of aggregates of blocks, and of the cluster."""
    blocks = [len(group.nodes) for group in facts.groups.values() if group.nodes]
    if not blocks:
        fail(facts.name, 0, "no block has nodes; expected Nodes= of the blocks")
    if len(blocks) < len(facts.groups):
        left_out = len(facts.groups) - len(blocks)
        notes.append(f"{left_out} blocks without nodes are left out.")
    names, counts = ["block"], [blocks]
    base = min(facts.block_sizes[0], max(blocks)) if facts.block_sizes else 1
    for wanted in facts.block_sizes:
        if wanted > base and wanted % base == 0 and len(names) < len(TIERS) - 1:
            names.append(f"{wanted}-node-group")
            each, places = wanted // base, range(0, len(blocks), wanted // base)
            counts.append([sum(blocks[i : i + each]) for i in places])
        elif wanted != base:
            notes.append(f"BlockSizes={wanted} is no level above {base} nodes.")
    sizes = regular_sizes([*counts, [sum(blocks)]])
    note_unequal(dict(zip(names, counts, strict=True)), sizes, notes)
    return [*zip([*names, "cluster"], sizes, strict=True)]


def _torus_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    """Return one level for each dimension of the largest torus."""
    largest = _largest(facts, notes)
    notes.append(
        "A torus is taken as levels of its dimensions: neighbours along the first one "
        "are near, and what wraps around is not drawn."
    )
    if math.prod(largest.dims) != len(largest.nodes):
        return [("torus", len(largest.nodes))]
    return [*zip(("x-ring", "y-ring", "z-ring"), largest.dims, strict=True)]


_SIZES = {
    "tree": _tree_sizes,
    "block": _block_sizes,
    "ring": _ring_sizes,
    "torus3d": _torus_sizes,
}
"""By kind of file, what reads the size of each level."""

ITEMS = {
    "tree": ("switches", "switch"),
    "block": ("blocks", "block"),
    "ring": ("rings", "ring"),
    "torus3d": ("toruses", "torus"),
}
"""By kind: the list of its groups, and the key of a group's name."""


def parse_topologies(text: str, name: str) -> SlurmTopology:
    """Return the topology that is the cluster's default, else the first.

    Raises:
        SpecError: not YAML, not a list of topologies, or of a kind without nodes.
    """
    document = parse_yaml(text, name)
    items = document.data
    is_list = isinstance(items, list) and items
    if not is_list or not all(isinstance(item, dict) for item in items):
        fail(name, 1, "expected a list of topologies")
    chosen = next(
        (i for i, item in enumerate(items) if item.get("cluster_default") is True), 0
    )
    notes = []
    if len(items) > 1:
        title = shown(str(items[chosen].get("topology")))
        notes.append(f"{len(items)} topologies; {title} is taken.")
    return _topology(document, chosen, name, notes)


def _topology(
    document: Document, index: int, name: str, notes: list[str]
) -> SlurmTopology:
    item = document.data[index]
    kind = next((kind for kind in KINDS if kind in item), None)
    if kind is None or not isinstance(item[kind], dict):
        found = ", ".join(shown(str(key)) for key in item)
        line = document.where((index,)).line
        fail(name, line, f"{found}: no way of joining nodes; {known(KINDS)}")
    list_key, name_key = ITEMS[kind]
    path = (index, kind, list_key)
    groups: dict[str, Group] = {}
    hosts = HostLists(name)
    for place, group in enumerate(_list(document, path, name)):
        read = _yaml_group(document, (*path, place), group, name_key, hosts)
        if read.name in groups:
            fail(name, read.line, f"{shown(read.name)} stands twice")
        groups[read.name] = read
    sizes = _yaml_block_sizes(document, (index, kind, "block_sizes"), name)
    return SlurmTopology(name, kind, groups, sizes, tuple(notes))


def _list(document: Document, path: FieldPath, name: str) -> list[Any]:
    parent = document.value(path[:-1])
    items = parent.get(path[-1])
    if not isinstance(items, list) or not items:
        fail(name, document.where(path).line, f"{path[-1]}: expected a list")
    return items


def _yaml_group(
    document: Document, path: FieldPath, group: Any, name_key: str, hosts: HostLists
) -> Group:
    name, line = document.where(path).file, document.where(path).line
    if not isinstance(group, dict) or name_key not in group:
        fail(name, line, f"expected a mapping with {name_key}, and nodes or children")
    nodes = hosts.expand(str(group.get("nodes") or ""), line)
    children = hosts.expand(str(group.get("children") or ""), line)
    if not nodes and not children and name_key != "block":
        fail(name, line, f"{shown(str(group[name_key]))} has no nodes and no children")
    dims = _dims(document, path, group) if name_key == "torus" else ()
    return Group(str(group[name_key]), nodes, children, line, dims)


def _dims(
    document: Document, path: FieldPath, group: dict[str, Any]
) -> tuple[int, ...]:
    """Return the nodes along x, y and z: a list, a mapping, or fields of the torus."""
    given = group.get("dims", group)
    values = given if isinstance(given, list) else None
    if isinstance(given, dict):
        values = [given.get(axis) for axis in "xyz"]
    if (
        not values
        or len(values) != 3
        or not all(type(n) is int and 0 < n <= 10**5 for n in values)
    ):
        name, line = document.where(path).file, document.where(path).line
        fail(name, line, "dims: expected the numbers of nodes along x, y and z")
    return tuple(values)


def _yaml_block_sizes(
    document: Document, path: FieldPath, name: str
) -> tuple[int, ...]:
    sizes = document.value(path[:-1]).get(path[-1]) or []
    is_list = isinstance(sizes, list)
    if not is_list or not all(type(n) is int and 0 < n <= 10**7 for n in sizes):
        fail(name, document.where(path).line, "block_sizes: expected numbers of nodes")
    return tuple(sizes)


KEYS = {
    "switchname": "tree",
    "blockname": "block",
    "blocksizes": "block",
    "ringname": "ring",
}
"""By the first key of a line, the topology plugin that it belongs to."""

_PAIR = re.compile(r"([A-Za-z_]{1,40})=(\S{1,200000})")


def _joined(lines: list[Line]) -> list[Line]:
    """Return lines without comments, those that end in a backslash made one."""
    joined: list[tuple[Line, list[str]]] = []
    is_open = False
    for line in lines:
        text = line.text.split("#", 1)[0].rstrip()
        if is_open:
            joined[-1][1].append(text.lstrip())
        elif text:
            joined.append((line, [text]))
        is_open = text.endswith("\\")
    return [line._replace(text=_without_ends(texts)) for line, texts in joined]


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
        fields = _fields(line)
        first = next(iter(fields))
        if first not in KEYS:
            line.fail(f"{shown(first)}: unknown; {known(KEYS)}")
        kinds.setdefault(KEYS[first], line.number)
        if first == "blocksizes":
            sizes = _conf_block_sizes(fields[first], line)
            continue
        group = _conf_group(fields[first], fields, line, hosts)
        if group.name in groups:
            line.fail(f"{shown(group.name)} stands twice")
        groups[group.name] = group
        notes += _ignored(fields, line, name)
    if not groups:
        fail(name, 0, f"no switch, block or ring; {known(KEYS)}")
    if len(kinds) > 1:
        fail(name, max(kinds.values()), f"{' and '.join(kinds)} in one file")
    return SlurmTopology(name, next(iter(kinds)), groups, sizes, tuple(notes))


def _fields(line: Line) -> dict[str, str]:
    fields = {key.lower(): value for key, value in _PAIR.findall(line.text)}
    if not fields or len(line.text.split()) != len(_PAIR.findall(line.text)):
        sentence = f"{shown(line.text.strip())}: expected KEY=VALUE pairs"
        line.fail(f"{sentence}, the first one of {', '.join(KEYS)}")
    return fields


def _conf_group(
    group: str, fields: Mapping[str, str], line: Line, hosts: HostLists
) -> Group:
    nodes = hosts.expand(fields.get("nodes", ""), line.number)
    switches = hosts.expand(fields.get("switches", ""), line.number)
    if not nodes and not switches and "blockname" not in fields:
        line.fail(f"{shown(group)} has no Nodes= and no Switches=")
    return Group(group, nodes, switches, line.number)


def _conf_block_sizes(text: str, line: Line) -> tuple[int, ...]:
    sizes = [whole(word, 10**7) for word in text.split(",")]
    if not all(sizes):
        line.fail(f"BlockSizes={shown(text)}: expected numbers of nodes, as in 8,16")
    return tuple(size for size in sizes if size)


def _ignored(fields: Mapping[str, str], line: Line, name: str) -> list[str]:
    """Return a note for what is not used; LinkSpeed has no meaning to Slurm either."""
    strange = [key for key in fields if key not in (*KEYS, "nodes", "switches")]
    return [f"{name}:{line.number}: {key}= is left out." for key in strange[:1]]


IMPORTERS = {
    "slurm": FabricImporter(
        sign=r"(?im)^\s{0,9}(?:Switch|Block|Ring)Name=|^\s{0,9}- topology:",
        parse=parse,
        to_levels=to_levels,
    ),
}
