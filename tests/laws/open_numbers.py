"""The machines and batch that are chosen, and their plan, are those of brute force."""

from __future__ import annotations

import math
from random import Random

from meshwright.loading.load import load_question
from meshwright.planner.options import Options
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Choice
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.goals import SIMPLEST
from meshwright.spec.open_spec import OpenSpec
from meshwright.sweeps.open_choices import solve_open
from tests.helpers.open_oracle import WalkedChoice, best_value, open_data, walked
from tests.helpers.random_rules import random_rules
from tests.laws.brute_force import with_known_runs
from tests.laws.law import Checks, Data, Law

OFF = 1e-5
"""Share of a step time that rounding to ticks may move a comparison of choices."""


def open_numbers_agree(data: Data, choice: Random) -> Checks:
    """Ask with random rules of the user, which bind at one of the choices.

    Some runs are known, or none; choices are then compared by doubted steps where the
    objective has a tolerance for simplicity.
    """
    profile = with_known_runs(data["framework"], choice)
    question = _question(data)
    rules = []
    if choice.random() < 0.7:
        rules = random_rules(choice.choice(question.choices), choice)
    question = _question({**data, "rules": [*data["rules"], *rules]})
    within = question.choices[0].objective.tolerance
    options = Options(tolerance=within, profile=profile)
    every, outcome = walked(question, profile), solve_open(question, options)
    asked = f"rules {[rule.that for rule in question.choices[0].rules]}: "
    for holds, sentence in (
        *_choice_agrees(question, every, outcome),
        *_told(every, outcome),
    ):
        yield holds, asked + sentence


def _question(data: Data) -> OpenSpec:
    question = load_question(data)
    assert isinstance(question, OpenSpec)
    return question


def _choice_agrees(
    question: OpenSpec, every: list[WalkedChoice], outcome: Outcome
) -> Checks:
    """Compare the choice that is made, and its plan."""
    assert outcome.open is not None
    walks, closed = [one.step_s for one in every], outcome.open.closed
    # Rules on splits are tested on so many splits; what that leaves open is said.
    may_be_open = bool(split_dependent(question.choices[0])) and closed.undecided > 0
    if all(math.isinf(walk) for walk in walks):
        is_right = outcome.status == ("unknown" if may_be_open else "infeasible")
        yield is_right, f"{outcome.status}, but no plan fits"
        count = closed.none_fits + (closed.undecided if may_be_open else 0)
        yield count == len(every), "not all are told to fit none"
        return
    if may_be_open and outcome.status in ("feasible", "unknown"):
        return
    yield outcome.status == "optimal", f"{outcome.status}, brute force {walks}"
    if outcome.best is None or outcome.open.chosen is None:
        return
    levels = [
        (level.metric, level.tolerance)
        for level in question.choices[0].objective.levels
        if level.metric != SIMPLEST
    ]
    found = every[outcome.open.chosen.number]
    step_s, value = _compared_s(outcome.open.chosen), found.value(levels[-1][0])
    yield (
        _is_near(step_s, found.step_s),
        f"{step_s!r} s, brute force {found.step_s!r} s",
    )
    within = question.choices[0].objective.tolerance
    is_doubted = outcome.open.chosen.doubted_s is not None
    best_s = outcome.best.doubted_s if is_doubted else outcome.best.step_s
    yield (
        best_s <= found.step_s * (1 + within + OFF),
        f"the best plan takes {best_s!r} s",
    )
    least, most = (best_value(every, levels, off) for off in (OFF, -OFF))
    told = f"{levels[-1][0]} is {value!r}, brute force {least!r} to {most!r}"
    yield least * (1 - OFF) <= value <= most * (1 + OFF), told


def _told(every: list[WalkedChoice], outcome: Outcome) -> Checks:
    """Hold what is told of every choice against its walk."""
    assert outcome.open is not None
    for told, walk in zip(outcome.open.choices, every, strict=True):
        sentence = (
            f"choice {told.number} is {told.verdict}, brute force {walk.step_s!r} s"
        )
        if told.verdict == "solved":
            takes_s = _compared_s(told)
            yield _is_near(takes_s, walk.step_s), f"{sentence}, told {takes_s!r} s"
        if told.verdict == "none_fits":
            yield math.isinf(walk.step_s), sentence
        is_bound = told.bound_s <= walk.step_s * (1 + OFF)
        yield is_bound, f"{sentence}, the bound is {told.bound_s!r} s"


def _compared_s(told: Choice) -> float:
    """Return the step by which a solved choice is compared."""
    return told.doubted_s or told.step_s or 0.0


def _is_near(step_s: float, walked_s: float) -> bool:
    return math.isclose(step_s, walked_s, rel_tol=OFF)


LEFT_OPEN: Data = {
    "model": {
        "n_layers": 3,
        "d_model": 768,
        "n_heads": 12,
        "n_kv_heads": 12,
        "d_ff": 1536,
        "vocab": 8000,
        "gated_mlp": False,
        "tied_embeddings": True,
        "learned_positions": 8192,
        "dropout": False,
    },
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 4.714882443044168,
                "memory_gb_s": 3000.0,
                "peak_tflops": {"bf16": 78.0, "fp8": 78.0, "fp16": 78.0, "fp32": 624.0},
                "tdp_w": 400,
            },
            "levels": [
                {
                    "name": "level0",
                    "size": 2,
                    "gb_s": 31.5,
                    "latency_us": 2.0,
                    "uplink": "shared",
                }
            ],
        }
    },
    "framework": "internevo",
    "training": {
        "seq_len": 960,
        "global_batch": [15, 16],
        "attention": "flash",
        "precision": "bf16",
        "cuda_graphs": "outside_experts",
        "expandable_segments": False,
    },
    "limits": {},
    "pins": {
        "cp": 1,
        "ep": 1,
        "vpp": 1,
        "recompute": ["none", "full"],
        "dp_replicate": 1,
        "pp": {"max": 4},
    },
    "objective": [{"gpus": 0.5}, {"step_s": 0.05}, "simplest"],
    "rules": [{"that": "global_batch % 4 == 0"}],
    "run": {"gpu_hour_price": 2.0},
}
"""It draws a rule on the links of splits, of which too many would have to be tested:
the plan of 16 sequences is found and not proven."""

LAW = Law(
    "open_numbers",
    "of open machines and batches, the choice and its plan are those of brute force",
    open_data(),
    open_numbers_agree,
    tested=30,
    always=(LEFT_OPEN,),
)
