"""Certificates hold for bundled and random specs, and no changed one is accepted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import meshwright as mw
import meshwright_verify
from meshwright.certificates.certificate import certificate as certificate_of
from meshwright.certificates.certificate import limits_aside, packed
from meshwright.cost import profile as cost_profile
from meshwright.cost.profile import Profile
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.spec.run_before import PlanOfMaker, RunBefore
from meshwright_verify import Refused, verify
from tests.certificates.lies import (
    LIES,
    OF_ANY,
    OF_CHOICES,
    OF_PARTS,
    OF_SERVING,
    Lie,
    leaf_of,
    mutants,
    parts_of,
    resealed,
)
from tests.helpers.command import run
from tests.helpers.extent import IS_ALL, gate
from tests.helpers.strategies import expert_specs, known_runs, published_plans, specs
from tests.helpers.tight import tight_data
from tests.hostile.readers import expect_seen

FITS, NEAR = "llama3-8b-2xh100-nvlink", "llama2-13b-8xa100"
NONE_FITS = "llama3-8b-2x4090-pcie"
OTHERS = (
    *("gpt-1.3b-2x4090-pcie", "gpt2-xl-2xa100-pcie", "llama3-70b-16xa100"),
    *("llama2-7b-64xh200-ddp", "mpt-30b-512xh100", "llama3-8b-512xa100-degraded"),
)
UNLIKE_LINKS, UNLIKE_PARTS = "gpt-1.3b-dgx-1v", "gpt2-xl-2x3090-2x4090"
SERVED = "serve-llama3-70b-8xh100"
SERVING = (SERVED, "serve-deepseek-v3-8xh200", "serve-llama3-70b-2x4090-pcie")
LARGE = (
    *("gpt3-175b-1024xa100", "llama3-405b-16384xh100", "llama3-70b-128xa100"),
    *("llama3-70b-16xh100", "llama3-70b-256xh100", "mixtral-8x7b-64xh100"),
    *("mpt-30b-512xh100-90days", "gpt-1.3b-2xa100-pcie", "gpt2-xl-2x4090-pcie"),
)
MOST_BYTES = 5_000_000
ROOT = Path(__file__).parents[2]


OPEN = "open"
OPEN_DATA: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-a100", "count": {"min": 1, "max": 6}},
    "training": {"seq_len": 4096, "global_batch": 48},
    "run": {"gpu_hour_price": 2},
    "objective": ["usd_per_mtoken", "step_s"],
}
SMALL_DATA: dict[str, Any] = {
    "model": "llama2-13b",
    "cluster": {"topology": "dgx-a100", "count": 1},
    "training": {"seq_len": 4096, "global_batch": 64},
}
FEWER = {"cluster": {"topology": "dgx-a100", "count": [1, 6]}}


def open_spec(**changes: Any) -> mw.OpenSpec:
    found = mw.load({**OPEN_DATA, **changes})
    assert isinstance(found, mw.OpenSpec)
    return found


def question(name: str) -> mw.Spec | mw.ServingSpec | mw.OpenSpec:
    return open_spec() if name == OPEN else mw.load(name)


@cache
def outcome(name: str, near: float = 0.0) -> mw.Outcome | mw.ServingOutcome:
    return mw.solve(question(name), near=near, by_kind=False, safety=False)


@cache
def certificate(name: str, near: float = 0.0) -> bytes:
    return mw.certificate(question(name), outcome(name, near))


@pytest.mark.parametrize(
    "name",
    [
        FITS,
        NEAR,
        NONE_FITS,
        UNLIKE_LINKS,
        UNLIKE_PARTS,
        *SERVING,
        *gate(OTHERS[:2], everything=(*OTHERS, *LARGE)),
    ],
)
def test_certificates_of_bundled_specs_hold(name: str) -> None:
    data = certificate(name)
    assert len(data) < MOST_BYTES
    told = verify(data)
    found = outcome(name)
    assert ("no plan fits" in told) == (found.status == "infeasible")
    assert any(line.startswith("on trust: terms") for line in told)
    known = found.certificate if isinstance(found, mw.Outcome) else None
    is_simplest = any(line.startswith("no plan within") for line in told)
    assert is_simplest == (known is not None and known.tolerance > 0)


@pytest.mark.skipif(not IS_ALL, reason="a minute")
@pytest.mark.parametrize("pods", [64, 512])
def test_certificates_of_many_experts_hold(pods: int, tmp_path: Path) -> None:
    """Of 2 x 10^10 skeletons, only rows that no bound refuses are listed."""
    corner = ROOT / "benchmarks" / "corners" / "deepseek-v3-16384xh100.yaml"
    path, text = tmp_path / "spec.yaml", corner.read_text("utf-8")
    path.write_text(text.replace("count: 64", f"count: {pods}"), "utf-8")
    spec = mw.load(path, mw.Spec)
    found = mw.solve(spec, by_kind=False, safety=False)
    assert found.gpus == pods * 256
    data = mw.certificate(spec, found)
    assert len(data) < MOST_BYTES
    assert any(line.startswith("no plan within") for line in verify(data))


def test_leading_layers_on_several_stages_are_certified() -> None:
    """Three dense layers lead, and no first chunk has room for more than two."""
    spec = mw.load(
        {
            "model": {"preset": "glm-4.5", "n_layers": 15},
            "cluster": {"topology": "dgx-h100", "count": 2},
            "framework": "megatron",
            "training": {"seq_len": 4096, "global_batch": 16},
        },
        mw.Spec,
    )
    found = mw.solve(spec, by_kind=False, safety=False)
    assert found.best is not None
    plan = found.best.plan
    assert plan.vpp > 1
    assert max(plan.chunk_layers(3)) < 3
    verify(mw.certificate(spec, found))


def test_all_near_plans_are_in_the_certificate() -> None:
    found, told = outcome(NEAR, 0.02), verify(certificate(NEAR, 0.02))
    assert isinstance(found, mw.Outcome)
    near = found.near
    (line,) = (line for line in told if line.startswith("plans within"))
    assert near is not None
    assert f": {near.count}," in line


def test_the_file_stands_alone(tmp_path: Path) -> None:
    """It runs without Meshwright, in an interpreter that sees no other package."""
    copy, made = tmp_path / "meshwright_verify.py", tmp_path / "cert.json.gz"
    assert meshwright_verify.__file__ is not None
    source = Path(meshwright_verify.__file__).read_text("utf-8")
    assert source.count("\n") <= 800
    assert set(re.findall(r"^(?:from|import) (\w+)", source, re.M)) <= {
        *sys.stdlib_module_names,
        "__future__",
    }
    copy.write_text(source, "utf-8")
    made.write_bytes(certificate(FITS))
    command = [sys.executable, "-I", str(copy), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("verified")
    made.write_bytes(certificate(FITS)[:-1])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "refused" in done.stderr) == (1, True)


RANDOM = settings(
    max_examples=gate(6, everything=200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@RANDOM
@given(
    specs(most_layers=6) | expert_specs(most_layers=4),
    st.sampled_from([0.02, 0.05, 0.2]),
    known_runs(),
    published_plans(),
)
def test_certificates_of_random_specs_hold(
    spec: mw.Spec, tolerance: float, runs: RunBefore, published: PlanOfMaker
) -> None:
    profile = Profile(
        run_before={spec.framework: runs.combinations},
        doubt=runs.per_decision,
        names_published=True,
    )
    options = Options(tolerance=tolerance, near=tolerance, profile=profile)
    job = {"gpus": spec.cluster.gpus, "global_batch": spec.training.global_batch}
    published = published.model_copy(update=job)
    with patch.object(cost_profile, "nearest_published", lambda *_: published):
        _holds(spec, options, fits=True)


def test_a_group_is_as_far_from_a_published_plan_as_each_of_its_zero_stages() -> None:
    """With ZeRO-3 a plan is beyond what was run, with less it is unlike the maker's."""
    gpu = {
        "memory_gib": 4.110546875,
        "memory_gb_s": 900.0,
        "peak_tflops": {"fp8": 17.5, "bf16": 17.5, "fp16": 17.5, "fp32": 17.5},
    }
    level = {"name": "level0", "gb_s": 10.0, "latency_us": 0.5, "size": 2}
    host = {"gpus": 2, "memory_gib": 0.1, "pcie_gb_s": 12.0, "memory_gb_s": 50.0}
    topology = {"gpu": gpu, "levels": [level | {"uplink": "per_gpu"}], "host": host}
    data: dict[str, Any] = {
        "model": {
            "n_layers": 2,
            "d_model": 512,
            "n_heads": 8,
            "n_kv_heads": 8,
            "d_ff": 1024,
            "vocab": 512,
            "gated_mlp": False,
            "norm": "layernorm",
            "bias": "all",
            "tied_embeddings": False,
        },
        "cluster": {"topology": topology},
        "framework": "megatron",
        "training": {"seq_len": 256, "global_batch": 2, "cuda_graphs": True},
        "limits": {"tp_min_link_gb_s": 20.0},
        "pins": {"pp": {"max": 4}, "dp_replicate": 1, "vpp": 1, "cp": 1, "ep": 1},
    }
    data["pins"] |= {"schedule": "1f1b", "offload": "none", "recompute": "none"}
    published = PlanOfMaker(
        model="", params=1, gpu="", gpus=2, framework="generic", precision="bf16",
        seq_len=1, global_batch=2, plan={"zero": 3}, source="drawn",
    )  # fmt: skip
    runs = {"megatron": {"data parallelism alone": 2}}
    profile = Profile(run_before=runs, doubt=0.01, names_published=True)
    options = Options(tolerance=0.02, near=0.02, profile=profile)
    with patch.object(cost_profile, "nearest_published", lambda *_: published):
        spec = mw.Spec.model_validate(data)
        found = solve(spec, replace(options, has_near_miss=False))
        verify(certificate_of(spec, found, profile))


