"""Slurm's topology.yaml: named topologies, one of them the cluster's."""

from __future__ import annotations

from typing import Any

from meshwright.imports.slurm.groups import KINDS, Group, SlurmTopology
from meshwright.imports.slurm.hostlist import HostLists
from meshwright.imports.text import fail, known, shown
from meshwright.reading.document import Document, FieldPath
from meshwright.reading.yaml_text import parse_yaml

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
        read = _group(document, (*path, place), group, name_key, hosts)
        if read.name in groups:
            fail(name, read.line, f"{shown(read.name)} stands twice")
        groups[read.name] = read
    sizes = _sizes(document, (index, kind, "block_sizes"), name)
    return SlurmTopology(name, kind, groups, sizes, tuple(notes))


def _list(document: Document, path: FieldPath, name: str) -> list[Any]:
    parent = document.value(path[:-1])
    items = parent.get(path[-1])
    if not isinstance(items, list) or not items:
        fail(name, document.where(path).line, f"{path[-1]}: expected a list")
    return items


def _group(
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


def _sizes(document: Document, path: FieldPath, name: str) -> tuple[int, ...]:
    sizes = document.value(path[:-1]).get(path[-1]) or []
    is_list = isinstance(sizes, list)
    if not is_list or not all(type(n) is int and 0 < n <= 10**7 for n in sizes):
        fail(name, document.where(path).line, "block_sizes: expected numbers of nodes")
    return tuple(sizes)
