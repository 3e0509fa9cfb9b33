"""Layers of several kinds: what a kind may change of the model, and their order."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Literal, NamedTuple

from pydantic import Field

from meshwright.spec.base import Count, CountOrNone, Flag, SpecModel

Mixer = Literal["attention", "state_space", "none"]
"""What mixes the tokens of a sequence in a layer."""


class StateSpace(SpecModel):
    """A recurrent mixer of tokens: Mamba-2, or a gated delta net.

    Mamba-2 is by Dao and Gu 2024 (arXiv 2405.21060), the gated delta net by Yang et al.
    2024 (arXiv 2412.06464). Queries, keys and values of the latter are called C, B and
    x in the former; both have a short convolution over them, and a gate z.
    """

    form: Literal["mamba2", "delta_net"] = Field(description="Which of the two it is.")
    n_heads: Count = Field(description="Heads of x, or of values.")
    head_dim: Count = Field(description="Width of such a head.")
    groups: Count = Field(description="Groups of B and C, or heads of keys.")
    state_dim: Count = Field(description="Width of B and C, or of a key head.")
    conv: Count = Field(4, description="Tokens that the convolution reads.")
    conv_bias: Flag = Field(False, description="A bias in the convolution.")
    chunk: Count = Field(
        64, description="Tokens of a chunk, inside which it works as attention does."
    )

    @property
    def inner(self) -> int:
        """Return the width of all heads together."""
        return self.n_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Return the channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def gates(self) -> int:
        """Return the numbers per token that steer the state: one or two per head."""
        return self.n_heads * (1 if self.form == "mamba2" else 2)

    @property
    def input_width(self) -> int:
        """Return the width of what the first matmul makes: z, x, B, C and the gates."""
        return self.inner + self.conv_width + self.gates


class LayerKind(SpecModel):
    """What a kind of layer changes of the model's fields; the rest is as there."""

    mixer: Mixer | None = Field(None, description="See model.mixer.")
    n_kv_heads: Count | None = Field(None, description="See model.n_kv_heads.")
    head_dim: Count | None = Field(None, description="See model.head_dim.")
    keys_are_values: Flag | None = Field(None, description="See model.keys_are_values.")
    attention_window: CountOrNone | None = Field(
        None, description="See model.attention_window."
    )
    attention_chunk: CountOrNone | None = Field(
        None, description="See model.attention_chunk."
    )
    d_ff: CountOrNone | None = Field(
        None, description="See model.d_ff; 0 for a layer without an MLP."
    )
    experts: Flag | None = Field(
        None, description="Whether model.moe stands for the MLP; default true."
    )
    norms_per_layer: Count | None = Field(
        None, description="See model.norms_per_layer."
    )

    @property
    def changed(self) -> dict[str, object]:
        """Return the fields of the model that this kind changes, by name."""
        said = self.model_dump(exclude_none=True)
        if said.pop("experts", True) is False:
            said["moe"] = None
        return said


class Order(NamedTuple):
    """The order of kinds: leading layers once, then a sequence that repeats."""

    leading: tuple[str, ...]
    repeated: tuple[str, ...]
    repeats: int

    @property
    def period(self) -> int:
        """Return the number of layers after which the kinds repeat."""
        return len(self.repeated)

    def shares(self) -> dict[str, float]:
        """Return the share of every kind among the layers that repeat."""
        counts = Counter(self.repeated)
        return {name: counts[name] / self.period for name in self.names}

    @property
    def names(self) -> list[str]:
        """Return the kinds in the order in which they first occur."""
        return list(dict.fromkeys([*self.leading, *self.repeated]))


@cache
def order_of(pattern: tuple[str, ...], layers: int) -> Order:
    """Return the order of a pattern that repeats until there are enough layers.

    The fewest layers lead or repeat, of which no more lead than repeat: a remainder of
    the pattern at the end counts as leading layers of a pattern that starts later.
    """
    every = [pattern[index % len(pattern)] for index in range(layers)]
    found = (_repeating(every, period) for period in range(1, layers + 1))
    fitting = [
        own
        for own in found
        if not own.leading or (own.repeats > 1 and 2 * len(own.leading) <= layers)
    ]
    return min(fitting, key=lambda order: len(order.leading) + order.period)


def _repeating(every: list[str], period: int) -> Order:
    """Return the order with this period that has the fewest leading layers."""
    same = len(every)
    while same > period and every[same - 1] == every[same - 1 - period]:
        same -= 1
    start = max(same - period, 0)
    start += (len(every) - start) % period
    repeats = (len(every) - start) // period
    return Order(tuple(every[:start]), tuple(every[start : start + period]), repeats)
