"""Clusters as Ray and Kubernetes list them: GPUs, nodes, and the labels of nodes.

`ray.cluster_resources()` is a Python dictionary or JSON: `{'GPU': 16.0,
'accelerator_type:H100': 2.0, ...}`; `ray status` lists the same: `0.0/16.0 GPU`.
`kubectl get nodes -o json` has numbers in the capacity of nodes, and names in labels of
NVIDIA's and AMD's discovery, of GKE, EKS and AKS.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.imports.registry import Importer
from meshwright.imports.slurm_nodes import UNTYPED, summed
from meshwright.imports.text import (
    data_in,
    fail,
    mapping,
    mappings,
    number_in,
    shown,
    whole,
)

ACCELERATOR, NODE = "accelerator_type:", "node:"

MOST_LITERAL = 1_000_000
MOST_COUNTED = 1_000_000
MOST_BYTES = 2**62

_STATUS = re.compile(
    r"(?m)^\s{0,20}([\d.]{1,20})/([\d.]{1,20})\s{1,9}(GPU|accelerator_type:\S{1,80})"
)
_ACTIVE = re.compile(r"(?m)^\s{0,9}(\d{1,7})\s{1,9}node_\w{1,80}")


@dataclass(frozen=True)
class RayCluster:
    """The sums over all nodes."""

    name: str
    gpus: int
    nodes: int | None
    """Nodes of all kinds; None where the file does not say."""
    types: tuple[str, ...] = ()
    """The kinds of accelerator of its nodes."""
    nodes_by_type: Mapping[str, int] = field(default_factory=dict)
    host_mib: int | None = None
    """Memory of a node, the mean; Ray gives it to tasks and to its object store."""

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return the GPUs by type: all of one type, or of none that is known."""
        return {self.types[0] if len(self.types) == 1 else UNTYPED: self.gpus}


def parse_ray(text: str, name: str) -> RayCluster:
    """Return the resources of a cluster.

    Raises:
        SpecError: no dictionary of resources, or a number that is none.
    """
    resources = _status(text) or _literal(text, name)
    gpus = _counted(resources.get("GPU", 0), "GPU", name)
    by_type = {
        key.removeprefix(ACCELERATOR): _counted(value, key, name)
        for key, value in resources.items()
        if key.startswith(ACCELERATOR)
    }
    nodes = [key for key in resources if key.startswith(NODE) and "__" not in key]
    if not gpus:
        fail(name, 0, "no GPU; expected ray.cluster_resources(), as in {'GPU': 16.0}")
    active = sum(int(match[1]) for match in _ACTIVE.finditer(text[:200_000]))
    hosts = len(nodes) or active or None
    host_mib = _memory_of_all(resources, text) // (hosts or 1) if hosts else 0
    return RayCluster(name, gpus, hosts, (*by_type,), by_type, host_mib or None)


POOLS = ("memory", "object_store_memory")
"""What Ray divides the memory of its nodes into."""

_POOL = re.compile(
    r"(?m)^\s{0,20}[\d.]{1,20}(?:[KMGTP]i)?B/([\d.]{1,20})([KMGTP]i)?B"
    r"\s{1,9}(?:memory|object_store_memory)\b"
)


def _memory_of_all(resources: Mapping[str, Any], text: str) -> int:
    """Return the memory of all nodes in MiB: bytes, or as `ray status` lists them."""
    sizes = [resources[key] for key in POOLS if key in resources]
    if not sizes:
        rows = _POOL.finditer(text[:200_000])
        sizes = [_bytes(row[1]) * 1024 ** _POWERS[(row[2] or "")[:1]] for row in rows]
    return int(min(math.fsum(map(_bytes, sizes)), MOST_BYTES)) // 2**20


def _bytes(value: Any) -> float:
    """Return a number of bytes; 0 for a value that is no number."""
    number = number_in(value)
    return number if 0 <= number < MOST_BYTES else 0.0


def _status(text: str) -> dict[str, Any]:
    """Return the totals that `ray status` lists."""
    found = _STATUS.finditer(text[:200_000])
    return {match[3]: match[2] for match in found}