@pytest.mark.slow
@RANDOM
@given(tight_data())
def test_certificates_where_little_fits_hold(data: dict[str, Any]) -> None:
    try:
        spec = mw.Spec.model_validate(data)
    except ValidationError:
        reject()
    _holds(spec, Options(), fits=False)


@pytest.mark.slow
@RANDOM
@given(specs(most_layers=6), st.data())
def test_certificates_of_pinned_recomputation_hold(
    spec: mw.Spec, data: st.DataObject
) -> None:
    """Some fit, and of others no split has the numbers though memory has room."""
    numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
    chosen = {"recompute_layers": data.draw(numbers), "pp": None, "recompute": None}
    pins = spec.pins.model_copy(update=chosen)
    try:
        spec = spec.model_copy(update={"pins": pins})
        spec = mw.Spec.model_validate(spec.model_dump(by_alias=True))
    except ValidationError:
        reject()
    _holds(spec, Options())


MIXTRAL: dict[str, Any] = {
    **SMALL_DATA,
    "model": "mixtral-8x7b",
    "cluster": {"topology": "dgx-h100", "count": 1},
}


@pytest.mark.parametrize(
    ("data", "pins", "told"),
    [
        pytest.param(
            {**SMALL_DATA, "framework": "torchtitan"},
            {"schedule": ["zb-v"], "pp": [2, 4]},
            r"fastest: .*, schedule zb-v, vpp 2,",
            id="schedule",
        ),
        pytest.param(
            {**SMALL_DATA, "framework": "torchtitan"},
            {"schedule": ["dualpipe-v"], "pp": 2},
            r"fastest: .*, schedule dualpipe-v, vpp 2,",
            id="dualpipe",
        ),
        pytest.param(
            {**SMALL_DATA, "framework": "torchtitan"},
            {"schedule": ["zb-v"], "pp": 4, "layers": [8, 12, 12, 8]},
            r"fastest: .*pp 4, .*, schedule zb-v, vpp 2,",
            id="layers-of-a-v",
        ),
        pytest.param(
            MIXTRAL, {"etp": {"min": 2}, "tp": 4}, r"fastest: .*, etp 4,", id="etp"
        ),
        pytest.param(MIXTRAL, {"etp": 8, "tp": 4}, "no plan fits", id="other-etp"),
        pytest.param(
            {
                **SMALL_DATA,
                "model": "qwen3-30b-a3b",
                "cluster": {"topology": "dgx-h100", "count": 16},
                "training": {"seq_len": 4096, "global_batch": 256},
            },
            {"tp": 1, "pp": 1, "cp": 1, "ep": [64, 128], "recompute": "none"},
            r"recommended: .*, ep 64,",
            id="wide-ep",
        ),
        pytest.param(SMALL_DATA, {"etp": 2}, "no plan fits", id="etp-of-no-experts"),
        pytest.param(
            SMALL_DATA,
            {"recompute_layers": [10, 9], "vpp": [1, 2], "micro_batch": 1},
            "fastest: .*pp 2, .*, vpp 1, .*recompute full",
            id="recompute",
        ),
        pytest.param(
            SMALL_DATA,
            {"recompute_layers": [10, 9], "layers": [20, 20], "vpp": 5, "tp": 2},
            "no plan fits",
            id="unlike-chunks",
        ),
        pytest.param(
            SMALL_DATA,
            {"recompute_layers": [0, 0], "recompute": "full"},
            "no plan fits",
            id="recompute-nothing",
        ),
    ],
)
def test_decisions_that_only_pins_reach_are_certified(
    data: dict[str, Any], pins: dict[str, Any], told: str
) -> None:
    spec = mw.load({**data, "pins": pins}, mw.Spec)
    found = mw.solve(spec, by_kind=False, safety=False, repair=False)
    lines = verify(mw.certificate(spec, found))
    assert any(re.match(told, line) for line in lines)


