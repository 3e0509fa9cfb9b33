"""A plan: one complete decision, in torchtitan's names, and the chunks of stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from meshwright.spec.base import Count, CountOrNone, SpecModel
from meshwright.spec.plan_fields import FIELDS, MAKES_V, PlanField, PlanFields, way


class Stage(SpecModel):
    """One pipeline stage."""

    layers: CountOrNone
    recompute_layers: CountOrNone
    gpu: str = Field("", description="Its GPUs, where those of stages differ.")


class Plan(PlanFields):
    """One complete decision, in torchtitan's names.

    Example:
        >>> import meshwright as mw
        >>> plan = mw.solve(mw.load("llama3-8b-2xh100-nvlink")).best.plan
        >>> plan.tp, plan.cp, [stage.layers for stage in plan.stages]
        (1, 2, [32])
        >>> mw.Plan.model_validate_json(plan.model_dump_json()) == plan
        True
    """

    stages: tuple[Stage, ...]
    mesh: dict[str, tuple[Count, ...]] = Field(
        description="Of each axis, its factor at each level, innermost first."
    )
    seats: tuple[tuple[CountOrNone, ...], ...] = Field(
        (),
        description="Of each kind of host, the GPU of each of its ranks, by its place "
        "among the host's GPUs; empty where ranks sit in that order.",
    )

    @property
    def world_size(self) -> int:
        """Return the number of GPUs; experts are folded into the other axes."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def dp(self) -> int:
        """Return the data-parallel degree, replicate x shard."""
        return self.dp_replicate * self.dp_shard

    def chunk_layers(self, leading: int = 0) -> tuple[int, ...]:
        """Return the layers of every model chunk, in the order of the model.

        `leading` is the number of leading dense layers of the model.
        """
        layers = [stage.layers for stage in self.stages]
        return chunk_layers(layers, self.vpp, self.schedule in MAKES_V, leading)

    @property
    def recomputes_all_layers(self) -> bool:
        """Return whether every layer is recomputed."""
        return all(stage.recompute_layers == stage.layers for stage in self.stages)

    @property
    def recomputes_some_layers(self) -> bool:
        """Return whether some layers are recomputed and others are not."""
        return self.recompute != "none" and not self.recomputes_all_layers

    def __str__(self) -> str:
        """Return the plan in one line, as `--plan` reads it.

        It leaves out the layers of stages, the mesh, fields that others decide, and
        plain details of recomputation.
        """
        return ",".join(
            self._written(field.name for field in FIELDS if self._is_written(field))
        )

    @property
    def brief(self) -> str:
        """Return the fields that are not at their plainest, as `--plan` reads them.

        Blanks after commas let cells of tables wrap between fields.
        """
        return ", ".join(
            self._written(
                field.name
                for field in FIELDS
                if getattr(self, field.name) != field.plain
            )
        )

    def _is_written(self, field: PlanField) -> bool:
        if field.beside_word:
            return bool(getattr(self, field.name) != field.plain)
        return not field.beside or field.is_open(getattr(self, field.beside))

    def _written(self, names: Iterable[str]) -> list[str]:
        written = [f"{name}={getattr(self, name)}".lower() for name in names]
        if self.recomputes_some_layers:
            written.append("recompute_layers=any")
        return written


def chunk_layers(
    layers: Sequence[int], vpp: int, is_v: bool = False, leading: int = 0
) -> tuple[int, ...]:
    """Return the layers of every chunk from those of stages, in the model's order.

    Where chunks of a stage differ, its first ones have a layer less: those have the
    most micro-batches in flight. Only the first chunk of all has a layer more where
    that takes in more of the `leading` dense layers: see `first_chunks`. The last stage
    keeps an empty chunk for the end of the model, which holds the loss, as the first
    stage keeps one for the embedding.
    """
    last, firsts = len(layers) - 1, first_chunks(layers, vpp, leading)

    def count(stage: int, chunk: int) -> int:
        each, over = divmod(layers[stage], vpp)
        if stage == last and not each:
            return int(chunk < over)
        if chunk == 0:
            return firsts[stage]
        return each + (chunk >= vpp - over + (firsts[stage] > each))

    return tuple(count(*part) for part in way(len(layers), vpp, is_v))


def first_chunks(layers: Sequence[int], vpp: int, leading: int = 0) -> list[int]:
    """Return the layers of the first chunk of each stage.

    The `leading` dense layers of the model fill them, stage by stage. The first chunk
    is the longest of its stage where the shortest has no room for those that are left.
    """
    sizes = list[int]()
    for stage, held in enumerate(layers):
        each, over = divmod(held, vpp)
        takes_more = 0 < each < leading or (not each and stage == len(layers) - 1)
        sizes.append(each + (takes_more and over > 0))
        leading = max(leading - sizes[-1], 0)
    return sizes


def most_leading(layers: Sequence[int], vpp: int, leading: int) -> int:
    """Return the most `leading` dense layers that a stage holds; 0 if they do not fit.

    All stages that hold some hold as many, but for the last of them. Where pinned
    stages cannot, the first holds all of them: it is priced as if its first chunk did.
    """
    firsts, left = first_chunks(layers, vpp, leading), leading
    most = min(firsts[0], leading)
    for size in firsts:
        if min(size, left) != min(most, left):
            break
        left -= min(size, left)
    return most if not left else leading * (layers[0] >= leading)


def most_chunks(layers: Sequence[int], is_v: bool = False) -> int:
    """Return the most chunks a stage of which all hold something.

    That is a layer, the embedding on the first stage, or the loss on the last one; in a
    V a layer.
    """
    if is_v:
        return min(layers)
    last = len(layers) - 1
    return min(each + (stage in (0, last)) for stage, each in enumerate(layers))
