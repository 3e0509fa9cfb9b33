"""What is exported, word by word, and that bash reads it as it is meant."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import meshwright as mw
from meshwright.explanations.decisions import with_pins
from meshwright.exports import TARGETS, deepspeed
from meshwright.exports.files import ExportedFile, Setting, bash_array, yaml_value
from meshwright.exports.target import target as exporter
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import framework_names, trained_by
from tests.exports.small import DATA, exported, spec_of
from tests.helpers.command import run
from tests.helpers.plans import best_of

HOSTILE = '$(touch hacked)`touch hacked`\'""" {x} %s; touch hacked #\\ | a'
"""Control characters are refused where a spec is read."""


@pytest.mark.parametrize("target", TARGETS)
def test_files_are_these(target: str) -> None:
    files = {file.name: file.text for file in exported(target).files}
    expected = {one.name: one.read_text() for one in (DATA / target).iterdir()}
    assert files == expected


@pytest.mark.parametrize("target", TARGETS)
def test_scripts_are_bash(target: str) -> None:
    for file in exported(target).files:
        if file.name.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=file.text, text=True, check=True)


@pytest.mark.parametrize("target", TARGETS)
def test_every_number_says_where_it_is_from(target: str) -> None:
    for file in exported(target).files:
        for line in file.text.splitlines():
            code = line.strip()
            is_argument = file.name == "launch.sh" and code.startswith("--")
            if is_argument and "\\" not in code and "  # " not in code:
                assert code in ("--mock-data", "--lr 1e-4", "--train-iters 10") or (
                    code.startswith("--tokenizer-type")
                ), line


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1e-5, "1.0e-05"), (3e-4, "0.0003"), (2.5e-8, "2.5e-08"), (64, "64")],
)
def test_numbers_are_numbers_in_yaml(value: float, expected: str) -> None:
    """PyYAML, which has YAML 1.1, reads `1e-05` as a text."""
    assert yaml_value(value) == expected
    assert yaml.safe_load(yaml_value({"a": [value]})) == {"a": [value]}
    assert yaml.safe_load(yaml_value("v1e5 1e5")) == "v1e5 1e5"


def test_megatron_is_told_what_it_divides_by() -> None:
    """`--eval-interval` is None by default, and `train_iters` is divided by it."""
    script = exported("megatron")["launch.sh"]
    words = ["--log-interval 1 ", "--log-throughput ", "--eval-iters 0 "]
    assert all(word in script for word in [*words, "--eval-interval 1000 "])
    assert script.index('"${DATA[@]}"') < script.index('"$@"')


