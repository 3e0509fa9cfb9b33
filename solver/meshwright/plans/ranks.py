"""Where each rank of a plan runs: host, GPU, and what launchers need to put it there.

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
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.cluster_parts import Part
from meshwright.spec.plan_fields import AXES


@dataclass(frozen=True)
class RankMap:
    """Of every global rank, in order: its place on the mesh, its host and GPU."""

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
    seated = [_seated(plan, own) for own in hosts]
    host = np.arange(len(hosts)).repeat([len(own) for own in seated])[place]
    device = np.concatenate(seated)[place]
    return RankMap(coordinates, host, device, tuple(own.name for own in hosts))


def _places(plan: Plan, coordinates: Ints) -> Ints:
    """Return the place of ranks on the cluster: innermost level fastest, then axes."""
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


def _seated(plan: Plan, host: _Host) -> Ints:
    """Return the GPUs of a host in the order in which places count them."""
    seats = plan.seats[host.kind] if plan.seats else range(len(host.devices))
    return np.array([host.devices[gpu] for gpu in seats])


def _hosts(cluster: Cluster) -> Iterator[_Host]:
    """Yield the hosts of a cluster in the order in which places count them."""
    parts = cluster.order if isinstance(cluster, StagedCluster) else cluster.parts
    for part, name in zip(parts, _part_names(parts), strict=True):
        for i in range(part.count):
            devices = list(range(part.gpus_per_machine))
            yield _Host(f"{name}-{i}", 0, devices)
    if not parts and cluster.is_tree:
        each = min(cluster.gpus_per_host, cluster.gpus)
        for i in range(cluster.gpus // each):
            yield _Host(f"node{i}", 0, list(range(each)))
    elif not parts:
        yield from _hosts_of_graphs(cluster)


def _part_names(parts: Sequence[Part]) -> list[str]:
    """Return a name for each part, of what host files and shells take for one word.

    Parts that would have one name are told apart by their numbers.
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
    """Return a line for each rank: host, GPU, and its place on the mesh."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("rank", "host", "device", *AXES))
    for rank, own in enumerate(ranks.coordinates.tolist()):
        host = ranks.hosts[int(ranks.host[rank])]
        writer.writerow((rank, host, int(ranks.device[rank]), *own))
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
"""What `solve --ranks` writes."""
