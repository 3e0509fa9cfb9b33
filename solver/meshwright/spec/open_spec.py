"""A spec that leaves open how many machines there are, which, or how large a batch is.

Loading makes every spec that it may become; the rest of Meshwright sees those alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

CHOICES = "cluster.choices"
COUNT = "cluster.count"
BATCH = "training.global_batch"


@dataclass(frozen=True)
class OpenSpec:
    """A question of training with open numbers, as all specs that it may become.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load({
        ...     "model": "llama3-8b",
        ...     "cluster": {"topology": "dgx-h100", "count": {"min": 1, "max": 4}},
        ...     "training": {"seq_len": 8192, "global_batch": [64, 96]},
        ... })
        >>> len(spec.choices), spec.counts, spec.batches
        (8, (1, 2, 3, 4), (64, 96))
    """

    choices: tuple[Spec, ...]
    """The specs that it may become, those with the fewest GPUs first."""
    impossible: int = 0
    """How many choices some other field of the spec rules out."""
    why_impossible: str = ""
    """What rules out the first of them."""

    @property
    def model(self) -> Model:
        """Return the model, which is that of every choice."""
        return self.choices[0].model

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Return the clusters that may be chosen."""
        return tuple({id(own.cluster): own.cluster for own in self.choices}.values())

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the numbers of machines that may be chosen."""
        return tuple(sorted({own.cluster.count for own in self.choices}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the sizes of a batch that may be chosen."""
        return tuple(sorted({own.training.global_batch for own in self.choices}))

    @property
    def open_fields(self) -> tuple[str, ...]:
        """Return the fields that are open."""
        names = {own.cluster.topology.name for own in self.choices}
        is_open = {
            CHOICES: len(names) > 1,
            COUNT: len(self.counts) > 1,
            BATCH: len(self.batches) > 1,
        }
        return tuple(name for name, own in is_open.items() if own)

    @property
    def title(self) -> str:
        """Return the question in one line."""
        largest = self.choices[-1]
        return f"{largest.title} at most, of {len(self.choices):,} choices"
