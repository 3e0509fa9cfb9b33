"""Searches for the best plan side by side, on the same problems and the same terms.

- Meshwright: the fastest plan with its proof.
- Grid: every skeleton on every mesh, priced one after the other by the same model, with
  layers as even as memory allows. Its best is the best of these splits alone.
- One model: the same rows as one CP-SAT model with a literal a row, nothing bounded
  away.
- Calculon's `llm-optimal-execution`, where it knows the model: each one's best plan is
  priced by the other.
- Galvatron's search, on the one problem whose measured costs it has.

What Calculon cannot say (context parallelism, ZeRO 2 and 3, offload) is pinned away;
its overlaps and fused activations, which runs of these models did not have, are off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ortools.sat.python import cp_model
from rich.table import Table

import meshwright as mw
from meshwright.check.check import broken_rules, predict
from meshwright.cost.profile import load_profile
from meshwright.planner.candidates import Candidates, Pricing, Unplaced, place_and_bound
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.memory_fit import MemoryFit, stages_by_pp
from meshwright.planner.split_bounds import construct_split, with_all_recomputed
from meshwright.plans.skeletons import to_plan

Row = dict[str, Any]
Ask = Callable[[str, list[Row]], list[Row] | str]
"""Asks a peer about jobs: its answers, or why it does not run."""

PINS = {"cp": 1, "zero": [0, 1], "offload": "none", "schedule": "1f1b"}
BUNDLED = (
    "llama3-8b-2xh100-nvlink",
    "llama2-13b-8xa100",
    "llama3-70b-16xh100",
    "llama3-70b-128xa100",
)
MOST_IN_GRID = 20_000
"""Plans that a grid prices; of more it is only said how many they are."""

GALVATRON: Row = {
    "model": "llama2-7b",
    "cluster": "8xA100-40GB",
    "framework": "megatron",
    "training": {"seq_len": 2048, "global_batch": 64},
    "pins": {"cp": 1, "offload": "none", "schedule": "1f1b"},
}
"""The problem of Galvatron's bundled profile, on the GPU that its memory limit fits."""

RECOMPUTE = {"attn_only": "selective"}


def searches(jobs: list[Row], ask: Ask) -> Table:
    """Return the table: the first job is a problem for all, bundled specs for ours."""
    table = Table(title="Searches for the fastest plan of the same problem")
    for heading in (
        "problem",
        "search",
        "plans",
        "CPU s",
        "step s",
        "our step s",
        "shown",
    ):
        is_text = heading in ("problem", "search", "shown")
        table.add_column(heading, justify="left" if is_text else "right")
    first = as_spec(jobs[0])
    named = {name: mw.load(name, mw.Spec) for name in BUNDLED}
    for name, spec in {jobs[0]["model"]["name"]: first, **named}.items():
        for row in ours(spec):
            table.add_row(name, *row)
    for row in of_calculon(jobs[0], first, ask):
        table.add_row(jobs[0]["model"]["name"], *row)
    spec = mw.load(GALVATRON, mw.Spec)
    for row in (*ours(spec)[:1], of_galvatron(spec, ask)):
        table.add_row("llama2-7b, 8 GPUs", *row)
    return table


def as_spec(job: Row) -> mw.Spec:
    """Return the problem of a run: its model, GPUs and batch, without its plan."""
    model, run = job["model"], job["config"]
    shape = {name: model[name] for name in ("n_layers", "d_model", "n_heads", "d_ff")}
    return mw.load(
        {
            "model": shape | {"vocab": model["vocab"], "gated_mlp": model["gated_mlp"]},
            "cluster": {
                "topology": "dgx-a100",
                "count": job["hardware"]["n_gpus"] // 8,
            },
            "framework": "megatron",
            "training": {
                "seq_len": model["seq_len"],
                "global_batch": run["global_batch"],
                "attention": "plain",
            },
            "pins": PINS,
        },
        mw.Spec,
    )


def ours(spec: mw.Spec) -> list[tuple[str, ...]]:
    """Return the rows of the searches by our model."""
    # Modules and tables are loaded by a solve that is not counted.
    mw.solve(spec, fastest=True, by_kind=False, safety=False)
    start = time.process_time()
    found = mw.solve(spec, fastest=True, by_kind=False, safety=False)
    took = time.process_time() - start
    assert found.best is not None
    assert found.certificate is not None
    count = found.certificate.counts.skeletons
    told: list[tuple[str, str, float, float | None, str]] = [
        ("Meshwright", f"{count:,}", took, found.best.step_s, "optimal, certificate")
    ]
    for name, search, shown in (
        ("grid", grid, "best of these splits"),
        ("one CP-SAT model", one_model, "best of these splits"),
    ):
        start = time.process_time()
        prepared = prepare(load_profile("measured").job(spec))
        plans, step_s = search(prepared, every_row(prepared))
        told.append((name, f"{plans:,}", time.process_time() - start, step_s, shown))
    return [
        (name, count, f"{took:.2f}", f"{step_s:.4f}", f"{step_s:.4f}", shown)
        if step_s is not None
        else (name, count, "", "not run", "", "")
        for name, count, took, step_s, shown in told
    ]