FAST_HOST: dict[str, Any] = {
    "model": {"n_layers": 4, "d_model": 1536, "n_heads": 12, "d_ff": 6144}
    | {"vocab": 512, "gated_mlp": True},
    "cluster": {
        "topology": {
            "gpu": {"memory_gib": 2.7107421875, "memory_gb_s": 900}
            | {"peak_tflops": {"bf16": 624}},
            "host": {"memory_gib": 0.5537109375, "pcie_gb_s": 25}
            | {"memory_gb_s": 4000},
            "levels": [
                {"name": "host", "gb_s": 10, "latency_us": 0.5, "size": 3}
                | {"uplink": "shared"},
                {"name": "rack", "gb_s": 5, "latency_us": 0.5, "size": 4}
                | {"uplink": "per_gpu"},
            ],
        }
    },
    "framework": "ideal",
    "training": {"seq_len": 8192, "global_batch": 24},
    "pins": {
        "offload": ["optimizer", "gradients", "parameters"],
        "recompute": ["none"],
    },
}


def test_ways_to_offload_with_bounds_of_their_own_are_told_apart() -> None:
    """Where the host updates faster than the GPU, each of them is a family."""
    spec = mw.load(FAST_HOST, mw.Spec)
    found = mw.solve(spec, by_kind=False, safety=False, repair=False)
    verify(mw.certificate(spec, found))


