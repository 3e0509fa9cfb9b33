"""Gradient compression as a price on what data parallelism sends.

A scheme changes the bytes on the links and adds passes over the gradients. What it
costs in quality is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.cost.efficiency import Efficiency
from meshwright.results.ledger import Entry
from meshwright.results.training_run import Scheme

SCHEMES: tuple[Scheme, ...] = ("fp16", "1-bit", "top-k", "powersgd")

ENCODE_BYTES: dict[Scheme, float] = {
    "fp16": 12.0,
    "1-bit": 16.0,
    "top-k": 16.0,
    "powersgd": 24.0,
}
"""Bytes of memory per gradient and step that a scheme reads and writes by itself.

fp16 casts there and back, 4 + 2 each. 1-bit reads gradient and error and writes error
and result, 4 each (Tang et al. 2021, 1-bit Adam, algorithm 1); so does top-k, which
selects on the way (Lin et al. 2018, Deep Gradient Compression, algorithm 4). PowerSGD
reads the sum of both twice more for its two products (Vogels et al. 2019, algorithm 1).
"""


class Setting(NamedTuple):
    """What the sizes of compressed gradients depend on."""

    reduced_bytes: float
    """Of one gradient as it is sent now."""
    width: int
    """Of a weight matrix, taken as square."""
    density: float
    rank: int
    zero: int
    """Stage; without ZeRO a ring goes round twice, to add up and to hand out."""


def gradients(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a ledger that pass on gradients of weights."""
    state = ("dp", "zero")
    return [own for own in entries if own.part in state and "gradients" in own.where]


def share(scheme: Scheme, own: Entry, setting: Setting) -> float:
    """Return the bytes of a collective under a scheme, of those now; at most all.

    - fp16: 2 bytes a gradient;
    - 1-bit: one bit, and scales that do not count (Seide et al. 2014, section 3);
    - powersgd: two factors of rank r for d x d weights, fp32: 2 r / d of 4 bytes;
    - top-k: 4 bytes of value and 4 of place, which an all-gather collects from all n
      ranks: n k 8 bytes, in place of a ring's one or two ways round.
    """
    is_both = own.operation == "all_reduce" or setting.zero == 0
    gathered = own.ranks * setting.density * 8
    per_gradient = {
        "fp16": 2.0,
        "1-bit": 1 / 8,
        "powersgd": 4 * 2 * setting.rank / setting.width,
        "top-k": gathered / 2 if is_both else gathered,
    }[scheme]
    return min(per_gradient / setting.reduced_bytes, 1.0)


class Sent(NamedTuple):
    """Gradients of a step: seconds on the links, and of these what is exposed."""

    traffic_s: float
    exposed_s: float


def compressed(
    scheme: Scheme, entries: Iterable[Entry], setting: Setting, own: Efficiency
) -> Sent:
    """Return what gradients take under a scheme.

    Of what hides now as much can hide then, where it is not above what may overlap.
    """
    overlap = {"dp": own.grad_overlap, "zero": own.gather_overlap}
    traffic_s = exposed_s = 0.0
    for entry in entries:
        then_s = entry.seconds * share(scheme, entry, setting)
        hidden_s = min(overlap[entry.part] * then_s, entry.seconds - entry.exposed_s)
        traffic_s += then_s
        exposed_s += then_s - hidden_s
    return Sent(traffic_s, exposed_s)


def count(entries: Iterable[Entry], setting: Setting) -> float:
    """Return how many gradients a GPU has summed in a step."""
    summed = (own for own in entries if own.operation != "all_gather")
    return sum(own.bytes * own.count_per_step for own in summed) / setting.reduced_bytes
