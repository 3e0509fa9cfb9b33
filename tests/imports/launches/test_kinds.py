"""Every kind reads what exports write, and its samples as they are meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import meshwright as mw
from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_pins
from meshwright.exports import TARGETS
from meshwright.imports.launches.formats import parse_toml
from meshwright.imports.launches.plan import Sizes, decide
from meshwright.imports.read import read_launch
from meshwright.imports.registry import kinds
from meshwright.spec.plan_fields import Pins
from tests.exports.small import exported
from tests.helpers.command import run
from tests.helpers.launches import written
from tests.helpers.plans import best_of

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("target", TARGETS)
def test_every_setting_that_is_exported_is_known(target: str, tmp_path: Path) -> None:
    launch = read_launch(written(exported(target), tmp_path))
    assert not launch.unknown
    assert not [*launch.idle, *launch.unjudged, *launch.unset]


DECIDED: dict[str, dict[str, Any]] = {
    "accelerate.1": {"tp": 2, "dp_shard": 4, "zero": 3, "recompute": "full"},
    "accelerate.2": {"zero": 3, "offload": "optimizer", "microbatches": 4, "pp": 1},
    "axolotl": {
        "tp": 2, "zero": 2, "dp_shard": 8, "micro_batch": 2, "recompute": "full",
    },
    "llama_factory": {"micro_batch": 1, "microbatches": 8, "precision": "bf16"},
    "nanotron": {
        "tp": 2, "dp_replicate": 4, "micro_batch": 2, "microbatches": 8,
        "sequence_parallel": True, "zero": 0, "recompute": "full",
    },
    "automodel": {
        "tp": 2, "dp_shard": 8, "zero": 3, "micro_batch": 2, "recompute": "full",
        "pp": 1,
    },
    "openrlhf": {
        "tp": 2, "dp_shard": 8, "zero": 3, "micro_batch": 2, "recompute": "full",
        "offload": "optimizer",
    },
    "verl.2": {"tp": 1, "cp": 2, "dp_shard": 8, "zero": 3, "micro_batch": 2},
    "verl.1": {
        "tp": 4, "pp": 2, "vpp": 2, "dp_shard": 2, "zero": 1, "micro_batch": 2,
        "sequence_parallel": True, "recompute": "full", "precision": "bf16",
    },
    "nemo_rl.1": {
        "tp": 4, "pp": 2, "vpp": 1, "dp_shard": 2, "zero": 1, "micro_batch": 1,
        "sequence_parallel": True, "recompute": "full", "precision": "bf16",
    },
    "nemo_rl.2": {"tp": 2, "dp_shard": 8, "zero": 3, "micro_batch": 2, "pp": 1},
    "accelerate.3": {
        "zero": 2, "dp_shard": 16, "micro_batch": 2, "microbatches": 4,
        "recompute": "full", "offload": "none", "precision": "bf16",
    },
    "trl.1": {"micro_batch": 4, "microbatches": 2, "recompute": "full"},
    "trl.2": {"micro_batch": 4, "microbatches": 4, "recompute": "full-cpu"},
    "trl.3": {
        "zero": 2, "dp_shard": 16, "microbatches": 4, "recompute": "full",
        "offload": ["optimizer", "gradients"], "precision": "bf16",
    },
    "deepspeed.1": {"zero": 3, "micro_batch": 2, "offload": "optimizer", "pp": 1},
    "deepspeed.2": {"tp": 2, "pp": 2, "zero": 1, "micro_batch": 1, "dp_shard": 4},
    "megatron.1": {
        "tp": 4, "pp": 2, "vpp": 4, "sequence_parallel": True, "dp_shard": 2,
        "recompute_layers": [8, 8], "layers": [16, 16],
    },
    "megatron.2": {"layers": [3, 5, 5, 3], "recompute": "selective", "zero": 1},
    "megatron_bridge.1": {"tp": 4, "pp": 2, "recompute": "selective", "zero": 1},
    "megatron_bridge.2": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
    "megatron_bridge.3": {"tp": 2, "pp": 4, "micro_batch": 1, "precision": "bf16"},
    "megatron_yaml.1": {"tp": 2, "pp": 2, "zero": 1, "micro_batch": 2},
    "megatron_yaml.2": {"tp": 2, "pp": 4, "zero": 0, "micro_batch": 4, "vpp": 8},
    "torchtitan.1": {"tp": 2, "pp": 2, "vpp": 2, "recompute": "full"},
    "torchtitan.2": {"tp": 2, "pp": 2, "layers": [15, 17], "dp_shard": 4, "zero": 2},
    "torchtitan_toml": {"tp": 2, "pp": 1, "dp_shard": 8, "zero": 3, "micro_batch": 2},
    "torchtitan_yaml": {"tp": 2, "pp": 1, "dp_shard": 8, "zero": 3, "micro_batch": 4},
    "torchtune.1": {
        "dp_replicate": 2, "dp_shard": 8, "zero": 2, "micro_batch": 2,
        "microbatches": 8, "recompute": "full", "precision": "bf16",
    },
    "torchtune.2": {"tp": 8, "micro_batch": 4, "pp": 1},
    "litgpt.1": {"dp_shard": 16, "zero": 3, "micro_batch": 4, "recompute": "full"},
    "litgpt.2": {"micro_batch": 4, "recompute": "none", "precision": "bf16"},
    "llm_foundry.1": {
        "dp_shard": 16, "zero": 3, "micro_batch": 8, "recompute": "full", "tp": 1,
    },
    "llm_foundry.2": {"micro_batch": 4, "zero": 2, "pp": 1},
}  # fmt: skip
"""By sample: some of what it decides on 16 GPUs, of a model of 32 layers."""

SIZES = {
    "nanotron": Sizes(8, 16),
    "megatron.2": Sizes(16, 16),
    "litgpt.2": Sizes(1, 16),
    "llm_foundry.2": Sizes(8, 32),
}


@pytest.mark.parametrize("sample", DECIDED)
def test_sample_decides_its_plan(sample: str) -> None:
    launch = read_launch(DATA / "imports" / f"{sample}.txt")
    pins = decide(launch, SIZES.get(sample, Sizes(16, 32))).pins
    expected = DECIDED[sample]
    assert {name: pins.get(name) for name in expected} == expected
    assert launch.kind == sample.partition(".")[0]


@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_deepspeed_counts_the_batch_over_its_groups(axis: str, tmp_path: Path) -> None:
    spec = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec)
    pins = Pins.model_validate({axis: 2, "pp": 1})
    asked = with_pins(spec.model_copy(update={"framework": "deepspeed"}), pins)
    best = best_of(asked)
    assert best is not None
    files = mw.export(asked, best.plan, to="deepspeed")
    # AutoTP's groups come too late for the check of a batch that is said.
    assert ("train_batch_size" in json.loads(files["deepspeed.json"])) == (axis == "cp")
    launch = read_launch(written(files, tmp_path))
    found = decide(launch, Sizes(2, spec.model.n_layers))
    assert found.pins[axis] == 2
    batch = launch.value("training.global_batch") or found.global_batch
    assert batch == spec.training.global_batch


def test_every_kind_has_a_sample() -> None:
    assert {name.partition(".")[0] for name in DECIDED} == {*kinds("launches")}


def test_chunks_of_a_depth_that_no_model_has_are_not_listed(tmp_path: Path) -> None:
    text = (DATA / "imports" / "megatron.1.txt").read_text()
    script = tmp_path / "run.sh"
    script.write_text(text.replace("--num-layers 32", "--num-layers 2147483648"))
    pins = decide(read_launch(script), Sizes(32, 2**31)).pins
    assert pins["layers"] == [2**30, 2**30]
    assert pins["recompute_layers"] == [2**29, 2**29]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bf16": True}, "6: bf16: true: expected a mapping"),
        ({"zero_optimization": 3}, "3: zero_optimization: 3: expected a mapping"),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": ["cpu"]}},
            "zero_optimization.offload_optimizer: ['cpu']: expected a mapping",
        ),
        ({"zero_optimization": True}, {"zero": 1}),
        ({"zero_optimization": False}, {"zero": 0}),
        ({"zero_optimization": {}, "fp16": None}, {"zero": 0}),
    ],
)
def test_values_in_place_of_sections_of_deepspeed_are_refused(
    changed: dict[str, Any], told: str | dict[str, int], tmp_path: Path
) -> None:
    """A switch of ZeRO-1 is what the section once was, and is still taken."""
    whole = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, **changed}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"gradient_clipping": 1.0, **whole}, indent=1))
    if isinstance(told, str):
        with pytest.raises(SpecError) as caught:
            read_launch(path, "deepspeed")
        assert told in str(caught.value)
    else:
        launch = read_launch(path, "deepspeed")
        assert {name: launch.value(name) for name in told} == told


def test_import_prints_the_beginning_of_a_spec() -> None:
    path = str(DATA / "pretrain.sh")
    done = run("import", path)
    assert (done.code, done.stdout) == (0, run("import", "megatron", path).stdout)
    spec = yaml.safe_load(done.stdout)
    assert [*spec] == ["model", "framework", "training", "pins"]
    assert spec["pins"]["recompute_layers"] == [4, 4, 4, 4]
    assert "--plan 'tp=8,pp=4," in done.stdout
    assert "cluster (128 GPUs), model.vocab" in done.stderr


def refusal(*arguments: str) -> str:
    """Return the message with which `meshwright import` refuses a file."""
    done = run("import", *arguments)
    assert (done.code, done.stdout) == (2, "")
    return done.stderr


def test_import_says_what_it_cannot_use(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("nothing of the kind\n")
    assert "KIND: missing before" in refusal(str(path))
    assert "no command has one of" in refusal("megatron", str(path))
    told = refusal("torchtitan_toml", str(DATA / "pretrain.sh"))
    assert "this looks like megatron" in told
    path.write_text(
        "version: v2\ntasks:\n- name: sft\n  arguments: ['A=1 accelerate launch\n"
        "    --config_file a.yaml sft.py']\n"
    )
    assert "describes a job in YAML: expected the command" in refusal(str(path))


@pytest.mark.parametrize(
    "line",
    [
        "a" + ".a" * 5_000 + " = 1",
        "[a" + ".'b c'" * 5_000 + "]",
        "x = {a" + ' . "b"' * 5_000 + " = 1}",
    ],
)
def test_toml_keys_nest_no_deeper_than_tables(line: str) -> None:
    with pytest.raises(SpecError, match=r"a\.toml:2: expected at most 40 levels"):
        parse_toml(f"b.c.d = [1.5, 2.5]\n{line}\n", "a.toml")


def test_names_that_are_no_option_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "$(touch hacked)\n`touch hacked`\nrun --micro-batch-size $(touch x)"
    )
    launch = read_launch(path)
    assert "micro_batch" not in launch.values
    assert [*tmp_path.iterdir()] == [path]


NAMED = {
    "axolotl": "base_model: {}\nsequence_len: 4096\n",
    "llama_factory": "model_name_or_path: {}\ncutoff_len: 4096\n",
    "trl": "model_name_or_path: {}\nper_device_train_batch_size: 1\n",
    "verl": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={} "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2\n",
}
"""By kind, a file that names its model."""


@pytest.mark.parametrize("kind", NAMED)
def test_the_name_of_a_model_is_its_preset(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(NAMED[kind].format("meta-llama/Meta-Llama-3-8B"))
    done = run("import", str(path))
    assert f"Made from {path} ({kind}:" in done.stdout
    assert yaml.safe_load(done.stdout)["model"] == "llama3-8b"
    assert "Meta-Llama-3-8B: taken as the bundled llama3-8b" in done.stderr
    assert "n_layers" not in done.stderr
    path.write_text(NAMED[kind].format("my/model"))
    done = run("import", str(path))
    assert "model" not in yaml.safe_load(done.stdout)
    assert f"{path}:1: " in done.stderr
    assert "my/model: no bundled model; give its config.json" in done.stderr
    assert "model.n_layers" in done.stderr


def test_sizes_beside_a_preset_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    layers = "actor_rollout_ref.actor.megatron.override_transformer_config.num_layers=4"
    path.write_text(NAMED["verl"].format("Qwen/Qwen3-8B").rstrip() + f" +{layers}\n")
    assert "so not read: model.n_layers" in read_launch(path).model_note()


FACTORY = "model_name_or_path: m\ncutoff_len: 4096\nper_device_train_batch_size: 1\n"


@pytest.mark.parametrize(
    ("more", "rank", "judged"),
    [
        ("", 8, True),
        ("lora_rank: 64\n", 64, True),
        ("finetuning_type: lora\n", 8, True),
        ("finetuning_type: full\n", None, True),
        ("finetuning_type: freeze\n", None, False),
    ],
)
def test_llama_factory_trains_adapters_by_itself(
    more: str, rank: int | None, judged: bool, tmp_path: Path
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(FACTORY + more)
    launch = read_launch(path)
    assert launch.kind == "llama_factory"
    assert launch.value("training.lora.rank") == rank
    assert (not launch.unjudged) == judged


def test_options_of_llama_factory_are_read_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "sft.sh"
    path.write_text(
        "NPROC_PER_NODE=2 llamafactory-cli train \\\n  --model_name_or_path m "
        "--finetuning_type lora --lora_target q_proj,v_proj --cutoff_len 4096 "
        "--quantization_bit 4 --quantization_method bnb\n"
    )
    launch = read_launch(path)
    assert (launch.title, launch.value("gpus")) == ("LLaMA-Factory", 2)
    assert launch.value("recompute") == "full"
    assert launch.value("zero") == 0
    assert launch.value("training.lora.targets") == ["q_proj", "v_proj"]
    assert launch.value("training.lora.weights") == "nf4"
    assert not [*launch.unknown, *launch.unjudged, *launch.unset]


@pytest.mark.parametrize(
    ("more", "drops"),
    [("", None), ("lora_dropout: 0.1\n", True), ("lora_dropout: 0\n", False)],
)
def test_what_adapters_drop_is_read(
    more: str, drops: bool | None, tmp_path: Path
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(FACTORY + more)
    assert read_launch(path).value("training.lora.dropout") is drops
    ours = "model_name_or_path: m\nper_device_train_batch_size: 1\nuse_peft: true\n"
    path.write_text(ours + "max_length: 4096\n" + more)
    launch = read_launch(path)
    assert launch.kind == "trl"
    assert launch.value("training.lora.dropout") is (drops is not False)


def test_experts_of_the_older_nanotron_are_read(tmp_path: Path) -> None:
    text = (DATA / "imports" / "nanotron.txt").read_text()
    path = tmp_path / "llamoe.yaml"
    older = "is_llamoe_config: true\n    moe_num_experts: 4\n"
    path.write_text(text.replace("is_qwen2_config: true\n", older))
    launch = read_launch(path)
    told = {n: launch.value(f"model.moe.{n}") for n in ("n_experts", "top_k", "d_ff")}
    assert told == {"n_experts": 4, "top_k": 1, "d_ff": 8192}
    assert launch.value("model.gated_mlp") is False
    assert not launch.unknown


def test_an_option_is_said_to_be_given_again_once(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    repeated = "".join(f" --tensor-model-parallel-size {n}" for n in range(1, 6_000))
    script.write_text(f"torchrun pretrain_gpt.py --num-layers 32{repeated}\n")
    launch = read_launch(script)
    (told,) = (note for note in launch.idle if "given again" in note)
    assert "--tensor-model-parallel-size" in told
    assert launch.value("tp") == 5_999


def test_dots_in_comments_and_texts_of_toml_nest_nothing() -> None:
    dotted = ".".join("abcdefghij" * 5)
    text = f"# {dotted}\na = '{dotted}'  # [{dotted}]\nb = \"{'[' * 50}\"\n"
    assert parse_toml(text, "a.toml").data == {"a": dotted, "b": "[" * 50}


def test_a_flavor_of_torchtitan_is_the_bundled_model(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text('[model]\nname = "qwen3"\nflavor = "30B-A3B"\n')
    launch = read_launch(file, "torchtitan_toml")
    assert launch.preset == "qwen3-30b-a3b"
    file.write_text('[model]\nname = "llama3"\nflavor = "debugmodel"\n')
    assert read_launch(file, "torchtitan_toml").preset is None


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("torchrun pretrain_gpt.py --tensor-model-parallel-size 2 "
         "--expert-model-parallel-siz 4\n",
         "--expert-model-parallel-siz", "expert_model_parallel_size"),
        ('{"zero_optimization": {"stage": 2}, "train_batch_szie": 8}',
         "train_batch_szie", "train_batch_size"),
        ("step_scheduler: {local_batch_size: 1}\ndistributed: {ep_siz: 8}\n",
         "distributed.ep_siz", "distributed.ep_size"),
    ],
)  # fmt: skip
def test_a_misspelt_option_names_the_one_that_is_meant(
    tmp_path: Path, text: str, wrong: str, right: str
) -> None:
    path = tmp_path / "launch"
    path.write_text(text)
    told = [note for note in mw.import_file(path).notes if "not known" in note]
    assert [f"{wrong} (did you mean {right}?)" in note for note in told] == [True]