def _holds(spec: mw.Spec, options: Options, *, fits: bool | None = None) -> None:
    found = solve(spec, replace(options, has_near_miss=False))
    assume(fits in (None, found.best is not None))
    try:
        data = certificate_of(spec, found, options.profile)
    except mw.SpecError:
        if not limits_aside(spec):
            raise
        reject()
    verify(data)


LIMITED: dict[str, dict[str, Any]] = {
    "time": {"rules": ["step_s <= {}"]},
    "part": {"rules": ["parts.dp + parts.zero <= {} * step_s"]},
    "memory": {"rules": ["max(memory_gib) <= {}"]},
    "link": {"limits": {"max_link_utilisation": "{}"}},
}


@pytest.mark.parametrize(
    ("limit", "wide", "tight"),
    [("time", 100, 1), ("part", 0.5, 0.003), ("memory", 79, 50), ("link", 0.5, 0.01)],
)
def test_limits_that_decide_nothing_are_left_aside(
    limit: str, wide: float, tight: float
) -> None:
    """Where a plan that breaks them is better, none is written, and that is said."""
    told = ("no certificate of the plans that", "no certificate where")
    for value, is_wide in (wide, True), (tight, False):
        text = json.dumps({**SMALL_DATA, **LIMITED[limit]}).replace("{}", f"{value}")
        spec = mw.load(json.loads(text), mw.Spec)
        found = mw.solve(spec, by_kind=False, safety=False, repair=False)
        if is_wide:
            verify(mw.certificate(spec, found))
            continue
        with pytest.raises(mw.SpecError, match="|".join(told)):
            mw.certificate(spec, found)


