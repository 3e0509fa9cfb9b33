"""Random plans: a random legal row of the lattice of a random spec, and its split."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from meshwright.cost.efficiency import Efficiency
from meshwright.cost.price import Split
from meshwright.decode import to_plan
from meshwright.job import Job, make_job
from meshwright.lattice import Lattice, build_lattice
from meshwright.meshes import AS_LISTED
from meshwright.plan import Plan
from meshwright.skeleton import Skeletons
from meshwright.spec.spec import Spec
from tests.strategies import FRAMEWORKS, spec_data

RARE = ("tp", "cp", "ep", "pp", "vpp", "zero", "schedule", "offload", "recompute",
    "dp_replicate", "dp_shard",
)  # fmt: skip
"""Columns whose values are drawn before the row is: most rows have the usual ones."""

OFTEN = [*FRAMEWORKS, "torchtitan", "deepspeed"]
"""Frameworks; only one has ZB-H1, and only one gradients on hosts, and drives."""

PINS = {"pp": {"max": 4}, "recompute_layers": "any"}


@st.composite
def jobs_and_plans(draw: st.DrawFn) -> tuple[Job, Plan]:
    """Return a job at random efficiencies, and a plan that its rules allow."""
    random = draw(st.randoms(use_true_random=True))
    data = draw(spec_data())
    data |= {"pins": PINS, "limits": {}, "framework": random.choice(OFTEN)}
    data["model"] |= _model(random, data["model"])
    data["training"] |= _training(random)
    if random.random() < 0.5:
        _add_host(random, data)
    job = make_job(Spec.model_validate(data), _efficiency(random))
    return job, random_plan(job, random)


def random_plan(job: Job, random: Random) -> Plan:
    """Return a random row on a random mesh, with a random split of its layers."""
    lattice = build_lattice(job)
    assume(len(lattice))
    rows, row = _row(lattice, random)
    split = _split(job, rows, row, random)
    place = lattice.table.place(int(rows.mesh[row]))
    return to_plan(rows, row, split, place)


def _row(lattice: Lattice, random: Random) -> tuple[Skeletons, int]:
    rows = lattice.rows
    index = np.arange(len(lattice))
    first = random.choice(["offload", "offload", "schedule", "vpp", "tp"])
    for name in (first, *random.sample(RARE, k=len(RARE))):
        column = getattr(rows, name)
        value = random.choice(np.unique(column[index]).tolist())
        index = index[column[index] == value]
    own = index[random.randrange(len(index))]
    placed, _ = lattice.on_meshes(np.array([own]), AS_LISTED)
    return placed, random.randrange(len(placed))


def _split(job: Job, rows: Skeletons, row: int, random: Random) -> Split:
    model, stages = job.spec.model, int(rows.pp[row])
    leading = max(model.first_dense_layers, 1)
    if rows.vpp[row] > 1:
        layers = [model.n_layers // stages] * stages
    else:
        cuts = random.sample(range(leading, model.n_layers), stages - 1)
        ends = [0, *sorted(cuts), model.n_layers]
        layers = [b - a for a, b in pairwise(ends)]
    recomputed = [0] * stages
    if rows.recompute[row]:
        recomputed = [random.randint(0, n) for n in layers]
        recomputed[random.randrange(stages)] = 1
    return Split(np.array(layers), np.array(recomputed))


def _model(random: Random, usual: dict[str, Any]) -> dict[str, Any]:
    """Return changes to a model: norms, biases, positions, latent attention."""
    parallel = random.random() < 0.2
    changes: dict[str, Any] = {
        "norm": random.choice(["layernorm", "rmsnorm"]),
        "parallel_residual": parallel,
        "norms_per_layer": random.choice([1, 2] if parallel else [2, 2, 4]),
        "embedding_norm": random.random() < 0.2,
        "vocab": usual["vocab"] + random.choice([0, 0, 3]),
    }
    if not usual["learned_positions"]:
        changes["alibi"] = random.random() < 0.2
    if random.random() < 0.25:
        changes |= _latent(random, usual)
    else:
        changes["bias"] = random.choice(["none", "qkv", "all"])
        changes["qk_norm"] = random.random() < 0.3
        if random.random() < 0.2:
            changes["head_dim"] = random.choice([36, 80])
    if "moe" in usual and random.random() < 0.6:
        moe = usual["moe"]
        changes["moe"] = moe | {
            "capacity_factor": random.choice([1.25, moe["n_experts"] / moe["top_k"]]),
            "router_bias": random.random() < 0.5,
            "shared_d_ff": random.choice([0, usual["d_model"]]),
        }
    return changes


def _latent(random: Random, usual: dict[str, Any]) -> dict[str, Any]:
    return {
        "n_kv_heads": usual["n_heads"],
        "bias": "none",
        "mla": {
            "q_rank": random.choice([0, 96]),
            "kv_rank": random.choice([64, 128]),
            "rope_dim": random.choice([16, 32]),
            "nope_dim": random.choice([32, 64]),
            "v_dim": random.choice([48, 64]),
        },
    }


def _training(random: Random) -> dict[str, Any]:
    return {
        "gradients": random.choice([None, "bf16", "fp32"]),
        "optimizer": random.choice(
            ["adamw", "adamw", "adamw-8bit", "sgd", "adafactor"]
        ),
        "fused_kernels": random.choice([None, None, "all", "norms", "none"]),
        "fused_loss": random.choice([None, None, True, False]),
    }


def _add_host(random: Random, data: dict[str, Any]) -> None:
    """Add a machine that state may be offloaded to; only DeepSpeed's has drives."""
    has_drives = data["framework"] == "deepspeed" and random.random() < 0.7
    data["training"]["offload_to"] = "nvme" if has_drives else "cpu"
    data["cluster"]["topology"]["host"] = {
        "memory_gib": 1_000.0,
        "pcie_gb_s": random.choice([12.0, 55.0]),
        "memory_gb_s": random.choice([50.0, 4_000.0]),
    } | ({"nvme_gib": 9_000.0, "nvme_gb_s": 25.0} if has_drives else {})


def _efficiency(random: Random) -> Efficiency:
    """Return efficiencies anywhere within their limits, so that all terms matter.

    Half of all hosts are so fast that small kernels wait for nobody.
    """
    limits = Efficiency.model_json_schema()["properties"]
    drawn = {}
    for name, own in limits.items():
        least, most = math.log(own["minimum"]), math.log(own["maximum"])
        drawn[name] = math.exp(random.uniform(least, most))
    if random.random() < 0.5:
        drawn |= {"dispatch_s": 1e-6, "launch_s": 1e-7, "microbatch_s": 1e-5}
    return Efficiency(**drawn)
