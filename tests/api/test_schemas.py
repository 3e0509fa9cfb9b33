"""JSON Schema of files: printed, named by bundled files, and true of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

import meshwright as mw
from meshwright.api.file_schemas import KINDS, schema_text
from meshwright.cli.errors import BAD_INPUT
from meshwright.cli.rare_verbs import Kind
from meshwright.evidence.runs import RUNS
from meshwright.reading.yaml_and_csv import read_yaml
from tests.helpers.command import ran, run

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "build" / "schemas"
"""Where CONTRIBUTING.md has all schemas written; git does not know the folder."""

FOLDERS = {
    "specs": "spec",
    "specs/sweeps": "sweep",
    "topologies": "topology",
    "topologies/machines": "topology",
    "topologies/gpus": "gpu",
    "topologies/clouds": "prices",
}
"""Of folders of bundled files, the kind of these."""

BUNDLED = {
    path.relative_to(ROOT).as_posix(): kind
    for folder, kind in FOLDERS.items()
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if path.name != "aliases.yaml"
}

OTHERS = {
    **dict.fromkeys((ROOT / "benchmarks" / "runs").rglob("*.yaml"), "runs"),
    **dict.fromkeys((ROOT / "benchmarks" / "corners").glob("*.yaml"), "spec"),
    **dict.fromkeys((ROOT / "profiles").glob("*.yaml"), "profile"),
    ROOT / "benchmarks" / "search.yaml": "sweep",
}

SPEC: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-h100", "count": 2},
    "training": {"seq_len": 8192, "global_batch": 32},
}

pytestmark = pytest.mark.usefixtures("kept_processes")


@cache
def validator(kind: str) -> Any:
    schema = json.loads(schema_text(kind))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(kind: str, data: Any) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(data)]


def test_the_command_knows_all_kinds() -> None:
    assert [*get_args(Kind)] == list(KINDS)
    done = run("schema", "spec")
    assert done.code == 0
    assert done.stdout == schema_text("spec")


def test_the_command_writes_all_schemas(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "schemas"
    assert run("schema", "--all", str(folder)).code == 0
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert texts == {f"{kind}.json": schema_text(kind) for kind in KINDS}


@pytest.mark.parametrize(
    "words", [[], ["spec", "--all", "x"], ["--all", "x", "-o", "y"]], ids=str
)
def test_a_command_that_asks_for_one_and_all_writes_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("schema", *words)
    assert done.code == BAD_INPUT
    assert "error: schema: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bundled_files_name_their_schema() -> None:
    for name, kind in BUNDLED.items():
        first = (ROOT / name).read_text(encoding="utf-8").splitlines()[0]
        start, path = first.split("=")
        assert start == "# yaml-language-server: $schema", name
        named = (ROOT / name).parent / path
        assert named.resolve() == (WRITTEN / f"{kind}.json").resolve(), name


def test_schemas_are_true_of_bundled_files() -> None:
    for name, kind in BUNDLED.items():
        assert problems(kind, read_yaml(ROOT / name).data) == [], name


@pytest.mark.slow
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.name))
def test_schemas_are_true_of_other_files(path: Path) -> None:
    assert not problems(OTHERS[path], read_yaml(path, RUNS).data)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"preset": "llama3-8b", "n_layers": 4}},
        {"cluster": "dgx-h100"},
        {"cluster": {"machine": "dgx-h100", "count": 2}},
        {"cluster": {"nvidia_smi": "topo.txt", "gpu": "a100-sxm-80gb"}},
        {"cluster": {"topology": {"preset": "dgx-h100", "gpu": "a100-sxm-80gb"}}},
        {"limits": None},
        {"limits": {"memory_gib": "70 GiB", "tp_min_link_gb_s": "400 Gbit/s"}},
        {"pins": {"tp": 4, "pp": [1, 2], "dp": {"max": 8}, "zero": 0}},
        {"pins": {"recompute": "full", "schedule": ["1f1b", "gpipe"]}},
        {"pins": {"recompute_layers": "all", "mesh": {"tp": [8, 1]}}},
        {"training": {**SPEC["training"], "precision": ["bf16", "fp8"]}},
        {"run": {"deadline": "90 days", "checkpoint": {"gb_s": 1, "async": True}}},
    ],
)
def test_what_a_spec_may_hold_is_no_error(change: dict[str, Any]) -> None:
    assert not problems("spec", {**SPEC, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"modle": "llama3-8b"},
        {"model": {"n_layers": 4}},
        {"cluster": {"topology": "dgx-h100", "cont": 2}},
        {"limits": {"memory_gib": "70 GiP"}},
        {"pins": {"tp": "four"}},
        {"pins": {"recompute": "most"}},
        {"training": {"seq_len": 8192}},
        {"inference": {"batch": 1, "prompt_len": 1, "output_len": 1}},
        {"framework": "megatronn"},
    ],
)
def test_mistakes_are_errors(change: dict[str, Any]) -> None:
    assert problems("spec", {**SPEC, **change})


@pytest.mark.parametrize("path", [*FOLDERS, "benchmarks/search.yaml"])
def test_a_schema_is_of_one_kind(path: str) -> None:
    if path == "specs":
        assert problems("spec", {"base": "x", "sweep": {"a": [1]}})
    else:
        assert problems(FOLDERS.get(path, "sweep"), SPEC)


FITS = "gpt2-xl-2xh100-nvlink"

COMMANDS = (
    ["solve", FITS],
    ["solve", "llama3-8b-2x4090-pcie"],
    ["solve", "mpt-30b-512xh100-90days"],
    ["solve", "serve-llama3-8b-1xa100"],
    ["solve", "serve-llama3-70b-2x4090-pcie"],
    ["explain", "llama3-8b-2x4090-pcie"],
    ["explain", FITS, "--plan", "tp=1,zero=0", "--collectives"],
    ["explain", "serve-llama3-70b-2x4090-pcie"],
    ["compare", FITS, "--plan", "tp=1", "--plan", "tp=2"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_schema_is_true_of_results(words: list[str]) -> None:
    done = ran(*words, "--format", "json")
    assert not problems("result", json.loads(done.stdout))


def test_the_schema_is_true_of_a_search() -> None:
    sweep = {"base": FITS, "sweep": {"training.seq_len": [8192, 10**6]}}
    assert not problems("result", mw.search(sweep, workers=1).to_dict())
    assert problems("result", {"search": "x"})