@pytest.mark.parametrize(
    ("name", "layers", "fits"),
    [
        ("gpt-1.3b-2xa100-pcie", [10, 14], True),
        ("gpt2-xl-2x3090-nvlink", [20, 28], False),
    ],
)
def test_pinned_layers_are_held_against_every_leaf(
    name: str, layers: list[int], fits: bool
) -> None:
    asked = question(name)
    assert isinstance(asked, mw.Spec)
    pins = asked.pins.model_copy(update={"layers": tuple(layers)})
    asked = asked.model_copy(update={"pins": pins})
    found = mw.solve(asked, by_kind=False, safety=False, repair=False)
    data = mw.certificate(asked, found)
    assert ("no plan fits" in verify(data)) != fits
    if fits:
        parts = parts_of(data)
        parts["claims"]["fastest"]["split"] = [[12, 0], [12, 0]]
        with pytest.raises(Refused, match=r"claims\.fastest"):
            verify(resealed(parts))


def test_equal_answers_have_equal_certificates() -> None:
    spec = mw.load(FITS, mw.Spec)
    again = mw.certificate(spec, mw.solve(spec, by_kind=False, safety=False))
    assert again == certificate(FITS)


@pytest.mark.parametrize("name", [FITS, NONE_FITS])
def test_no_certificate_with_a_changed_byte_is_accepted(name: str) -> None:
    data, choice = certificate(name), Random(0)
    for _ in range(gate(100, everything=1_000)):
        place, other = choice.randrange(len(data)), choice.randrange(1, 256)
        changed = bytearray(data)
        changed[place] ^= other
        with pytest.raises(Refused):
            verify(bytes(changed))


@pytest.mark.parametrize(
    ("name", "lie", "place"),
    [
        pytest.param(name, *one, id=f"{name}-{one[0].__name__.strip('_')}")
        for name, lies in (
            *((FITS, LIES), (OPEN, OF_CHOICES)),
            *((SERVED, OF_SERVING), (UNLIKE_PARTS, OF_PARTS)),
        )
        for one in lies.items()
    ],
)
def test_lies_are_refused_and_named(name: str, lie: Lie, place: str) -> None:
    found = parts_of(certificate(name))
    assert resealed(found) == certificate(name)
    lie(found, Random(1))
    with pytest.raises(Refused, match=place):
        verify(resealed(found))


def test_a_published_plan_is_certified_by_what_others_are_doubted() -> None:
    """The fastest plan splits tensors, which MosaicML did not for this very job."""
    spec = {
        "model": "mpt-30b",
        "cluster": {"topology": "dgx-h100"},
        "framework": "fsdp",
        "training": {"seq_len": 2048, "global_batch": 504, "precision": "bf16"},
        "pins": {"recompute": ["none", "full"]},
    }
    question = mw.load(spec, mw.Spec)
    answer = mw.solve(question, by_kind=False, safety=False)
    assert answer.best is not None
    assert answer.fastest is not None
    assert (answer.best.plan.tp, answer.fastest.plan.tp) == (1, 2)
    found = parts_of(mw.certificate(question, answer))
    verify(resealed(found))
    found["facts"]["makers"] = {}
    with pytest.raises(Refused, match="it is not within"):
        verify(resealed(found))


@pytest.mark.parametrize("part", meshwright_verify.PARTS)
def test_a_changed_part_is_named_by_its_hash(part: str) -> None:
    found = parts_of(certificate(FITS))
    if isinstance(found[part], list):
        found[part].append(0)
    else:
        found[part]["changed"] = 0
    with pytest.raises(Refused, match=rf"^{part}: was changed"):
        verify(packed(found))


def test_plans_left_out_of_the_near_ones_are_missed() -> None:
    found = parts_of(certificate(NEAR, 0.02))
    plans = found["claims"]["near"]["plans"]
    assert len(plans) > 1
    fastest = found["claims"]["fastest"]["terms"]["at"]
    plans.remove(next(plan for plan in plans if plan["terms"]["at"] != fastest))
    with pytest.raises(Refused, match="it may be near the fastest plan"):
        verify(resealed(found))


def test_a_leaf_of_time_refutes_that_nothing_fits() -> None:
    found = parts_of(certificate(NONE_FITS))
    leaf = leaf_of(found, "memory", Random(1))
    leaf["slower"] = leaf.pop("memory")
    stages = leaf["terms"]["at"][1]
    leaf["terms"]["times"] = [[stages, 0, 100, 0, 100, 100, 0, 0, 0]]
    with pytest.raises(Refused, match=rf"below {2**48}, the least claimed"):
        verify(resealed(found))


