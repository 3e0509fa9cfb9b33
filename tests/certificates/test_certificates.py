"""Certificates hold for bundled and random specs, and no changed one is accepted."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import meshwright as mw
import meshwright_verify
from meshwright.certificates.certificate import certificate as certificate_of
from meshwright.cost.profile import Profile
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.spec.run_before import RunBefore
from meshwright_verify import Refused, verify
from tests.helpers.command import run
from tests.helpers.extent import IS_ALL, gate
from tests.helpers.strategies import expert_specs, known_runs, specs
from tests.helpers.tight import tight_data

FITS, NEAR = "llama3-8b-2xh100-nvlink", "llama2-13b-8xa100"
NONE_FITS = "llama3-8b-2x4090-pcie"
OTHERS = (
    *("gpt-1.3b-2x4090-pcie", "gpt2-xl-2xa100-pcie", "llama3-70b-16xa100"),
    *("llama2-7b-64xh200-ddp", "mpt-30b-512xh100"),
)
LARGE = (
    *("gpt3-175b-1024xa100", "llama3-405b-16384xh100", "llama3-70b-128xa100"),
    *("llama3-70b-16xh100", "llama3-70b-256xh100", "mixtral-8x7b-64xh100"),
    *("mpt-30b-512xh100-90days", "gpt-1.3b-2xa100-pcie", "gpt2-xl-2x4090-pcie"),
)
MOST_BYTES = 5_000_000
ROOT = Path(__file__).parents[2]


@cache
def outcome(name: str, near: float = 0.0) -> mw.Outcome:
    spec = mw.load(name, mw.Spec)
    return mw.solve(spec, near=near, by_kind=False, safety=False)


@cache
def certificate(name: str, near: float = 0.0) -> bytes:
    return mw.certificate(mw.load(name, mw.Spec), outcome(name, near))


@pytest.mark.parametrize(
    "name", [FITS, NEAR, NONE_FITS, *gate(OTHERS[:2], everything=(*OTHERS, *LARGE))]
)
def test_certificates_of_bundled_specs_hold(name: str) -> None:
    data = certificate(name)
    assert len(data) < MOST_BYTES
    told = verify(data)
    assert ("no plan fits" in told) == (name in (NONE_FITS, "llama3-70b-16xa100"))
    assert any(line.startswith("on trust: terms") for line in told)


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


def test_all_near_plans_are_in_the_certificate() -> None:
    near, told = outcome(NEAR, 0.02).near, verify(certificate(NEAR, 0.02))
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
)
def test_certificates_of_random_specs_hold(
    spec: mw.Spec, tolerance: float, runs: RunBefore
) -> None:
    profile = Profile(
        run_before={spec.framework: runs.combinations}, doubt=runs.per_decision
    )
    options = Options(tolerance=tolerance, near=tolerance, profile=profile)
    _holds(spec, options, fits=True)


@pytest.mark.slow
@RANDOM
@given(tight_data())
def test_certificates_where_little_fits_hold(data: dict[str, Any]) -> None:
    try:
        spec = mw.Spec.model_validate(data)
    except ValidationError:
        reject()
    _holds(spec, Options(), fits=False)


def _holds(spec: mw.Spec, options: Options, *, fits: bool) -> None:
    assume(can_be_certified(spec))
    found = solve(spec, replace(options, has_near_miss=False))
    assume((found.best is not None) == fits)
    verify(certificate_of(spec, found, options.profile))


def can_be_certified(spec: mw.Spec) -> bool:
    """Return whether certificates know all that a spec has."""
    pins, limits = spec.pins, spec.limits
    has_split = spec.rules or pins.layers or pins.stage_recompute
    return not (has_split or limits.max_link_utilisation)


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


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _parts(data: bytes) -> dict[str, Any]:
    body = data[data.index(b"\0", 10) + 1 :]
    found: dict[str, Any] = json.loads(zlib.decompressobj(-15).decompress(body))
    return found


def _file(found: dict[str, Any]) -> bytes:
    text = _canonical(found) + b"\n"
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(text) + packer.flush()
    body += struct.pack("<II", zlib.crc32(text), len(text))
    comment = f"sha256:{sha256(body).hexdigest()}".encode()
    return meshwright_verify.GZIP_HEAD + comment + b"\0" + body


def _sealed(found: dict[str, Any]) -> bytes:
    """Return the file of a liar, who states the hashes of what was changed."""
    parts = meshwright_verify.PARTS
    seal = {name: sha256(_canonical(found[name])).hexdigest() for name in parts}
    named = [found["format"], found["version"], *(seal[part] for part in parts)]
    whole = sha256(_canonical(named)).hexdigest()
    return _file({**found, "seal": {**seal, "whole": whole}})


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for _, child in node.get("of", ()):
        yield from _nodes(child)


def _leaf(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(node for node in _nodes(found["cover"]) if kind in node)


def _drop_a_group(found: dict[str, Any]) -> None:
    branch = next(
        node for node in _nodes(found["cover"]) if len(node.get("of", ())) > 1
    )
    branch["of"].pop()


def _cover_twice(found: dict[str, Any]) -> None:
    found["cover"]["of"].append(found["cover"]["of"][0])


def _raise_a_bound(found: dict[str, Any]) -> None:
    _leaf(found, "slower")["slower"] += 10**12


def _hold_less(found: dict[str, Any]) -> None:
    _leaf(found, "memory")["memory"] -= 1


def _need_more(found: dict[str, Any]) -> None:
    """Say that a plan that fits does not, with its terms as they are."""
    leaf = _leaf(found, "slower")
    plan = found["claims"]["fastest"]
    leaf.clear()
    leaf.update(memory=0, terms=plan["terms"])


def _name_a_worse_plan(found: dict[str, Any]) -> None:
    """Claim the plan of another leaf, which takes longer, as the fastest."""
    claims = found["claims"]
    plan = dict(claims["fastest"])
    terms = {**plan["terms"], "ticks": list(plan["terms"]["ticks"])}
    terms["ticks"][2] += 10**9
    plan |= {"terms": terms, "ticks": plan["ticks"] + 10**9}
    claims["fastest"] = plan | {"step_s": plan["step_s"] + 1}


def _understate_the_plan(found: dict[str, Any]) -> None:
    found["claims"]["fastest"]["ticks"] -= 1


def _round_the_plan(found: dict[str, Any]) -> None:
    found["claims"]["fastest"]["step_s"] *= 0.999


def _widen_the_tolerance(found: dict[str, Any]) -> None:
    found["claims"]["recommended"]["within"] = 0.9


def _change_criteria(found: dict[str, Any]) -> None:
    found["claims"]["recommended"]["criteria"].reverse()


def _hide_the_plan(found: dict[str, Any]) -> None:
    found["claims"] = dict.fromkeys(found["claims"]) | {"status": "infeasible"}


def _change_the_batch(found: dict[str, Any]) -> None:
    found["facts"]["batch"] *= 2


def _change_the_layers(found: dict[str, Any]) -> None:
    found["spec"]["model"]["n_layers"] += 1


def _refuse_by_a_rule(found: dict[str, Any]) -> None:
    leaf = _leaf(found, "slower")
    leaf.clear()
    leaf["rule"] = 0


def _refuse_by_no_rule(found: dict[str, Any]) -> None:
    _leaf(found, "rule")["rule"] = -1


def _borrow_terms(found: dict[str, Any]) -> None:
    slower = [node for node in _nodes(found["cover"]) if "slower" in node]
    slower[0]["terms"] = slower[-1]["terms"]


def _lose_layers(found: dict[str, Any]) -> None:
    found["claims"]["fastest"]["split"][0][0] -= 1


def _outgrow_memory(found: dict[str, Any]) -> None:
    found["claims"]["fastest"]["terms"]["stages"][0][2] *= 1_000


LIES: dict[Callable[[dict[str, Any]], None], str] = {
    _drop_a_group: r"cover at .*: .* is not covered",
    _cover_twice: r"cover at .*stands twice",
    _raise_a_bound: r"cover at .*some split may take less than",
    _hold_less: r"cover at .*the stages hold",
    _need_more: r"cover at ",
    _name_a_worse_plan: r"cover at .*below the fastest",
    _understate_the_plan: r"claims\.fastest: its terms add up",
    _round_the_plan: r"claims\.fastest: step_s",
    _widen_the_tolerance: r"cover at |claims\.recommended",
    _change_criteria: r"claims\.recommended: the criteria",
    _hide_the_plan: r"cover at .*though no plan is said to fit",
    _change_the_batch: r"facts\.batch: the spec says",
    _change_the_layers: r"facts\.layers: the spec says",
    _refuse_by_a_rule: r"cover at .*does not refuse all of it",
    _refuse_by_no_rule: r"cover at .*there is no such rule",
    _borrow_terms: r"cover at .*of a skeleton elsewhere",
    _lose_layers: r"claims\.fastest: layers are lost",
    _outgrow_memory: r"claims\.fastest, stage 0: layers need",
}
"""What a liar who knows the format changes, and where that is found."""


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__.strip("_"))
def test_lies_are_refused_and_named(lie: Callable[[dict[str, Any]], None]) -> None:
    found = _parts(certificate(FITS))
    assert _sealed(found) == certificate(FITS)
    lie(found)
    with pytest.raises(Refused, match=LIES[lie]):
        verify(_sealed(found))


@pytest.mark.parametrize("part", meshwright_verify.PARTS)
def test_a_changed_part_is_named_by_its_hash(part: str) -> None:
    found = _parts(certificate(FITS))
    if isinstance(found[part], list):
        found[part].append(0)
    else:
        found[part]["changed"] = 0
    with pytest.raises(Refused, match=rf"^{part}: was changed"):
        verify(_file(found))


def test_plans_left_out_of_the_near_ones_are_missed() -> None:
    found = _parts(certificate(NEAR, 0.02))
    plans = found["claims"]["near"]["plans"]
    assert len(plans) > 1
    fastest = found["claims"]["fastest"]["terms"]["at"]
    plans.remove(next(plan for plan in plans if plan["terms"]["at"] != fastest))
    with pytest.raises(Refused, match="it may be near the fastest plan"):
        verify(_sealed(found))


def test_a_leaf_of_time_refutes_that_nothing_fits() -> None:
    found = _parts(certificate(NONE_FITS))
    leaf = _leaf(found, "memory")
    leaf["slower"] = leaf.pop("memory")
    with pytest.raises(Refused, match="though no plan is said to fit"):
        verify(_sealed(found))


@pytest.mark.skipif(not IS_ALL, reason="some minutes")
def test_no_certificate_with_a_changed_number_raises_another_error() -> None:
    """Changed numbers that are sealed anew are refused, or say as much or less."""
    data, choice = certificate(FITS), Random(1)
    for _ in range(500):
        found = _parts(data)
        node: Any = found[choice.choice(meshwright_verify.PARTS)]
        while isinstance(node, dict | list) and node:
            keys = [*node] if isinstance(node, dict) else range(len(node))
            parent, key = node, choice.choice(keys)
            node = node[key]
        parent[key] = choice.choice([None, -1, True, "", [], {}, 1.5, 10**30])
        try:
            verify(_sealed(found))
        except Refused:
            continue


def test_specs_that_cannot_be_certified_say_so() -> None:
    unlike = mw.load("gpt2-xl-2x3090-2x4090", mw.Spec)
    with pytest.raises(mw.SpecError, match="no certificate of a cluster of unlike"):
        mw.certificate(unlike, outcome(FITS))
    irregular = mw.load("gpt-1.3b-dgx-1v", mw.Spec)
    with pytest.raises(mw.SpecError, match="no certificate of hosts whose GPUs"):
        mw.certificate(irregular, outcome(FITS))
    with pytest.raises(mw.SpecError, match="outcome: not the answer to llama3-8b"):
        mw.certificate("llama3-8b-2xa100-pcie", outcome(FITS))
    serving = mw.load("serve-llama3-8b-1xa100", mw.ServingSpec)
    with pytest.raises(mw.SpecError, match="certificate: for specs with training"):
        mw.certificate(serving, outcome(FITS))


def test_the_command_line_writes_and_verifies(tmp_path: Path) -> None:
    made = tmp_path / "cert.json.gz"
    solved = run("solve", FITS, "--certificate", str(made))
    assert solved.code == 0
    assert made.read_bytes() == certificate(FITS)
    assert run("verify", str(made), "--spec", FITS).code == 0
    other = run("verify", str(made), "--spec", NONE_FITS)
    assert (other.code, other.stdout) == (1, "")
    assert f"spec: it is of another spec than {NONE_FITS}" in other.stderr
    made.write_bytes(b"")
    assert run("verify", str(made)).code == 1
    assert run("verify", str(tmp_path / "none")).code == 2
