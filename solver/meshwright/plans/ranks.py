"""The host and GPU of each rank of a plan, and the files that launchers read.

Global ranks count tensor-parallel ranks fastest, then context, sharded and replicated
data parallelism, pipeline stages last. That is the order of Megatron-LM
(parallel_state.py: tp-cp-ep-dp-pp), of torchtitan (ParallelDims: pp, dp_replicate,
dp_shard, cp, tp, the last one fastest), of DeepSpeed (PipeModelDataParallelTopology:
pipe, data, model) and of PyTorch's FSDP.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.spec.cluster import Cluster, Part, StagedCluster
from meshwright.spec.plan_fields import AXES


@dataclass(frozen=True)
class RankMap:
    """The mesh coordinates, host and GPU of every global rank, in order."""

    coordinates: Ints
    """(ranks, axes), axes as in `AXES`."""
    host: Ints
    """Index into `hosts`."""
    device: Ints
    """Number of the GPU on its host."""
    hosts: tuple[str, ...]

    def devices_of(self, host: int) -> list[int]:
        """Return the GPUs of a host in the order of the ranks on it."""
        result: list[int] = self.device[self.host == host].tolist()
        return result


def rank_map(cluster: Cluster, plan: Plan) -> RankMap:
    """Return where the ranks of a plan run on a cluster."""
    degrees = [int(np.prod(plan.mesh[axis])) for axis in AXES]
    coordinates = np.stack(
        np.unravel_index(np.arange(plan.world_size), degrees[::-1])[::-1], axis=1
    )
    place, hosts = _places(plan, coordinates), [*_hosts(cluster)]
    gpus = [_gpus_in_order(plan, host) for host in hosts]
    host_of_rank = np.arange(len(hosts)).repeat([len(order) for order in gpus])[place]
    device = np.concatenate(gpus)[place]
    names = tuple(host.name for host in hosts)
    return RankMap(coordinates, host_of_rank, device, names)


def _places(plan: Plan, coordinates: Ints) -> Ints:
    """Return the number of the GPU of each rank, counted from the innermost level."""
    levels = len(plan.mesh[AXES[0]])
    left, place, below = coordinates.copy(), np.zeros(len(coordinates), np.int64), 1
    for level in range(levels):
        for index, axis in enumerate(AXES):
            factor = plan.mesh[axis][level]
            place += left[:, index] % factor * below
            left[:, index] //= factor
            below *= factor
    return place


@dataclass(frozen=True)
class _Host:
    name: str
    kind: int
    """Index into the plan's `seats`."""
    devices: list[int]


def _gpus_in_order(plan: Plan, host: _Host) -> Ints:
    """Return the GPUs of a host in the GPU order of the plan."""
    order = plan.seats[host.kind] if plan.seats else range(len(host.devices))
    return np.array([host.devices[gpu] for gpu in order])


def _hosts(cluster: Cluster) -> Iterator[_Host]:
    """Yield the hosts of a cluster in the order in which their GPUs are counted."""
    parts = cluster.order if isinstance(cluster, StagedCluster) else cluster.parts
    for part, name in zip(parts, _part_names(parts), strict=True):
        for i in range(part.count):
            devices = list(range(part.gpus_per_machine))
            yield _Host(f"{name}-{i}", 0, devices)
    if not parts and cluster.is_tree:
        per_host = min(cluster.gpus_per_host, cluster.gpus)
        for i in range(cluster.gpus // per_host):
            yield _Host(f"node{i}", 0, list(range(per_host)))
    elif not parts:
        yield from _hosts_of_graphs(cluster)


def _part_names(parts: Sequence[Part]) -> list[str]:
    """Return a name for each part that host files and shells read as one word.

    If two parts would have the same name, every name gets a number.
    """
    strange = re.compile(r"[^A-Za-z0-9_.]+")
    names = [strange.sub("-", part.topology.name).strip("-.") for part in parts]
    if len({*names, ""}) > len(names):
        return names
    return [f"part{number}-{name}".rstrip("-") for number, name in enumerate(names)]


def _hosts_of_graphs(cluster: Cluster) -> Iterator[_Host]:
    kinds = cluster.hosts.groups
    kind_of = {host: k for k, kind in enumerate(kinds) for host in kind.hosts}
    for host in sorted(kind_of):
        nodes = kinds[kind_of[host]].machine.nodes
        names = [node.name for node in nodes if node.kind == "gpu"]
        numbers = [_number(name, place) for place, name in enumerate(names)]
        yield _Host(f"node{host}", kind_of[host], numbers)


def _number(name: str, place: int) -> int:
    """Return the number at the end of a GPU's name, or its place in the list."""
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else place


def ranks_csv(ranks: RankMap) -> str:
    """Return a line for each rank: its host, GPU and mesh coordinates."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("rank", "host", "device", *AXES))
    for rank, coordinates in enumerate(ranks.coordinates.tolist()):
        host = ranks.hosts[int(ranks.host[rank])]
        writer.writerow((rank, host, int(ranks.device[rank]), *coordinates))
    return file.getvalue()


def rankfile(ranks: RankMap) -> str:
    """Return a rankfile of Open MPI: slots of a host count its ranks in order."""
    seen = [0] * len(ranks.hosts)
    lines = []
    for rank, host in enumerate(ranks.host.tolist()):
        lines.append(f"rank {rank}={ranks.hosts[host]} slot={seen[host]}\n")
        seen[host] += 1
    return "".join(lines)


def hostfile(ranks: RankMap) -> str:
    """Return a hostfile of Open MPI and DeepSpeed, hosts in order."""
    counts = np.bincount(ranks.host, minlength=len(ranks.hosts)).tolist()
    pairs = zip(ranks.hosts, counts, strict=True)
    return "".join(f"{host} slots={count}\n" for host, count in pairs if count)


def visible_devices(ranks: RankMap) -> str:
    """Return CUDA_VISIBLE_DEVICES for each host, so that local rank i takes the ith."""
    lines = []
    for index, host in enumerate(ranks.hosts):
        devices = ",".join(map(str, ranks.devices_of(index)))
        lines.append(f"{host} CUDA_VISIBLE_DEVICES={devices}\n" if devices else "")
    return "".join(lines)


FILES = {
    "ranks.csv": ranks_csv,
    "rankfile": rankfile,
    "hostfile": hostfile,
    "visible_devices": visible_devices,
}
"""Files that `solve --ranks` writes."""
