"""Nodes of Kubernetes, as `kubectl get nodes -o json` prints them: GPUs and labels.

Numbers come from the capacity, names from the labels of NVIDIA's and AMD's discovery,
of GKE, EKS and AKS.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.imports.registry import FactsImporter
from meshwright.imports.text import check_length, fail, shown, whole

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

UNTYPED = "gpu"
"""Stands for GPUs that no label names."""

MOST_NODES = 100_000


@dataclass(frozen=True)
class KubernetesNode:
    """One node with GPUs."""

    name: str
    gpus: int
    product: str
    instance: str = ""
    nics: int = 0
    memory_mib: int | None = None
    """Memory of one GPU, where a label has it."""
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KubernetesNodes:
    """The nodes that have GPUs, in the order of the file."""

    name: str
    nodes: tuple[KubernetesNode, ...]
    nodes_without_gpus: int = 0

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each product all nodes have."""
        total: Counter[str] = Counter()
        for node in self.nodes:
            total[node.product] += node.gpus
        return dict(total)


def parse(text: str, name: str) -> KubernetesNodes:
    """Return the nodes of a list, or of one node, in JSON.

    Raises:
        SpecError: not JSON, no node, or a number of GPUs that is none.
    """
    check_length(text, name)
    try:
        data: Any = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        fail(name, 1, "not JSON; expected that of kubectl get nodes -o json")
    items = data.get("items") if isinstance(data, dict) else data
    items = items if isinstance(items, list) else [data]
    nodes = [
        i for i in items if isinstance(i, dict) and i.get("kind", "Node") == "Node"
    ]
    nodes = [item for item in nodes if isinstance(item.get("status"), dict)]
    if not nodes or len(nodes) > MOST_NODES:
        told = f"{len(nodes):,} nodes; expected up to {MOST_NODES:,}"
        fail(name, 0, told if nodes else "no node; expected kubectl get nodes -o json")
    found = [_node(item, name) for item in nodes]
    with_gpus = tuple(node for node in found if node.gpus)
    return KubernetesNodes(name, with_gpus, len(found) - len(with_gpus))


def _node(item: Mapping[str, Any], name: str) -> KubernetesNode:
    metadata = _mapping(item.get("metadata"))
    labels = _mapping(metadata.get("labels"))
    capacity = _mapping(item["status"].get("capacity"))
    title = str(metadata.get("name", ""))[:200]
    gpus = sum(_count(capacity, key, title, name) for key in RESOURCES)
    nics = sum(_count(capacity, key, title, name) for key in NIC_RESOURCES)
    return KubernetesNode(
        name=title,
        gpus=gpus,
        product=_first(labels, PRODUCTS) or UNTYPED,
        instance=_first(labels, INSTANCES),
        nics=nics,
        memory_mib=whole(str(labels.get("nvidia.com/gpu.memory", ""))),
        places={key: str(labels[key])[:200] for key in PLACES if key in labels},
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(labels: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(labels[key])[:200] for key in keys if labels.get(key)), "")


def _count(capacity: Mapping[str, Any], key: str, node: str, name: str) -> int:
    value = str(capacity.get(key, "0"))
    count = whole(value, 10_000)
    if count is None:
        fail(name, 0, f"{node}: {key}: {shown(value)}: expected a whole number")
    return count


IMPORTERS = {
    "kubernetes": FactsImporter(
        sign=r"\"kind\"\s{0,9}:\s{0,9}\"(?:Node|NodeList)\"|\"(?:nvidia|amd)\.com/gpu"
        r"|\"apiVersion\"\s{0,9}:\s{0,9}\"v1\"",
        parse=parse,
    ),
}
