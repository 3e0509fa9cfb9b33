"""Every argument of every public function, given what it cannot be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.api.arguments import LARGEST_SEED, RANGES
from tests.helpers.extent import gate

SPEC = "gpt2-xl-2xh100-nvlink"
DATA = Path(__file__).parents[1] / "data"
DEAD = DATA / "out_of_memory.log"
"""The log of a run that ran out of memory."""

SWEEP = {"base": SPEC, "sweep": {"training.seq_len": [2048]}}

RUN = {
    "model": "qwen2.5-0.5b", "tokens": "1B", "count": 1, "workers": 1,
    "prices": str(DATA / "prices.yaml"),
}  # fmt: skip

BAD: list[Any] = [
    None, math.nan, -1, 0, 10**30, -(10**30), 1.5, math.inf, True, "x", "", "\0", b"x",
    [], (), [None], {}, {"x": None}, {"": {"": []}}, object(),
]  # fmt: skip

BRIEFLY = [math.nan, -1, 1.5, True, "x", "\0", b"x", [None], {"x": None}, object()]
"""One of each kind: what is no mistake of an argument takes the slow functions time."""

pytestmark = pytest.mark.usefixtures("kept_processes")


@cache
def base() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return good arguments of every public function, by its name."""
    spec = mw.load(SPEC, mw.Spec)
    outcome = mw.solve(spec, by_kind=False, safety=False)
    assert outcome.best is not None
    found = {"spec": spec, "plan": outcome.best.plan}
    quick = {"by_kind": False, "safety": False}
    ran = {"log": str(DEAD), "spec": spec, "plan": "zero=3,recompute=full"}
    return {
        "load": (mw.load, {"source": SPEC}),
        "solve": (mw.solve, {"spec": spec, **quick}),
        "explain": (mw.explain, {"spec": spec, "plan": "tp=1,zero=0"}),
        "diagnose": (mw.diagnose, ran),
        "export": (mw.export, found),
        "compare": (mw.compare, {"spec": spec, "plans": ["tp=1"]}),
        "search": (mw.search, {"sweep": SWEEP, "workers": 1}),
        "simulate": (mw.simulate, {**found, "samples": 2}),
        "price": (mw.price, found),
        "certificate": (mw.certificate, {"spec": spec, "outcome": outcome}),
        "html_report": (mw.html_report, {"spec": spec, "answer": outcome}),
        "rent": (mw.rent, RUN),
        "import_file": (mw.import_file, {"file": str(DATA / "imports/verl.txt")}),
    }


NAMES = [name for name in mw.__all__ if name[0].islower()]


def refusals(name: str, argument: str) -> Iterator[tuple[Any, str]]:
    """Yield the values that are refused for an argument, and what is said.

    Its default is left out: the calls with bad values of other arguments have it.
    """
    function, good = base()[name]
    default = inspect.signature(function).parameters[argument].default
    for value in gate(BRIEFLY, everything=BAD) if name in SLOW else BAD:
        if value is default and argument not in good:
            continue
        if argument == "plans" and value in ([], (), {}):
            continue  # Without plans the best of each kind are sought, for seconds.
        try:
            function(**{**good, argument: value})
        except mw.SpecError as error:
            yield value, str(error)


SLOW = ("search", "solve", "compare", "explain", "diagnose", "rent")
"""Functions that work for seconds on the values that they can be given."""

ARGUMENTS = [
    (name, argument)
    for name in NAMES
    for argument in inspect.signature(getattr(mw, name)).parameters
]


def test_every_public_function_is_tried() -> None:
    assert {*base()} == {*NAMES}


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (one[0] in SLOW))
        for one in ARGUMENTS
    ],
)
def test_what_an_argument_cannot_be_is_refused(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an error of ours, never by one of the code inside."""
    monkeypatch.chdir(tmp_path)
    refused = [*refusals(name, argument)]
    last, told = refused[-1]
    assert type(last) is object
    assert told.startswith(f"{argument}: a object: expected ")


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "solve",
            {"seed": -1},
            f"seed: -1: .* from 0 to {LARGEST_SEED:,}",
        ),
        ("solve", {"seed": "1"}, "seed: '1': expected a whole number"),
        ("solve", {"time_limit_s": math.nan}, "time_limit_s: nan: expected a number"),
        ("solve", {"spec": "no-spec"}, "^spec: 'no-spec' is neither a file nor a"),
        ("compare", {"spec": "no-spec"}, "^spec: 'no-spec' is neither a file nor a"),
        ("solve", {"spec": 1}, "spec: 1: expected Spec or ServingSpec"),
        ("solve", {"near": math.nan}, "near: nan: expected a share from 0 to"),
        ("solve", {"on_progress": 1}, "on_progress: 1: expected a function"),
        ("solve", {"by_kind": 1}, "by_kind: 1: expected True or False or None"),
        ("explain", {"plan": [1]}, "plan: .*: expected Plan or ServingPlan"),
        ("load", {"source": None}, "model and cluster: missing; expected a spec"),
        ("load", {"gpus": 3}, "gpus 3: expected a multiple of 2, the GPUs of h100"),
        ("load", {"pins": [1]}, "pins: .*: expected a mapping or a list of text"),
        ("load", {"kind": mw.Plan}, "kind: a .*: expected the class Spec"),
        ("compare", {"plans": {"one": 1}}, "plan: 1: expected text, a mapping or a"),
        ("simulate", {"samples": 0}, "samples: 0: expected a number from 1 to 100,000"),
        ("simulate", {"days": math.nan}, "days: nan: expected a number from 0.01"),
        ("search", {"backend": "spark"}, "backend: 'spark': expected processes"),
        ("search", {"outputs": [None]}, "outputs: .None.: expected a list of text"),
    ],
)
def test_refusals_name_argument_value_and_what_is_accepted(
    name: str, given: dict[str, Any], told: str
) -> None:
    function, good = base()[name]
    with pytest.raises(mw.SpecError, match=told):
        function(**{**good, **given})


@pytest.mark.parametrize("name", ["price", "explain", "simulate", "compare"])
def test_plans_of_serving_are_none_of_training(name: str) -> None:
    served = mw.load("serve-llama3-8b-1xa100", mw.ServingSpec)
    best = mw.solve(served).best
    assert best is not None
    given = {"plans": [best.plan]} if name == "compare" else {"plan": best.plan}
    function, good = base()[name]
    with pytest.raises(mw.SpecError, match="plan: is of serving; this spec has train"):
        function(**{**good, **given})
    if name in ("price", "explain"):
        plan = base()["price"][1]["plan"]
        with pytest.raises(mw.SpecError, match="is of training; this spec has infer"):
            function(served, plan)


def test_ranges_are_of_arguments() -> None:
    assert {*RANGES} <= {argument for _, argument in ARGUMENTS}


def test_a_file_that_an_export_lacks_is_named() -> None:
    spec = mw.load(SPEC, mw.Spec)
    exported = mw.export(spec, base()["price"][1]["plan"])
    with pytest.raises(mw.SpecError, match=r"'x' is no file of it; there are deep"):
        exported["x"]


def test_sequences_of_nothing_are_refused_by_their_field() -> None:
    with pytest.raises(mw.SpecError, match=r"training\.seq_len: 0: expected a whole"):
        mw.load(model="qwen3-8b", gpu="h100", count=8, seq_len=0)