def every_row(prepared: Prepared) -> Candidates:
    """Return all skeletons that fit, on all their meshes, with a split of each."""
    job, lattice = prepared.job, prepared.lattice
    number = np.arange(len(lattice))
    memory = MemoryFit(job, lattice.take(number))
    fits = memory.is_fitting()
    within = np.flatnonzero(fits)
    batch = Unplaced(
        number[within], memory.costs(within), fits[within], np.zeros(len(within), bool)
    )
    return place_and_bound(job, lattice, batch, None, None, Pricing(job.spec))


def grid(prepared: Prepared, rows: Candidates) -> tuple[int, float | None]:
    """Return how many plans were priced, and the least step of one that is legal."""
    job, best = prepared.job, float("inf")
    if len(rows) > MOST_IN_GRID:
        return len(rows), None
    for index, stages in stages_by_pp(job, rows.costs):
        layers, recomputed = construct_split(stages)
        for place, row in enumerate(index.tolist()):
            one = rows.costs.rows.take(np.array([row]))
            split = with_all_recomputed(job, one, layers[place], recomputed[place])
            plan = to_plan(one, 0, split, prepared.lattice.place(one))
            step_s, _ = predict(job, plan)
            if step_s < best and not broken_rules(job, plan):
                best = step_s
    return len(rows), best


def one_model(_prepared: Prepared, rows: Candidates) -> tuple[int, float]:
    """Return how many literals one model has, and the least step that it chooses."""
    model, within = cp_model.CpModel(), np.flatnonzero(np.isfinite(rows.upper))
    chosen = [model.new_bool_var("") for _ in within]
    model.add_exactly_one(chosen)
    ticks = rows.upper[within].astype(np.int64).tolist()
    model.minimize(cp_model.LinearExpr.weighted_sum(chosen, ticks))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    return len(chosen), solver.objective_value * TICK_S


def of_calculon(job: Row, spec: mw.Spec, ask: Ask) -> list[tuple[str, ...]]:
    """Return the rows of Calculon's search, and of our fastest plan at its price."""
    found = ask("calculon_search", [job])
    if isinstance(found, str):
        return [("Calculon", found, "", "", "", "")]
    theirs, best = found[0], mw.solve(spec, fastest=True, by_kind=False).best
    assert best is not None
    plan = best.plan
    run = {
        **job["config"],
        **{name: getattr(plan, name) for name in ("tp", "pp", "micro_batch")},
        **{"vp": plan.vpp, "dp": plan.dp, "zero_stage": plan.zero},
        **{"sp": plan.sequence_parallel, "recompute": plan.recompute},
    }
    is_whole = all(one.recompute_layers in (0, one.layers) for one in plan.stages)
    priced = ask("calculon", [job | {"config": run}]) if is_whole else "not expressed"
    theirs_of_ours = f"{priced[0]['step_s']:.4f}" if isinstance(priced, list) else "-"
    return [
        (
            *("Calculon", f"{theirs['plans']:,}", f"{theirs['cpu_s']:.2f}"),
            *(f"{theirs['step_s']:.4f}", priced_by_us(spec, theirs["plan"])),
            "best of what it lists",
        ),
        (
            *("Meshwright's, at Calculon's price", "", "", theirs_of_ours),
            *(f"{best.step_s:.4f}", ""),
        ),
    ]


def of_galvatron(spec: mw.Spec, ask: Ask) -> tuple[str, ...]:
    """Return the row of Galvatron's search, whose layers may have unlike degrees.

    Its ZeRO-2 beside pipelines is priced as ZeRO-1: Megatron-LM has no such plan.
    """
    found = ask("galvatron_search", [GALVATRON["training"]])
    if isinstance(found, str):
        return ("Galvatron", found, "", "", "", "")
    best = found[0]
    first, *others = best["layers"]
    by_ours = "not expressed"
    if all(one == first for one in others) and first["ulysses"] == 1:
        plan = {name: first[name] for name in ("tp", "pp", "zero", "recompute")}
        plan |= {"microbatches": best["microbatches"]}
        plan |= {"zero": 1} if plan["pp"] > 1 and plan["zero"] == 2 else {}
        by_ours = priced_by_us(spec, plan)
    return (
        *("Galvatron", "", f"{best['cpu_s']:.2f}", f"{best['step_s']:.4f}"),
        *(by_ours, "best of its strategies by layer"),
    )


def priced_by_us(spec: mw.Spec, plan: Row) -> str:
    """Return the step of a plan of Calculon by our model, or that it does not fit."""
    pins = (
        PINS | plan | {"recompute": RECOMPUTE.get(plan["recompute"], plan["recompute"])}
    )
    asked = spec.model_dump(mode="json") | {"pins": pins}
    found = mw.solve(mw.load(asked, mw.Spec), fastest=True, safety=False, repair=False)
    return f"{found.best.step_s:.4f}" if found.best else "does not fit"