def test_deepspeed_reads_plain_json() -> None:
    """`transformers` reads the file by `json.load`; sections stand in sections."""
    spec = spec_of("deepspeed")
    best = best_of(spec)
    assert best is not None
    whole = best.plan.model_copy(update={"zero": 3, "offload": "parameters"})
    written = json.loads(mw.export(spec, whole)["deepspeed.json"])
    assert written["zero_optimization"]["offload_param"]["pin_memory"]
    training = spec.training.model_copy(update={"offload_fraction": 0.5})
    half = spec.model_copy(update={"training": training})
    told = mw.export(half, whole.model_copy(update={"offload": "optimizer"}))
    config = json.loads(told["deepspeed.json"])
    assert config["bf16"] == {"enabled": True}
    zero = config["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["ratio"]) == (3, 0.5)
    sources = told["deepspeed.md"]
    assert "| `zero_optimization.offload_optimizer.ratio` | 0.5 |" in sources
    assert sources.count("\n| `") == 4 + 5 + 3


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_names_stay_text(target: str, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("torchrun", "accelerate", "python"):
        (commands / name).write_text("#!/bin/sh\n")
        (commands / name).chmod(0o755)
    for file in exported(target, name=HOSTILE).files:
        (tmp_path / file.name).write_text(file.text)
        if file.name.endswith(".py"):
            compile(file.text, file.name, "exec")
    environment = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "NODE_RANK": "0",
        "MASTER_ADDR": "node0",
        **dict.fromkeys(("PROGRAM", "PROMPTS", "CHECKPOINT"), HOSTILE),
    }
    subprocess.run(["bash", "launch.sh"], cwd=tmp_path, env=environment, check=True)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("target", ["verl", "slime"])
def test_engines_get_what_the_plan_leaves_free(target: str) -> None:
    """20 GiB of an H100's 80 GiB; Ray starts the ranks, and no launcher."""
    spec = spec_of(target)
    best = best_of(spec)
    assert best is not None
    limits = spec.limits.model_copy(update={"reserved_gib": 20.0})
    found = mw.export(spec.model_copy(update={"limits": limits}), best, to=target)
    share = r"gpu_memory_utilization=0\.25|--sglang-mem-fraction-static 0\.25"
    assert re.search(share, found["launch.sh"])
    assert "limits.reserved_gib 20" in found["launch.sh"]
    assert {file.name for file in found.files} == {"launch.sh", "model.md"}
    for launcher in ("sbatch", "kubernetes", "skypilot"):
        with pytest.raises(mw.SpecError, match="starts ranks by Ray"):
            mw.export(spec, best, to=target, launcher=launcher)


def test_words_are_quoted() -> None:
    settings = [Setting("--name", HOSTILE, HOSTILE)]
    script = bash_array("WORDS", settings) + "printf '%s' \"${WORDS[1]}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout == HOSTILE


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".", "..", "a\nb", "-x"])
def test_names_are_no_paths(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        ExportedFile(name=name, text="")


def test_command_writes_below_its_folder(tmp_path: Path) -> None:
    done = run("export", "gpt-1.3b-2xh100-nvlink", "-o", str(tmp_path))
    assert done.code == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["launch.sh", "model.md"]
    assert "wrote launch.sh" in done.stdout


def test_solve_exports_too(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert run("export", "gpt-1.3b-2xh100-nvlink", "-o", str(one)).code == 0
    assert run("solve", "gpt-1.3b-2xh100-nvlink", "--export", str(two)).code == 0
    assert (one / "launch.sh").read_text() == (two / "launch.sh").read_text()


def refusal(*arguments: str) -> str:
    done = run("export", *arguments)
    assert (done.code, done.stdout) == (2, "")
    return done.stderr


def test_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    folder = str(tmp_path)
    (tmp_path / "taken").write_text("")
    told = refusal("gpt-1.3b-dgx-1v", "-o", str(tmp_path / "taken"))
    assert "not a directory" in told
    said = refusal("gpt-1.3b-dgx-1v", "--to", "torchtitan", "-o", folder)
    assert "launches plans of torchtitan" in said
    said = refusal("serve-llama3-8b-1xa100", "-o", folder)
    assert "for specs with training" in said
    spec = spec_of("torchtitan")
    training = spec.training.model_copy(update={"optimizer": "sgd"})
    path = tmp_path / "spec.yaml"
    path.write_text(spec.model_copy(update={"training": training}).model_dump_json())
    said = refusal(str(path), "-o", folder)
    assert "torchtitan/components/optimizer.py: default_adamw" in said
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "taken"]


def test_plans_of_other_frameworks_are_refused() -> None:
    spec = mw.load("mpt-30b-512xh100", mw.Spec)
    best = best_of(spec)
    assert best is not None
    with pytest.raises(mw.SpecError, match="launches plans of megatron"):
        mw.export(spec, best, to="megatron")
    with pytest.raises(mw.SpecError, match="is no target"):
        mw.export(spec, best, to="horovod")


def test_split_experts_are_said_to_megatron() -> None:
    spec = mw.load("mixtral-8x7b-64xh100", mw.Spec, pins={"tp": 2, "etp": 2})
    best = mw.solve(spec, by_kind=False)
    assert "--expert-tensor-parallel-size 2" in mw.export(spec, best)["launch.sh"]
    recipe = mw.export(spec, best, to="megatron-bridge")["meshwright_plan.py"]
    assert "expert_tensor_parallel_size = 2" in recipe


def test_small_state_is_said_to_megatron() -> None:
    """fp8 weights for 16-bit ones, and the precision-aware optimizer's moments."""
    training = {"seq_len": 8192, "global_batch": 128, "precision": "fp8"}
    training |= {"fp8_weights": "primary", "moments": "bf16", "gradients": "bf16"}
    base = {"model": "llama3-8b", "cluster": "dgx-h100", "framework": "megatron"}
    spec = mw.load({**base, "training": training, "pins": {"zero": 1}}, mw.Spec)
    best = best_of(spec)
    assert best is not None
    script = mw.export(spec, best, to="megatron")["launch.sh"]
    words = ("--fp8-param-gather ", "--use-precision-aware-optimizer ")
    assert all(word in script for word in words)
    assert "--exp-avg-sq-dtype bf16" in script
    recipe = mw.export(spec, best, to="megatron-bridge")["meshwright_plan.py"]
    assert "cfg.mixed_precision.fp8_param_gather = True" in recipe
    assert "cfg.mixed_precision.grad_reduce_in_fp32 = False" in recipe
    assert "cfg.optimizer.exp_avg_dtype = torch.bfloat16" in recipe
    sixteen = {**training, "precision": "bf16", "fp8_weights": "copies"}
    whole = mw.load({**base, "training": sixteen, "pins": {"zero": 1}}, mw.Spec)
    with pytest.raises(mw.SpecError, match=r"training\.master_weights"):
        mw.export(whole, mw.solve(whole, by_kind=False), to="megatron")


def test_pure_bf16_is_said_to_torch() -> None:
    """No master weights: a model in bf16, and nothing that would cast it."""
    training = {"seq_len": 8192, "global_batch": 128, "master_weights": "none"}
    base = {"model": "llama3-8b", "cluster": "dgx-h100", "training": training}
    pins = {"zero": 3, "tp": 1, "cp": 1, "recompute": "full"}
    files = {}
    for framework, target in (("torchtitan", "torchtitan"), ("fsdp", "accelerate")):
        spec = mw.load({**base, "framework": framework, "pins": pins}, mw.Spec)
        files[target] = mw.export(spec, mw.solve(spec, by_kind=False), to=target)
    text = {
        target: "".join(file.text for file in one.files)
        for target, one in files.items()
    }
    assert "dtype='bfloat16'" in text["torchtitan"]
    assert "mixed_precision: 'no'" in text["accelerate"]
    assert "torch_dtype=torch.bfloat16" in text["accelerate"]


def test_fp32_sums_beside_fp16_are_said_to_megatron() -> None:
    training = {"seq_len": 2048, "global_batch": 64, "precision": "fp16"}
    base = {"model": "gpt-1.3b", "cluster": "dgx-a100", "framework": "megatron"}
    pins = {"zero": 1, "tp": 1, "pp": 1}
    scripts = []
    for sums in ("fp32", "bf16"):
        asked = {**training, "gradients": sums}
        spec = mw.load({**base, "training": asked, "pins": pins}, mw.Spec)
        best = best_of(spec)
        assert best is not None
        scripts.append(mw.export(spec, best, to="megatron")["launch.sh"])
    name = "--accumulate-allreduce-grads-in-fp32"
    assert [name in script for script in scripts] == [True, False]


def _stage(spec: mw.Spec, plan: mw.Plan) -> int:
    config, _ = deepspeed.config_files(spec, plan)
    return int(json.loads(config.text)["zero_optimization"]["stage"])


def test_deepspeed_adds_up_in_fp32_by_stage_1_alone() -> None:
    """Its engine refuses 16-bit weights beside fp32 sums at stage 0 (trained)."""
    spec = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec, pins=["zero=0", "tp=1", "pp=1"])
    best = best_of(spec)
    assert best is not None
    fields = {"framework": "deepspeed", "pins": Pins()}
    spec, plan = spec.model_copy(update=fields), best.plan
    assert "--pin zero=1" in str(next(deepspeed.refusals(spec, plan)))
    alone = plan.model_copy(update={"dp_replicate": 1, "dp_shard": 1})
    assert _stage(spec, alone) == 1
    assert not [*deepspeed.refusals(spec, alone)]
    narrow = spec.training.model_copy(update={"gradients": "bf16"})
    assert _stage(spec.model_copy(update={"training": narrow}), plan) == 0


@pytest.mark.parametrize("name", sorted({*TARGETS} - {*framework_names()}))
def test_targets_that_are_no_frameworks_say_what_they_train_by(name: str) -> None:
    told = exporter(name)
    assert {told.framework, *told.also} <= {*trained_by(name)}
    fields = {"model": "llama3-8b", "cluster": {"topology": "dgx-h100"}}
    words = f"trains by {' or '.join(trained_by(name))}"
    with pytest.raises(mw.SpecError, match=words):
        mw.load({**fields, "framework": name.replace("-", "_")}, mw.Spec)


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan"])
@pytest.mark.parametrize(
    ("count", "told"), [(1, "1 micro-batch"), (2, "2 micro-batches")]
)
def test_one_micro_batch_is_no_several(target: str, count: int, told: str) -> None:
    pins = {"tp": 8, "pp": 1, "vpp": 1, "cp": 1, "microbatches": count}
    asked = with_pins(spec_of(target), Pins.model_validate(pins))
    asked = asked.having("training", global_batch=2 * count)
    best = best_of(asked)
    assert best is not None
    text = "".join(file.text for file in mw.export(asked, best.plan, to=target).files)
    assert f"training.global_batch: {told} per step" in text