def _literal(text: str, name: str) -> dict[str, Any]:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or end - start > MOST_LITERAL:
        fail(name, 0, "no dictionary; expected ray.cluster_resources()")
    try:
        data = ast.literal_eval(text[start : end + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        fail(name, 0, "not a dictionary; expected ray.cluster_resources()")
    if not isinstance(data, dict):
        fail(name, 0, "not a dictionary; expected ray.cluster_resources()")
    return {str(key): value for key, value in data.items()}


def _counted(value: Any, key: str, name: str) -> int:
    number = number_in(value)
    if not 0 <= number <= MOST_COUNTED:
        accepted = f"expected a number up to {MOST_COUNTED:,}"
        fail(name, 0, f"{shown(key)}: {shown(str(value))}: {accepted}")
    return round(number)


RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915")
"""Resources that are GPUs."""

NIC_RESOURCES = ("vpc.amazonaws.com/efa", "rdma/hca_shared_devices_a", "rdma/ib")

PRODUCTS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Labels with the name of the GPUs, the most exact first."""

INSTANCES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

PLACES = (
    "nvidia.com/gpu.clique",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/zone",
)
"""Labels that say which nodes are near each other."""

MOST_NODES = 100_000


@dataclass(frozen=True)
class KubernetesNode:
    """One node with GPUs."""

    name: str
    gpus: int
    product: str
    instance: str = ""
    nics: int = 0
    host_mib: int | None = None
    """Memory of the node that pods may have, or else all of it."""
    places: Mapping[str, str] = field(default_factory=dict)
    is_ready: bool = True
    """Whether pods are started on it: it is ready, and not cordoned."""


@dataclass(frozen=True)
class KubernetesNodes:
    """The nodes that have GPUs, in the order of the file."""

    name: str
    nodes: tuple[KubernetesNode, ...]
    nodes_without_gpus: int = 0

    @property
    def out_of_service(self) -> tuple[str, ...]:
        """Return the names of the nodes on which no pod is started."""
        return tuple(node.name for node in self.nodes if not node.is_ready)

    def in_service(self) -> KubernetesNodes:
        """Return the nodes on which pods are started."""
        return replace(self, nodes=tuple(n for n in self.nodes if n.is_ready))

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each product all nodes have."""
        return summed({node.product: node.gpus} for node in self.nodes)


def parse_kubernetes(text: str, name: str) -> KubernetesNodes:
    """Return the nodes of a list, or of one node, in JSON.

    Raises:
        SpecError: not JSON, no node, or a number of GPUs that is none.
    """
    if (data := data_in(text)) is None:
        fail(name, 1, "not JSON; expected that of kubectl get nodes -o json")
    items = data.get("items") if isinstance(data, dict) else data
    nodes = [
        item
        for item in mappings(items if isinstance(items, list) else [data])
        if item.get("kind", "Node") == "Node" and isinstance(item.get("status"), dict)
    ]
    if not nodes or len(nodes) > MOST_NODES:
        told = f"{len(nodes):,} nodes; expected up to {MOST_NODES:,}"
        fail(name, 0, told if nodes else "no node; expected kubectl get nodes -o json")
    found = [_node(item, name) for item in nodes]
    with_gpus = tuple(node for node in found if node.gpus)
    return KubernetesNodes(name, with_gpus, len(found) - len(with_gpus))


def _node(item: Mapping[str, Any], name: str) -> KubernetesNode:
    metadata = mapping(item.get("metadata"))
    labels = mapping(metadata.get("labels"))
    capacity = mapping(item["status"].get("capacity"))
    title = str(metadata.get("name", ""))[:200]
    gpus = sum(_count(capacity, key, title, name) for key in RESOURCES)
    nics = sum(_count(capacity, key, title, name) for key in NIC_RESOURCES)
    return KubernetesNode(
        name=title,
        gpus=gpus,
        product=_first(labels, PRODUCTS) or UNTYPED,
        instance=_first(labels, INSTANCES),
        nics=nics,
        host_mib=_memory_mib(mapping(item["status"].get("allocatable")))
        or _memory_mib(capacity),
        places={key: str(labels[key])[:200] for key in PLACES if key in labels},
        is_ready=_is_ready(item),
    )


def _is_ready(item: Mapping[str, Any]) -> bool:
    """Return whether pods are started on a node; of one that says nothing they are."""
    conditions = item["status"].get("conditions")
    ready = [
        condition.get("status")
        for condition in mappings(conditions if isinstance(conditions, list) else [])
        if condition.get("type") == "Ready"
    ]
    is_cordoned = mapping(item.get("spec")).get("unschedulable") is True
    return not is_cordoned and all(status in ("True", True) for status in ready)


def _first(labels: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(labels[key])[:200] for key in keys if labels.get(key)), "")


def _count(capacity: Mapping[str, Any], key: str, node: str, name: str) -> int:
    value = str(capacity.get(key, "0"))
    count = whole(value, 10_000)
    if count is None:
        fail(name, 0, f"{node}: {key}: {shown(value)}: expected a whole number")
    return count


_MEMORY = re.compile(r"(\d{1,18})([KMGTP]i?|[kmgtp])?")
_POWERS = {unit: power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


def _memory_mib(amounts: Mapping[str, Any]) -> int | None:
    """Return the memory among amounts of a node, as `1056270488Ki`; None without."""
    found = _MEMORY.fullmatch(str(amounts.get("memory", ""))[:40])
    if found is None:
        return None
    unit = (found[2] or "").upper()
    base = 1024 if unit.endswith("I") else 1000
    return min(int(found[1]) * base ** _POWERS[unit[:1]], MOST_BYTES) // 2**20 or None


IMPORTERS = {
    "ray": Importer(
        sign=r"['\"](?:accelerator_type:|object_store_memory['\"]\s{0,9}:)"
        r"|/[\d.]{1,20} GPU\b",
        parse=parse_ray,
    ),
    "kubernetes": Importer(
        sign=r"\"kind\"\s{0,9}:\s{0,9}\"(?:Node|NodeList)\"|\"(?:nvidia|amd)\.com/gpu"
        r"|\"apiVersion\"\s{0,9}:\s{0,9}\"v1\"",
        parse=parse_kubernetes,
    ),
}
