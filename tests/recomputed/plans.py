"""Random plans: a random legal row of the lattice of a random spec, and its split."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import numpy as np

from meshwright.cost.job import Efficiency, Job, make_job
from meshwright.frameworks.base.framework import ALL_LAYERS, ONE_NUMBER
from meshwright.frameworks.base.registry import framework_of
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons, Split, to_plan
from meshwright.spec.plan_fields import (
    FULL,
    GPIPE,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    RECOMPUTE_MODES,
    SCHEDULES,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
)
from tests.helpers.strategies import FRAMEWORKS
from tests.recomputed.specs import packed, picking, random_spec

COLUMNS = ("tp", "cp", "ep", "pp", "vpp", "zero", "schedule", "offload", "recompute",
    "dp_replicate", "dp_shard",
)  # fmt: skip
"""Columns whose values are drawn before the row is: most rows have the usual ones."""

UNBOUND = ["generic", "ideal"]
"""No framework at all: plans that none of the others can launch."""

WANTED: list[tuple[list[str], str, int]] = [
    (FRAMEWORKS, "tp", 1),
    (FRAMEWORKS, "tp", 1),
    (FRAMEWORKS, "tp", 2),
    (FRAMEWORKS, "ep", 2),
    (["megatron", "torchtitan"], "vpp", 2),
    (["megatron", "torchtitan", "deepspeed", "fsdp"], "cp", 2),
    (["torchtitan"], "schedule", GPIPE),
    (["torchtitan"], "schedule", ZERO_BUBBLE_H1),
    (["megatron", "deepspeed"], "offload", OPTIMIZER),
    (["deepspeed"], "offload", GRADIENTS),
    (["deepspeed", "torchtitan", "fsdp"], "offload", PARAMETERS),
    (UNBOUND, "tp", 1),
    (UNBOUND, "zero", 2),
    (UNBOUND, "offload", OPTIMIZER),
]
"""Frameworks, and the least value of a column that a row of theirs should have."""

WITH_MODULES = [(["megatron", "ideal"], "recompute_modules", 1)]
"""The same for seeds from `FIRST_WITH_MODULES` on: recomputed by modules."""

FIRST_WITH_MODULES = 10_000

WITH_SEGMENTS = [(["megatron", "ideal"], "recompute_segment", 2)]
"""The same for seeds from `FIRST_WITH_SEGMENTS` on; no other plan has segments."""

FIRST_WITH_SEGMENTS = 20_000


WITH_LORA = [
    (["megatron", "fsdp", "deepspeed", *UNBOUND], "tp", 1),
    (["megatron", "deepspeed", *UNBOUND], "pp", 2),
    (["megatron", "deepspeed", "fsdp", *UNBOUND], "zero", 2),
    (["megatron", "deepspeed", "fsdp", *UNBOUND], "offload", OPTIMIZER),
    (["megatron", "ideal"], "recompute_modules", 1),
]
"""The same for seeds from `FIRST_WITH_LORA` on, whose weights are frozen."""

FIRST_WITH_LORA = 30_000

WITH_MUON = [
    (["megatron", "deepspeed", *UNBOUND], "tp", 1),
    (["megatron", *UNBOUND], "ep", 2),
]
"""The same for seeds from `FIRST_WITH_MUON` on."""

FIRST_WITH_MUON = 40_000

WITH_ACTIVATIONS_OFFLOADED = [
    (["megatron", *UNBOUND], "tp", 1),
    (["megatron", *UNBOUND], "offload", OPTIMIZER),
]
"""The same for seeds from `FIRST_OFFLOADED` on."""

FIRST_OFFLOADED = 50_000

WITH_ACTIVATIONS_SPLIT = [(["megatron", "deepspeed", *UNBOUND], "recompute", FULL)]
"""The same for seeds from `FIRST_SPLIT` on."""

FIRST_SPLIT = 60_000

WITH_FRACTION = [
    (["megatron", "deepspeed", *UNBOUND], "offload", OPTIMIZER),
    (["deepspeed", *UNBOUND], "offload", GRADIENTS),
]
"""The same for seeds from `FIRST_WITH_FRACTION` on: a part of the optimizer leaves."""

FIRST_WITH_FRACTION = 70_000

WITH_SPLIT_EXPERTS = [(["megatron", "ideal"], "etp", 2)]
"""The same for seeds from `FIRST_WITH_SPLIT_EXPERTS` on: tensor parallelism splits
experts."""

FIRST_WITH_SPLIT_EXPERTS = 80_000


WITH_V = [(["torchtitan"], "schedule", ZERO_BUBBLE_V)]
"""The same for seeds from `FIRST_WITH_V` on, whose stages make a V."""

FIRST_WITH_V = 90_000

PACKED = [
    (["megatron"], "cp", 2),
    (["megatron"], "cp", 2),
    (["megatron"], "recompute_modules", 1),
    (FRAMEWORKS, "tp", 1),
]
"""The same for seeds from `FIRST_PACKED` on, whose sequences are of several texts."""

FIRST_PACKED = 100_000

PICKING = [
    (["megatron"], "cp", 2),
    (["megatron"], "tp", 2),
    (["megatron", "torchtitan", *UNBOUND], "tp", 1),
    (["megatron", "ideal"], "recompute_modules", 1),
]
"""The same for seeds from `FIRST_PICKING` on, whose attention an indexer picks for."""

FIRST_PICKING = 110_000


def random_plan(seed: int) -> tuple[Job, Plan]:
    """Return a job at random efficiencies, and a plan that its rules allow."""
    random = Random(seed)
    wanted = WANTED if seed < FIRST_WITH_MODULES else WITH_MODULES
    has_muon = FIRST_WITH_MUON <= seed < FIRST_OFFLOADED
    has_lora = FIRST_WITH_LORA <= seed < FIRST_WITH_MUON
    if has_segments := FIRST_WITH_SEGMENTS <= seed < FIRST_WITH_LORA:
        wanted = WITH_SEGMENTS
    wanted = WITH_LORA if has_lora else WITH_MUON if has_muon else wanted
    if leaves := FIRST_OFFLOADED <= seed < FIRST_SPLIT:
        wanted = WITH_ACTIVATIONS_OFFLOADED
    if splits := FIRST_SPLIT <= seed < FIRST_WITH_FRACTION:
        wanted = WITH_ACTIVATIONS_SPLIT
    if has_fraction := FIRST_WITH_FRACTION <= seed < FIRST_WITH_SPLIT_EXPERTS:
        wanted = WITH_FRACTION
    if splits_experts := FIRST_WITH_SPLIT_EXPERTS <= seed < FIRST_WITH_V:
        wanted = WITH_SPLIT_EXPERTS
    if has_v := FIRST_WITH_V <= seed < FIRST_PACKED:
        wanted = WITH_V
    wanted = PACKED if seed >= FIRST_PACKED else wanted
    wanted = PICKING if seed >= FIRST_PICKING else wanted
    frameworks, column, least = random.choice(wanted)
    while True:
        has_host = column == "offload" or random.random() < 0.3 or leaves
        kinds = has_lora, has_muon, leaves, splits, has_fraction, splits_experts
        spec = random_spec(random, frameworks, has_host, *kinds)
        if seed >= FIRST_PICKING:
            spec = picking(random, spec)
        elif seed >= FIRST_PACKED:
            training = packed(random, spec.training)
            spec = spec.model_copy(update={"training": training})
            if column == "recompute_modules":
                named = "mla_up_proj" if spec.model.mla is not None else "core_attn"
                pins = spec.pins.model_copy(update={"recompute_modules": (named,)})
                spec = spec.model_copy(update={"pins": pins})
        if has_v:
            named = SCHEDULES[ZERO_BUBBLE_V + seed % 2]
            pins = spec.pins.model_copy(update={"schedule": (named,)})
            spec = spec.model_copy(update={"pins": pins})
        job = make_job(spec, random_efficiency(random))
        lattice = build_lattice(job)
        if len(lattice):
            rows, row = _row(lattice, random, column, least, has_segments)
            place = lattice.table.place(int(rows.mesh[row]))
            return job, to_plan(rows, row, _split(job, rows, row, random), place)


def _row(
    lattice: Lattice, random: Random, column: str, least: int, has_segments: bool
) -> tuple[Skeletons, int]:
    """Return a random row, whose column has at least a value where any row has."""
    rows = lattice.rows
    usual = np.flatnonzero((rows.recompute_segment == 1) | has_segments)
    reaches = usual[getattr(rows, column)[usual] >= least]
    index = reaches if len(reaches) else usual
    for name in random.sample(COLUMNS, k=len(COLUMNS)):
        found = getattr(rows, name)[index]
        index = index[found == random.choice(np.unique(found).tolist())]
    chosen = index[random.randrange(len(index))]
    placed, _ = lattice.on_meshes(np.array([chosen]), None)
    return placed, random.randrange(len(placed))


def _split(job: Job, rows: Skeletons, row: int, random: Random) -> Split:
    model, stages = job.spec.model, int(rows.pp[row])
    leading = max(model.first_dense_layers, 1)
    partition = framework_of(job.spec).partition
    if partition is not None:
        layers = list(partition.layers(model, stages))
    elif rows.vpp[row] > 1:
        largest = math.ceil(model.n_layers / stages)
        short = random.sample(range(stages), largest * stages - model.n_layers)
        layers = [largest - (stage in short) for stage in range(stages)]
    else:
        cuts = random.sample(range(leading, model.n_layers), stages - 1)
        layers = [b - a for a, b in pairwise([0, *sorted(cuts), model.n_layers])]
    recomputed = [0] * stages
    if rows.recompute[row]:
        recomputed = [random.randint(0, n) for n in layers]
        recomputed[random.randrange(stages)] = 1
        mode = RECOMPUTE_MODES[int(rows.recompute[row])]
        segment = int(rows.recompute_segment[row])
        scope = framework_of(job.spec).recompute_scope(mode, segment).code
        if scope == ALL_LAYERS:
            recomputed = layers
        if scope == ONE_NUMBER:
            chunks = int(rows.vpp[row])
            count = random.randint(1, max(layers) // chunks)
            recomputed = [min(chunks * count, n) for n in layers]
    return Split(np.array(layers), np.array(recomputed))


LIMITS = Efficiency.model_json_schema()["properties"]


def random_efficiency(random: Random) -> Efficiency:
    """Return efficiencies anywhere within their limits, so that all terms matter.

    Half of all hosts are so fast that small kernels wait for nobody.
    """
    drawn = {}
    for name, limit in LIMITS.items():
        least, most = math.log(limit["minimum"]), math.log(limit["maximum"])
        drawn[name] = math.exp(random.uniform(least, most))
    if random.random() < 0.5:
        drawn |= {"dispatch_s": 1e-6, "launch_s": 1e-7, "microbatch_s": 1e-5}
    return Efficiency(**drawn)
