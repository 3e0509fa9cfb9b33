"""A framework in one new file: solved with, and its rule listed and explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwright.frameworks
from meshwright.frameworks.base.registry import framework, offered_sets, recomputed_bits
from meshwright.plans.skeletons import PER_OP
from meshwright.spec.plan_fields import SELECTIVE
from meshwright.spec.spec import Spec
from tests.helpers.command import run
from tests.helpers.rows import row

TOY = '''
"""A toy that has no tensor parallelism beyond 2 and keeps 20 bytes a parameter."""

from meshwright.frameworks.base.framework import Framework, Selective, StateBytes
from meshwright.plans.skeletons import PER_OP
from meshwright.plans.rule import Rule

SMALL_TP = Rule(
    "tensor_parallel_small",
    "tp is 1 or 2",
    "the toy's manual",
    lambda spec, rows: rows.tp <= 2,
    "tp {tp}",
    is_inherited=True,
)

FRAMEWORK = Framework(
    title="Toy",
    mixed_state=lambda training, moments: StateBytes(4, 4, 4 + moments, 2, 4),
    degree_rules=(SMALL_TP,),
    overhead_gib=0.0,
    selective=Selective(unnamed=PER_OP),
    published_as=("toy-trainer",),
)
'''

SPEC = {
    "model": {"n_layers": 4, "d_model": 1024, "n_heads": 8, "d_ff": 4096, "vocab": 512},
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 40,
                "memory_gb_s": 2_000,
                "peak_tflops": {"bf16": 300},
            },
            "levels": [{"name": "node", "size": 8, "gb_s": 300, "latency_us": 5}],
        }
    },
    "framework": "toy",
    "training": {"seq_len": 1024, "global_batch": 16},
}


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[str]:
    """A spec of the toy, whose module lies in a folder beside the package's."""
    folder = tmp_path / "frameworks"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(SPEC))
    meshwright.frameworks.__path__.append(str(folder))
    yield str(path)
    meshwright.frameworks.__path__.remove(str(folder))
    framework.cache_clear()


def test_a_spec_is_solved_with_it(spec: str) -> None:
    done = run("solve", spec, "--format", "json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["status"], found["plan"]["tp"] <= 2) == ("optimal", True)


def test_its_state_is_counted(spec: str) -> None:
    """4 x 12 x 1,024^2 weights and two embeddings, at 4 + 4 + 12 bytes on each GPU."""
    plan = "tp=1,pp=1,zero=0,offload=none,recompute=none"
    done = run("explain", spec, "--plan", plan, "--format", "json")
    (stage,) = json.loads(done.stdout)["plan"]["stages"]
    parts = stage["parts"]
    held = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert parts["overhead"] == 0
    params = 4 * 12 * 1024**2 + 2 * 512 * 1024
    assert held * 2**30 == pytest.approx(20 * params, rel=0.01)


@pytest.mark.usefixtures("spec")
def test_what_it_recomputes_selectively_is_its_to_say() -> None:
    """It goes by operations, as torchtitan does, and has no modules to name."""
    toy, torchtitan = (
        Spec.model_validate(SPEC | {"framework": name})
        for name in ("toy", "torchtitan")
    )
    assert offered_sets(toy) == offered_sets(torchtitan) == [0]
    selective = row(recompute=SELECTIVE)
    bits = recomputed_bits(toy, selective)
    assert bits.tolist() == recomputed_bits(torchtitan, selective).tolist() == [PER_OP]


def test_its_rule_is_told(spec: str) -> None:
    done = run("explain", spec, "--plan", "tp=4", "--format", "json")
    assert done.code == 1
    (broken,) = json.loads(done.stdout)["broken_rules"]
    assert broken["rule"] == "tensor_parallel_small"
    assert broken["sentence"] == "tp is 1 or 2 (tp 4)"


def test_its_rule_is_listed(spec: str) -> None:
    listed = json.loads(run("explain", "--rules", "toy", "--format", "json").stdout)
    assert {
        "rule": "tensor_parallel_small",
        "sentence": "tp is 1 or 2",
        "frameworks": ["toy"],
        "source": "the toy's manual",
        "fails_with": "",
    } in listed
    everyone_s = [one for one in listed if len(one["frameworks"]) > 1]
    assert len(listed) == len(everyone_s) + 1
