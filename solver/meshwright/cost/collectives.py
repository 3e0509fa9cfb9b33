"""Seconds of collectives by the alpha-beta model, from what a group pays on its links.

`s_per_byte` and `latency_s` are those of `topology.fabric.PathCosts`, which include
concurrent groups and shared links. `n` is the size of the group; one member is free.
Volumes and steps: Thakur et al. 2005, section 4; the tree as in NCCL 2.4
(Jeaugey 2019, 'Massively scale your deep learning training with NCCL 2.4').
"""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Floats, Ints


def all_gather_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds of a ring in which each member gets all `whole_bytes`."""
    return (n - 1) * (whole_bytes / n * s_per_byte + latency_s)


def reduce_scatter_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds of a ring that sums `whole_bytes`, 1/n left on each member."""
    return all_gather_s(whole_bytes, n, s_per_byte, latency_s)


def all_reduce_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds to sum `whole_bytes` on all members, by ring or tree."""
    ring = 2 * all_gather_s(whole_bytes, n, s_per_byte, latency_s)
    steps = 2 * np.ceil(np.log2(np.maximum(n, 1)))
    tree = np.where(n > 1, 2 * whole_bytes * s_per_byte, 0.0) + steps * latency_s
    return np.minimum(ring, tree)


def all_to_all_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds in which each member sends 1/n of `whole_bytes` to each.

    All messages are sent at once, so that latency counts once.
    """
    result: Floats = (n - 1) / n * whole_bytes * s_per_byte + latency_s
    return result


def send_s(message_bytes: Floats, s_per_byte: Floats, latency_s: Floats) -> Floats:
    """Return the seconds to send `message_bytes` to a neighbour."""
    return message_bytes * s_per_byte + latency_s


def hidden_s(traffic_s: Floats, compute_s: Floats, overlap: float) -> Floats:
    """Return the seconds of traffic that compute hides, at most a share `overlap`."""
    return np.minimum(overlap * traffic_s, compute_s)


def exposed_in_turn_s(
    first_s: Floats, second_s: Floats, compute_s: Floats, overlap: float
) -> tuple[Floats, Floats, Floats]:
    """Return the exposed seconds of two kinds of traffic, and the compute left over.

    The second kind hides behind the compute that the first leaves, so that one second
    of compute hides at most one second of traffic.
    """
    hidden_first_s = hidden_s(first_s, compute_s, overlap)
    left_s = compute_s - hidden_first_s
    hidden_second_s = hidden_s(second_s, left_s, overlap)
    exposed = first_s - hidden_first_s, second_s - hidden_second_s
    return *exposed, left_s - hidden_second_s