def subjects(lines: list[str]) -> list[str]:
    """Return the hashes of the specs and of the profile that a certificate is about."""
    return [line for line in lines if "sha256" in line]


def is_accepted(data: bytes, ours: list[str]) -> bool:
    """Return whether a certificate holds, of the specs and profile that are told."""
    try:
        return subjects(verify(data)) == ours
    except Refused:
        return False


LIES_OF = {NONE_FITS: OF_ANY, OPEN: OF_CHOICES} | {
    UNLIKE_PARTS: OF_PARTS,
    SERVED: OF_SERVING,
}


@pytest.mark.parametrize(
    "name", [FITS, NEAR, NONE_FITS, OTHERS[0], OPEN, UNLIKE_PARTS, SERVED, UNLIKE_LINKS]
)
def test_no_mutant_that_is_sealed_anew_is_accepted(name: str) -> None:
    """Half have an odd value, one too many or too few, half a lie at a random place."""
    data = certificate(name, 0.02 if name == NEAR else 0.0)
    choice, ours, accepted = Random(1), subjects(verify(data)), list[str]()
    changed, lies = mutants(data, choice), [*LIES_OF.get(name, LIES)]
    for _ in range(gate(6, everything=125)):
        found, lie = parts_of(data), choice.choice(lies)
        lie(found, choice)
        for told, mutant in (next(changed), (lie.__name__, resealed(found))):
            accepted += [told] * is_accepted(mutant, ours)
    assert accepted == []


@pytest.mark.parametrize("fact", [*meshwright_verify.NUMBERS, "layers", "batch"])
def test_no_fact_is_counted_up_to_without_end(fact: str) -> None:
    found = parts_of(certificate(FITS))
    part, name = found["facts"], fact
    if fact not in meshwright_verify.NUMBERS:
        section, name = {
            "layers": ("model", "n_layers"),
            "batch": ("training", "global_batch"),
        }[fact]
        part = found["spec"][section]
    part[name] = 10**30
    with pytest.raises(Refused, match=rf"{fact}: {10**30} is not from 0 to"):
        verify(resealed(found))


def test_a_fact_stands_for_no_decision() -> None:
    """Else a rule of arithmetic refuses every plan by a number that the liar names."""
    found = parts_of(certificate(FITS))
    found["facts"]["tp"] = 7
    with pytest.raises(Refused, match="facts: tp is missing, or is too much"):
        verify(resealed(found))


def test_the_best_of_open_numbers_has_a_certificate(tmp_path: Path) -> None:
    """Other numbers of machines are refused by kernels alone, or by a cover."""
    made, found = tmp_path / "cert.json.gz", parts_of(certificate(OPEN))
    assert {"kernels" in one for one in found["others"]} == {True, False}
    told = verify(certificate(OPEN))
    assert any(line.startswith("none of 5 other choices is better") for line in told)
    made.write_bytes(certificate(OPEN))
    path = tmp_path / "open.json"
    path.write_text(json.dumps(OPEN_DATA), "utf-8")
    assert run("verify", str(made), "--spec", str(path)).code == 0
    path.write_text(json.dumps({**OPEN_DATA, **FEWER}), "utf-8")
    other = run("verify", str(made), "--spec", str(path))
    assert (other.code, other.stdout) == (1, "")


@pytest.mark.parametrize("objective", ["gpus", "train_days", "kwh_per_mtoken"])
def test_open_numbers_are_certified_by_every_objective(objective: str) -> None:
    asked = open_spec(objective=[objective, "step_s"])
    verify(mw.certificate(asked, mw.solve(asked, safety=False)))


def test_choices_compared_by_doubted_steps_are_certified_by_their_prices() -> None:
    """Another choice has less by its fastest plan, which is doubted."""
    asked = open_spec(
        model="llama3-70b",
        cluster={"topology": "dgx-a100", "count": [6, 7]},
        training={"seq_len": 4096, "global_batch": 120},
        objective="cost",
    )
    data = mw.certificate(asked, mw.solve(asked, by_kind=False, safety=False))
    told = verify(data)
    assert any(line.startswith("none of 1 other choices is better") for line in told)
    found = parts_of(data)
    (other,) = found["others"]
    # Its plans are shown to have that price, and none is shown to have more.
    other["least"] = other["least"] * 11 // 10
    with pytest.raises(Refused, match=r"others\[0\] at .*may take less than"):
        verify(resealed(found))
    found = parts_of(data)
    found["others"][0]["least"] = found["others"][0]["least"] * 9 // 10
    with pytest.raises(Refused, match=r"others\[0\]: it may have less usd_per_mtoken"):
        verify(resealed(found))


