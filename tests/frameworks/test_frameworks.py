"""What is known of every framework, and that nothing else in the tree knows it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.frameworks.base.registry import framework, framework_published_as
from meshwright.planner.solve import solve
from meshwright.rules.universal import DEGREE_RULES, PLAN_RULES
from meshwright.spec.spec import Spec, framework_names
from tests.helpers.command import refusal, run

ROOT = Path(meshwright.__file__).parent

UNLIMITED = ("generic", "ideal")
"""Names of no framework, which keep the mathematics alone."""


@pytest.mark.parametrize("name", UNLIMITED)
def test_no_framework_keeps_the_mathematics_alone(name: str) -> None:
    framework_found = framework(name)
    mathematics = {"context_balanced", "offload_supported", "recompute_supported"}
    assert {
        rule.name for rule in framework_found.degree_rules + framework_found.plan_rules
    } <= mathematics


@pytest.mark.parametrize("name", sorted({*framework_names()} - {*UNLIMITED}))
def test_a_rule_names_a_file_and_a_version(name: str) -> None:
    framework_found = framework(name)
    sources = [
        rule.source
        for rule in framework_found.degree_rules + framework_found.plan_rules
    ]
    sources += [words.source for words in framework_found.rule_words.values()]
    assert [text for text in sources if not re.search(r"\d.*(: |\.py)", text)] == []


@pytest.mark.parametrize("name", framework_names())
def test_rules_that_every_plan_keeps_are_listed_by_no_framework(name: str) -> None:
    framework_found = framework(name)
    assert not {*framework_found.degree_rules, *framework_found.plan_rules} & {
        *DEGREE_RULES,
        *PLAN_RULES,
    }


def test_published_words_name_one_framework_each() -> None:
    every = [framework(name) for name in framework_names()]
    words = [word for one in every for word in one.published_as]
    assert len(set(words)) == len(words)
    assert all(word == word.lower() for word in words)


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("Megatron-LM PTD-P", "megatron"),
        ("NeMo 24.03.01", "megatron"),
        ("Megatron-DeepSpeed (1F1B)", "deepspeed"),
        ("DeepSpeed ZeRO-3", "deepspeed"),
        ("MaxText (JAX/XLA FSDP)", "torchtitan"),
        ("LLM Foundry (PyTorch FSDP, FlashAttention)", "fsdp"),
        ("flash-attention training code", "fsdp"),
        ("a code of our own", None),
    ],
)
def test_the_longest_published_word_decides(published: str, name: str | None) -> None:
    assert framework_published_as(published) == name


def test_the_names_are_found_without_loading_a_framework() -> None:
    code = (
        "import sys; from meshwright.spec.spec import framework_names as f; "
        "print(*f()); "
        "assert not {'numpy', 'meshwright.frameworks'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == framework_names()
    assert {"megatron", *UNLIMITED} <= set(framework_names())


SPEC: dict[str, Any] = {
    "model": {"n_layers": 4, "d_model": 1024, "n_heads": 8, "d_ff": 4096, "vocab": 512},
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 40,
                "memory_gb_s": 2_000,
                "peak_tflops": {"bf16": 300, "fp32": 75},
            },
            "levels": [{"name": "node", "size": 8, "gb_s": 300, "latency_us": 5}],
        }
    },
    "training": {"seq_len": 1024, "global_batch": 16},
}


def written(folder: Path, **fields: object) -> str:
    path = folder / "spec.yaml"
    path.write_text(json.dumps(SPEC | fields))
    return str(path)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    names = [repr(name) for name in framework_names()]
    told = refusal(written(tmp_path, framework="megatrom"))
    unknown = run("explain", "--rules", "megatrom")
    accepted = f"{', '.join(names[:-1])} or {names[-1]}".replace("'", "")
    assert f"'megatrom': expected {accepted}; did you mean megatron?" in told
    assert ", ".join(framework_names()) in unknown.stderr


def test_the_schema_lists_the_names() -> None:
    field = Spec.model_json_schema()["properties"]["framework"]
    assert field["enum"] == framework_names()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", framework_names())
def test_no_framework_is_faster_than_none(name: str, precision: str) -> None:
    """Whatever a framework may launch and saves, `ideal` may and does too."""
    data = SPEC | {"training": {**SPEC["training"], "precision": precision}}
    found = solve(Spec.model_validate(data | {"framework": name})).best
    ideal = solve(Spec.model_validate(data | {"framework": "ideal"})).best
    assert found is not None
    assert ideal is not None
    assert ideal.step_s <= found.step_s


def _named(path: Path) -> set[str]:
    """Return the names of frameworks that stand as text in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set(framework_names())
    texts = (one.value for one in ast.walk(tree) if isinstance(one, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text in names}


@pytest.mark.slow
def test_no_other_code_names_a_framework() -> None:
    """Nothing is compared with a name, looked up by one, or in a set of them.

    What writes or reads the files of one framework names it.
    """
    rooms = {ROOT / "frameworks", ROOT / "exports", ROOT / "imports"}
    elsewhere = [path for path in ROOT.rglob("*.py") if rooms.isdisjoint(path.parents)]
    found = {path.relative_to(ROOT).as_posix(): _named(path) for path in elsewhere}
    defaults = {"spec/spec.py": {"megatron", "fsdp"}}
    assert {path: names for path, names in found.items() if names} == defaults
