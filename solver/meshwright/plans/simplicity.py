"""How simple plans are, how near to what was run, and which techniques they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import gcd, prod

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons, to_unplaced_row
from meshwright.spec.goals import DEEP, LONG_CONTEXT, Criterion
from meshwright.spec.plan_fields import (
    FIELD,
    FULL_CPU,
    KEEPS_ALL,
    ONE_F_ONE_B,
    TECHNIQUES,
    PlanField,
)
from meshwright.spec.run_before import (
    DECISIONS,
    FEW_TOKENS,
    LONG,
    SHORT,
    WIDEST_EP,
    Familiarity,
    codes_of,
    text_of,
)
from meshwright.spec.spec import Spec

WHOLE = 100
"""Percents of a step that is not doubted."""


def _degree(degree: Ints, *bounds: int) -> Ints:
    """Return the level of a degree: 0 for 1, then one more above each bound."""
    return np.asarray(np.searchsorted((1, *bounds), degree, side="left"))


def _tp(spec: Spec, rows: Skeletons) -> Ints:
    is_across = node_gpus(spec) % rows.tp > 0
    return np.where(is_across, 2, rows.tp > 1)


def _cp(spec: Spec, rows: Skeletons) -> Ints:
    is_short = spec.training.seq_len < LONG
    return np.asarray(_degree(rows.cp, 2) + ((rows.cp > 2) & is_short))


def _cp_tokens(spec: Spec, rows: Skeletons) -> Bools:
    return (rows.cp > 1) & (spec.training.seq_len < FEW_TOKENS * rows.cp)


def _cp_sequence(spec: Spec, rows: Skeletons) -> Bools:
    return np.asarray((rows.cp > 1) & (spec.training.seq_len < SHORT))


def _ep(spec: Spec, rows: Skeletons) -> Ints:
    """Return the level of expert parallelism; 4 where experts are not split."""
    if spec.model.moe is None:
        return np.zeros_like(rows.ep)
    is_across = rows.ep * rows.tp > node_gpus(spec)
    is_split = np.where(rows.ep > WIDEST_EP, 3, 1 + is_across)
    return np.where(rows.ep > 1, is_split, 4)


def _hsdp(spec: Spec, rows: Skeletons) -> Bools:
    """Return where replicas of shards are smaller than a node."""
    is_small = rows.tp * rows.cp * rows.dp_shard < node_gpus(spec)
    return (rows.dp_shard > 1) & (rows.dp_replicate > 1) & is_small


def node_gpus(spec: Spec) -> int:
    """Return how many GPUs of a node may share a TP group.

    They are fewer than all where the mesh that is pinned splits a group over nodes that
    one might hold.
    """
    node, pinned = spec.cluster.gpus_per_node, spec.pins.tp_mesh
    if pinned is None:
        return node
    held = prod(pinned[: spec.cluster.node_levels])
    return held if held < gcd(prod(pinned), node) else node


LEVELS: dict[str, Callable[[Spec, Skeletons], Ints | Bools]] = {
    "tp": _tp,
    "pp": lambda _, rows: _degree(rows.pp, 8, DEEP),
    "adapters": lambda spec, rows: (
        (rows.tp * rows.pp > 1) & (spec.training.lora is not None)
    ),
    "vpp": lambda _, rows: rows.vpp > 1,
    "cp": _cp,
    "cp_tokens": _cp_tokens,
    "cp_sequence": _cp_sequence,
    "ep": _ep,
    "zero": lambda _, rows: np.maximum(rows.zero - 1, 0),
    "hsdp": _hsdp,
    "offload": lambda _, rows: rows.offload != KEEPS_ALL,
    "inputs": lambda _, rows: rows.recompute == FULL_CPU,
    "schedule": lambda _, rows: rows.schedule != ONE_F_ONE_B,
}
"""The level of each decision of `DECISIONS` in rows."""

SIZES = tuple(len(decision.words) for decision in DECISIONS)

EVERY_LEVEL = np.arange(max(SIZES))[:, None]
"""The levels that a decision may have at most, (levels, 1)."""

IS_SWITCH = np.array([decision.is_switch for decision in DECISIONS])


def levels(spec: Spec, rows: Skeletons) -> Ints:
    """Return the level of every decision in each row, (rows, decisions)."""
    columns = (LEVELS[decision.name](spec, rows) for decision in DECISIONS)
    return np.stack([*columns], axis=-1)


def distance(spec: Spec, rows: Skeletons) -> Ints:
    """Return the distance of each row from the nearest combination that was run.

    It is 0 where no combination is known. A row that is unlike the plan which a maker
    publishes for the very job is one further away.
    """
    by_number = _distances(tuple(spec.run_before.combinations))
    number = np.ravel_multi_index(tuple(levels(spec, rows).T), SIZES)
    return np.asarray(by_number[number] + unlike_maker(spec, rows).any(axis=0))


def unlike_maker(spec: Spec, rows: Skeletons) -> Bools:
    """Return in which of `makers_degrees` each row differs, (degrees, rows)."""
    known = makers_degrees(spec).items()
    other = [~np.isin(getattr(rows, name), codes) for name, codes in known]
    return np.array(other, dtype=bool).reshape(len(known), len(rows))


def makers_degrees(spec: Spec) -> dict[str, list[int]]:
    """Return degrees and ZeRO stages like those that a maker publishes for the job.

    Only plans for the very job count. Data parallelism is what they leave; ZeRO-0 and
    ZeRO-1 are alike.
    """
    published, batch = spec.run_before.published, spec.training.global_batch
    if published is None or not published.is_for(spec.cluster.gpus, batch):
        return {}
    codes = published_codes(spec)
    return {
        name: [0, 1] if name == "zero" and codes[name] < 2 else [codes[name]]
        for name in DEGREES_AND_ZERO
        if name in codes
    }


def is_rare(spec: Spec, rows: Skeletons) -> Bools:
    """Return the rows whose combination few have run, though others are common."""
    common = spec.run_before.common
    if not common:
        return np.zeros(len(rows), dtype=bool)
    numbers = np.ravel_multi_index(tuple(zip(*common, strict=True)), SIZES)
    return ~np.isin(np.ravel_multi_index(tuple(levels(spec, rows).T), SIZES), numbers)


@lru_cache(maxsize=16)
def _distances(texts: tuple[str, ...]) -> Ints:
    """Return the distance of all thinkable levels, numbered in their order."""
    nearest = np.full(prod(SIZES), len(SIZES) if texts else 0, dtype=np.int8)
    for text in texts:
        far, beyond = np.zeros(1, dtype=np.int8), is_beyond(EVERY_LEVEL, text)
        # Last decisions first: sums of few and many are quick, of many and few slow.
        for place, size in reversed([*enumerate(SIZES)]):
            far = np.add.outer(beyond[:size, place], far).ravel()
        np.minimum(nearest, far, out=nearest)
    return nearest.astype(np.int64)


def is_beyond(ours: Ints, combination: str) -> Bools:
    """Return the decisions of levels that a combination does not have, like `ours`."""
    other = np.array(codes_of(combination))
    return np.where(IS_SWITCH, ours > other, ours != other)


def percents(spec: Spec, rows: Skeletons) -> Ints:
    """Return the doubted step of each row in percents of its step."""
    return WHOLE + spec.run_before.percent * distance(spec, rows)


def combination(spec: Spec, plan: Plan) -> str:
    """Return the combination of decisions of a plan as text."""
    return text_of(tuple(levels(spec, to_unplaced_row(plan))[0].tolist()))


def familiarity(spec: Spec, plan: Plan) -> Familiarity | None:
    """Return how far a plan is from what was run; None where nothing is known."""
    counts = spec.run_before.combinations
    if not spec.run_before.percent:
        return None
    ours = levels(spec, to_unplaced_row(plan))[0]

    def rank(text: str) -> tuple[int, int, int]:
        differing = int((ours != np.array(codes_of(text))).sum())
        return int(is_beyond(ours, text).sum()), differing, -counts[text]

    nearest = min(counts, key=rank)
    beyond = np.flatnonzero(is_beyond(ours, nearest)).tolist()
    words = [DECISIONS[place].words[ours[place]] for place in beyond]
    return Familiarity(
        like=nearest,
        runs=counts[nearest],
        beyond=(*words, *_unlike_maker(spec, plan)),
        doubt=spec.run_before.share,
    )


def _unlike_maker(spec: Spec, plan: Plan) -> Iterator[str]:
    """Yield in words what a maker publishes for the very job, and a plan has not."""
    other = unlike_maker(spec, to_unplaced_row(plan))[:, 0]
    pairs = zip(makers_degrees(spec).items(), other, strict=True)
    told = [f"{name} {codes[-1]}" for (name, codes), is_other in pairs if is_other]
    if told:
        yield f"not {' and '.join(told)} as published"


def techniques(plan: Plan) -> frozenset[str]:
    """Return the fields by which a plan uses a technique."""
    return frozenset(field.name for field in _used(plan))


def names_of_techniques(plan: Plan) -> tuple[str, ...]:
    """Return the techniques beyond data parallelism that a plan has."""
    return tuple(field.technique for field in _used(plan))


def _used(plan: Plan) -> list[PlanField]:
    return [
        field
        for field in TECHNIQUES
        if getattr(plan, field.name) not in field.plain_values
    ]


def technique_names(plan: Plan) -> str:
    """Return the techniques of a plan in words, such as 'TP + PP'."""
    degrees = {"TP": plan.tp, "PP": plan.pp, "DP/ZeRO": plan.dp, "CP": plan.cp}
    return " + ".join(name for name, n in degrees.items() if n > 1) or "one GPU"


PUBLISHED_FIELDS = frozenset(
    ("tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "recompute", "offload")
)
"""Fields by which a plan is the published one, where its publication says them."""

DEGREES_AND_ZERO = ("tp", "pp", "cp", "ep", "zero")

NAMES = ("TP", "PP", "DP/ZeRO", "CP")


def techniques_of(rows: Skeletons) -> Ints:
    """Return the set of techniques of each row, one bit for each of `NAMES`."""
    bits = np.stack([rows.tp > 1, rows.pp > 1, rows.dp > 1, rows.cp > 1])
    result: Ints = bits.T @ np.array([1, 2, 4, 8])
    return result


def name_of(techniques: int) -> str:
    """Return the name of a set of techniques, such as 'TP + DP/ZeRO'."""
    used = [name for i, name in enumerate(NAMES) if techniques >> i & 1]
    return " + ".join(used) or "one GPU"


def used_techniques(rows: Skeletons) -> dict[str, Bools]:
    """Return the techniques beyond data parallelism that each row has, by name."""
    return {
        field.technique: ~np.isin(
            getattr(rows, field.name), list(map(field.encoded, field.plain_values))
        )
        for field in TECHNIQUES
    }


def _techniques(_spec: Spec, rows: Skeletons) -> Ints:
    used = used_techniques(rows).values()
    return np.asarray(np.sum(list(used), axis=0, dtype=np.int64))


def _is_odd(_spec: Spec, rows: Skeletons) -> Bools:
    """Return the rows whose micro-batch is no power of two."""
    return np.asarray(rows.micro_batch & (rows.micro_batch - 1) != 0)


def _unlike_published(spec: Spec, rows: Skeletons) -> Bools:
    """Return the rows that are not the plan that a maker publishes for the job."""
    other = np.zeros(len(rows), dtype=bool)
    for name, code in published_codes(spec).items():
        other |= getattr(rows, name) != code
    return other


def published_codes(spec: Spec) -> dict[str, int]:
    """Return the codes of the fields that a maker publishes for the job, if any."""
    published = spec.run_before.published
    asked = published.on(spec.cluster.gpus) if published else {}
    return {
        name: FIELD[name].encoded(asked[name])
        for name in sorted(PUBLISHED_FIELDS & asked.keys())
        if isinstance(asked[name], int | str)
    }


OF_ROWS: dict[Criterion, Callable[[Spec, Skeletons], Ints | Bools]] = {
    "beyond_runs": distance,
    "unlike_published": _unlike_published,
    "rarely_run": is_rare,
    "deep_pipeline": lambda _, rows: rows.pp > DEEP,
    "techniques": _techniques,
    "replicated_shards": lambda _, rows: (rows.dp_shard > 1) & (rows.dp_replicate > 1),
    "offload": lambda _, rows: (
        (rows.offload != KEEPS_ALL) | (rows.recompute == FULL_CPU)
    ),
    "short_context_parallel": lambda spec, rows: (
        (rows.cp > 1) & (spec.training.seq_len < LONG_CONTEXT)
    ),
    "zero3_in_pipeline": lambda _, rows: (rows.zero == 3) & (rows.pp > 1),
    "odd_micro_batch": _is_odd,
}
"""Criteria that depend on the skeleton alone."""


OF_PLAN: dict[Criterion, Callable[[Plan], bool]] = {
    "uneven_stages": lambda plan: len({stage.layers for stage in plan.stages}) > 1,
    "partial_recompute": lambda plan: plan.recomputes_some_layers,
}
"""Criteria that depend on how the layers of the skeleton are split."""


def complexity(
    spec: Spec, plan: Plan, criteria: tuple[Criterion, ...]
) -> tuple[int, ...]:
    """Return how simple a plan is by each of some criteria; less is simpler."""
    row = to_unplaced_row(plan)
    return tuple(
        int(OF_PLAN[name](plan))
        if name in OF_PLAN
        else int(OF_ROWS[name](spec, row)[0])
        for name in criteria
    )