def test_no_price_is_taken_of_a_group_whose_degrees_are_open() -> None:
    """Its values would stand for other degrees; the last follows from the others."""
    found = parts_of(certificate("llama2-13b-8xa100"))
    domain = meshwright_verify.Domain(found["facts"], found["spec"])
    doubts = meshwright_verify.Doubts(domain)
    assert found["facts"]["percent"] > 0
    assert doubts.unit((1, 1, 1, 4), [2]) >= 100
    with pytest.raises(Refused, match="a group spans degrees"):
        doubts.unit((1, 1, 1), [4, 2])


def test_open_numbers_of_which_none_has_a_plan() -> None:
    asked = open_spec(
        model="llama3-405b", cluster={"topology": "dgx-a100", "count": [1, 2]}
    )
    assert "no plan fits" in verify(mw.certificate(asked, mw.solve(asked)))


@pytest.mark.parametrize("word", ["\x1b[31mred", "\u202egnp", "a\nb", "\x9b31m"])
def test_no_text_of_a_certificate_is_obeyed_by_a_terminal(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, found = tmp_path / "cert.json.gz", parts_of(certificate(FITS))
    trusted = next(rule for rule in found["rules"] if "table" in rule)
    found["version"] = trusted["name"] = word
    for code in (0, 1):
        made.write_bytes(resealed(found))
        assert meshwright_verify.main([str(made)]) == code
        told = capsys.readouterr()
        expect_seen(told.out + told.err)
        assert not re.search("^b", told.out, re.M)
        found["cover"]["by"] = word


def test_mutants_of_what_is_trusted_end() -> None:
    """They say other things, or are refused; none loops or raises another error."""
    data = certificate(FITS)
    changed = mutants(data, Random(2), of_trusted=True)
    for _ in range(gate(20, everything=250)):
        is_accepted(next(changed)[1], [])


def test_splits_that_nobody_can_search_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meshwright_verify, "MOST_STEPS", 10)
    with pytest.raises(Refused, match=r"cover at .*its splits take too long"):
        verify(certificate(FITS))


def test_specs_that_cannot_be_certified_say_so() -> None:
    asked = mw.load(UNLIKE_PARTS, mw.Spec)
    limits = asked.limits.model_copy(update={"max_link_utilisation": 0.5})
    told = r"no certificate of unlike parts and limits\.max_link_utilisation yet"
    with pytest.raises(mw.SpecError, match=told):
        mw.certificate(asked.model_copy(update={"limits": limits}), outcome(FITS))
    with pytest.raises(mw.SpecError, match="outcome: not the answer to llama3-8b"):
        mw.certificate("llama3-8b-2xa100-pcie", outcome(FITS))
    for name in SERVED, UNLIKE_PARTS:
        with pytest.raises(mw.SpecError, match="outcome: not the answer to"):
            mw.certificate(name, outcome(FITS))
        with pytest.raises(mw.SpecError, match="outcome: not the answer to"):
            mw.certificate(FITS, outcome(name))


def test_the_command_line_writes_and_verifies(tmp_path: Path) -> None:
    made = tmp_path / "cert.json.gz"
    solved = run("solve", FITS, "--certificate", str(made))
    assert solved.code == 0
    assert made.read_bytes() == certificate(FITS)
    assert run("verify", str(made), "--spec", FITS).code == 0
    other = run("verify", str(made), "--spec", SERVED)
    assert (other.code, other.stdout) == (1, "")
    assert f"spec: it is of another spec than {SERVED}" in other.stderr
    for name in SERVED, UNLIKE_PARTS:
        made.write_bytes(certificate(name))
        assert run("verify", str(made), "--spec", name).code == 0
    made.write_bytes(b"")
    assert run("verify", str(made)).code == 1
    assert run("verify", str(tmp_path / "none")).code == 2
