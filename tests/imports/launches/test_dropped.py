"""Nothing of a launch file is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.frameworks.base.registry import framework
from meshwright.imports.launches.launch import Launch, is_harmless
from meshwright.imports.launches.plan import decide
from meshwright.imports.launches.settings import OPTIONS
from meshwright.imports.read import read_launch
from meshwright.loading.plan_text import sizes_of
from tests.helpers.command import run

MEGATRON = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 "


def launch_of(folder: Path, options: str) -> Launch:
    script = folder / "run.sh"
    script.write_text(MEGATRON + options + "\n")
    return read_launch(script)


def test_options_that_may_matter_are_named_unknown(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "--fsdp-double-buffer --seed 1 --lr 1e-4 --vast 3")
    assert launch.unknown == ["--fsdp-double-buffer", "--vast"]
    assert launch.ignored == ["--seed", "--lr"]
    assert any("not judged: --fsdp-double-buffer, --vast" in n for n in launch.notes())


def test_megatron_fsdp_hides_what_no_option_asks_to_hide(tmp_path: Path) -> None:
    sharded = "--use-megatron-fsdp --data-parallel-sharding-strategy "
    for strategy, hidden in (("optim_grads_params", True), ("optim_grads", False)):
        launch = launch_of(tmp_path, sharded + strategy)
        assert launch.value("training.overlap.gradients") is True
        assert launch.value("training.overlap.parameters") is hidden
    launch = launch_of(tmp_path, "--use-distributed-optimizer")
    assert launch.value("training.overlap.gradients") is False
    read = OPTIONS["megatron_model"]["always_hides"]
    known = framework("megatron").always_hides
    assert {zero: {*kinds} for zero, kinds in read.items()} == known


def test_experts_may_stand_in_a_file_that_is_sourced(tmp_path: Path) -> None:
    beside = "--expert-model-parallel-size 8 --hf-checkpoint /root/Qwen3-30B-A3B-FP8/"
    launch = launch_of(tmp_path, f"{beside} ${{MODEL_ARGS[@]}}")
    assert (launch.value("ep"), launch.preset) == (8, "qwen3-30b-a3b")
    with pytest.raises(SpecError, match="without --num-experts"):
        launch_of(tmp_path, "--expert-model-parallel-size 8 --hidden-size 1024")


PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    model: ${PRIMUS_MODEL:qwen2.5_7B}.yaml
    overrides:
      micro_batch_size: 10
      seq_length: ${SEQ_LENGTH:2048}
      tensor_model_parallel_size: 2
      overlap_grad_reduce: true
      load: null
"""


def test_primus_has_arguments_with_defaults(tmp_path: Path) -> None:
    file = tmp_path / "pretrain.yaml"
    file.write_text(PRIMUS)
    launch = read_launch(file)
    fields = ("micro_batch", "training.seq_len", "tp", "zero", "precision")
    assert [launch.value(name) for name in fields] == [10, 2048, 2, 1, "bf16"]
    assert launch.preset == "qwen2.5-7b"
    assert launch.value("training.overlap.gradients") is True
    assert launch.value("training.overlap.parameters") is False
    file.write_text(PRIMUS.replace("megatron", "maxtext", 1))
    with pytest.raises(SpecError, match="accepted: megatron"):
        read_launch(file)


PRIMUS_TUNED = """
modules:
  post_trainer:
    framework: megatron
    model: llama4_17B16E.yaml
    overrides:
      pipeline_model_parallel_size: 2
      virtual_pipeline_model_parallel_size: 2
      pipeline_model_parallel_layout: Et*12|t*12|t*12|t*12,L
      recompute_granularity: full
      recompute_layer_ids: "0,1,2,12,13,24,40"
      lora:
        enabled: true
        target_modules: [linear_qkv, linear_fc2]
"""


def test_primus_tunes_with_adapters_and_numbers_layers(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(PRIMUS_TUNED)
    launch = read_launch(file)
    assert launch.preset == "llama4-scout"
    fields = ("training.seq_len", "training.global_batch", "training.lora.rank")
    assert [launch.value(name) for name in fields] == [2048, 128, 32]
    targets = ["q_proj", "k_proj", "v_proj", "down_proj"]
    assert launch.value("training.lora.targets") == targets
    assert launch.value("stages") == [12, 12, 12, 12]
    assert launch.value("recompute_per_chunk") == 2
    file.write_text(PRIMUS_TUNED.replace("|t*12,L", ",L"))
    with pytest.raises(SpecError, match="contradicts virtual_pipeline"):
        read_launch(file)


def test_a_block_of_no_layers_recomputes_none(tmp_path: Path) -> None:
    none = "--recompute-granularity full --recompute-num-layers 0 --recompute-method "
    assert launch_of(tmp_path, none + "block").value("recompute") == "none"
    with pytest.raises(SpecError, match="1 or more"):
        launch_of(tmp_path, none + "uniform")


PRIMUS_TORCHTITAN = """
modules:
  pre_trainer:
    framework: torchtitan
    model: llama3.1_70B-fp8.yaml
    overrides:
      training: {local_batch_size: 6, seq_len: "${LENGTH:8192}"}
      activation_checkpoint: {mode: full}
      parallelism: {tensor_parallel_degree: 2}
"""


def test_primus_has_the_configuration_of_torchtitan(tmp_path: Path) -> None:
    file = tmp_path / "pretrain.yaml"
    file.write_text(PRIMUS_TORCHTITAN)
    launch = read_launch(file)
    fields = ("local_batch", "training.seq_len", "tp", "recompute", "precision")
    assert [launch.value(name) for name in fields] == [6, 8192, 2, "full", "fp8"]
    assert (launch.preset, launch.value("training.compile")) == ("llama3.1-70b", True)
    older = PRIMUS_TORCHTITAN.replace("local_batch_size", "batch_size")
    older = older.replace("activation_checkpoint: {mode: full}", "metrics: null")
    file.write_text(older.replace("-fp8", ""))
    launch = read_launch(file)
    assert (launch.value("local_batch"), launch.value("recompute")) == (6, "none")
    assert launch.value("precision") == ["bf16", "fp8"]
    file.write_text("a: 1\n")
    with pytest.raises(SpecError, match=r"expected modules\.pre_trainer"):
        read_launch(file, "torchtitan_yaml")


@pytest.mark.parametrize(("said", "sums"), [("", "bf16"), ("fp32", "fp32")])
def test_deepspeed_adds_up_in_the_type_of_the_weights(
    said: str, sums: str, tmp_path: Path
) -> None:
    types = f', "data_types": {{"grad_accum_dtype": "{said}"}}' if said else ""
    file = tmp_path / "ds.json"
    file.write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1},'
        f' "train_micro_batch_size_per_gpu": 1{types}}}'
    )
    assert read_launch(file).value("training.gradients") == sums


def test_all_harmless_options_are_named_when_asked_for(tmp_path: Path) -> None:
    many = " ".join(f"--save-{i} 1" for i in range(30))
    launch_of(tmp_path, many)
    script = str(tmp_path / "run.sh")
    assert "and 18 more, which --verbose names" in run("import", script).stderr
    whole = run("import", script, "--verbose").stderr
    assert "--save-29" in whole
    assert "more, which" not in whole


@pytest.mark.parametrize(
    "name",
    ["lr", "train.train_iters", "checkpoint.save", "optimizer.params.lr", "seed",
     "logger.log_interval", "metrics.enable_tensorboard"],
)  # fmt: skip
def test_is_harmless(name: str) -> None:
    assert is_harmless(name)


@pytest.mark.parametrize(
    "name",
    ["fsdp_double_buffer", "compile.enable", "training.seq_len", "micro_batch_size",
     "recompute_modules", "activation_checkpoint.mode", "communication_data_type",
     "sequence_parallel", "model.converters", "use_megatron_fsdp"],
)  # fmt: skip
def test_may_matter(name: str) -> None:
    assert not is_harmless(name)


HEREDOC = """MODE=zero
CONFIG="$(dirname "$0")/ds_${{MODE}}.json"
BATCH={batch}
if [ "$ASKED" == "" ]; then STAGE=3; fi
cat > "$CONFIG" << EOF
{{
  "train_batch_size": $BATCH,
  "bf16": {{"enabled": true}},
  "zero_optimization": {{"stage": $STAGE}}
}}
EOF
CMD="deepspeed --num_gpus 4 train.py --deepspeed_config=$CONFIG --max_length 4096"
eval $CMD --gradient_checkpointing
"""


def test_files_that_a_script_writes_are_read_with_its_lines(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(HEREDOC.format(batch=32))
    launch = read_launch(script)
    batch = launch.setting("training.global_batch")
    assert (launch.value("zero"), launch.value("training.global_batch")) == (3, 32)
    assert batch is not None
    assert str(batch.where) == f"{script}:7"
    assert launch.value("recompute") == "full"
    assert launch.value("training.seq_len") == 4096


def test_what_a_written_file_leaves_open_is_named_in_plain_characters(
    tmp_path: Path,
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(HEREDOC.format(batch="$2").replace("cat > ", "cat >> "))
    told = f"{script}:7: train_batch_size: ${{2}}: left open: 2 is not set in the file"
    assert told in read_launch(script).unset
    script.write_text(HEREDOC.format(batch=1).replace('cat > "$CONFIG"', "cat > x"))
    notes = " ".join(read_launch(script).notes())
    assert '--deepspeed_config $(dirname "$0")/ds_zero.json: no such file' in notes
    assert "\\ue000" not in notes


def test_a_condition_that_hides_the_command_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "if [ -f c.json ]; then\n  deepspeed x.py --deepspeed_config c.json\nfi\n"
    )
    with pytest.raises(SpecError, match=r"run.sh:1: no command .* this condition"):
        read_launch(script)


def test_options_that_count_as_they_are_are_named_harmless(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "--rampup-batch-size 16 16 100 --ckpt-format torch")
    assert "--ckpt-format" in launch.ignored
    assert any("--rampup-batch-size" in told for told in launch.unjudged)


BRIDGE = """from megatron.bridge.perf_recipes.common import (
    base_config, common, set_x_pipeline_model_parallel_layout,
    _perf_precision, _with_global_batch_size,
)

def large():
    cfg = base_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 4
    cfg.train.global_batch_size = 512
    set_x_pipeline_model_parallel_layout(cfg.model, "Et|(tt|)*6tL")
    common(cfg)
    return cfg

def small():
    cfg = _with_global_batch_size(large(), 128)
    return cfg
"""


def test_recipes_name_what_functions_of_other_files_may_set(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(BRIDGE)
    launch = read_launch(Path(f"{file}:small"))
    assert launch.unknown == ["base_config()", "common()"]
    assert launch.value("training.global_batch") == 128
    assert launch.value("stages") == [1, 2, 2, 2, 2, 2, 2, 1]
    assert launch.value("precision") == "fp8"


def test_torchtitan_may_compile_the_loss_or_the_model_alone(tmp_path: Path) -> None:
    file = tmp_path / "registry.py"
    text = (
        "from torchtitan.config import CompileConfig\n"
        "def plan():\n    return Trainer.Config(compile=CompileConfig(enable=True, "
        "components={}), parallelism=P(tensor_parallel_degree=2))\n"
    )
    compiled, told = [], []
    for parts in ('["loss"]', '["model"]', '["model", "loss"]'):
        file.write_text(text.format(parts))
        launch = read_launch(file)
        compiled.append(launch.value("training.compile"))
        told.append([note.rpartition(": ")[2] for note in launch.unjudged])
    assert compiled == [False, True, True]
    assert told == [
        ["the model is not compiled, and counts as such"],
        ["the loss counts as compiled with the model"],
        [],
    ]


def test_trainers_say_fsdp_and_fp8_in_several_words(tmp_path: Path) -> None:
    file = tmp_path / "axolotl.yaml"
    head = "base_model: x\nfp8: true\nbf16: true\n"
    file.write_text(
        head + "fsdp: [full_shard, auto_wrap]\nfsdp_config:\n"
        "  fsdp_offload_params: true\n  fsdp_activation_checkpointing: true\n"
    )
    launch = read_launch(file)
    names = ("zero", "offload", "recompute", "precision")
    found = [launch.value(name) for name in names]
    assert found == [3, "parameters", "full", "fp8"]
    file.write_text(head + "fsdp: shard_grad_op auto_wrap offload\n")
    launch = read_launch(file)
    assert [launch.value(name) for name in names[:2]] == [2, "parameters"]


def test_the_first_fsdp_with_offload_holds_gradients(tmp_path: Path) -> None:
    """It is what accelerate runs unless told."""
    trainer, launcher = tmp_path / "axolotl.yaml", tmp_path / "accelerate.yaml"
    for version, holds in {"1": True, "2": None}.items():
        said = f"fsdp_config:\n  fsdp_offload_params: true\n  fsdp_version: {version}\n"
        trainer.write_text(
            f"base_model: x\nbf16: true\nfsdp: [full_shard, auto_wrap]\n{said}"
        )
        head = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
        launcher.write_text(head + said)
        for file in (trainer, launcher):
            found = read_launch(file).value("training.holds_gradients")
            assert found == holds
    launcher.write_text(head + "fsdp_config: {fsdp_offload_params: true}\n")
    assert read_launch(launcher).value("training.holds_gradients")


def test_accelerate_with_deepspeed_splits_data_over_all_gpus(tmp_path: Path) -> None:
    file = tmp_path / "ds.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: auto}\n"
    )
    launch = read_launch(file)
    pins = decide(launch, sizes_of(launch)).pins
    assert (pins["tp"], pins["dp_replicate"], pins["dp_shard"]) == (1, 1, 8)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--cuda-graph-impl none --cuda-graph-scope attn", False),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True),
        ("--cuda-graph-impl transformer_engine", True),
        ("--cuda-graph-impl local --cuda-graph-modules attn moe_router",
         "outside_experts"),
        ("--cuda-graph-impl local --cuda-graph-modules mlp", None),
    ],
)  # fmt: skip
def test_graphs_replay_what_their_modules_are(
    tmp_path: Path, options: str, expected: bool | str | None
) -> None:
    launch = launch_of(tmp_path, options)
    assert launch.value("training.cuda_graphs") == expected
    assert not launch.unknown
    assert (expected is None) == any("the graphs of" in n for n in launch.unjudged)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("", None),
        ("PYTORCH_ALLOC_CONF=expandable_segments:True ", True),
        ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True ",
         True),
        ("PYTORCH_HIP_ALLOC_CONF=expandable_segments:False ", False),
        ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 ", False),
    ],
)  # fmt: skip
def test_the_allocator_of_a_script_is_read(
    tmp_path: Path, variable: str, expected: bool | None
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{variable}torchrun x.py --tensor-model-parallel-size 2\n")
    assert read_launch(script).value("training.expandable_segments") is expected


def test_a_program_of_deepspeed_names_its_model(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "deepspeed train.py --deepspeed ds.json --model_name_or_path "
        "meta-llama/Llama-3.1-8B --max_seq_length 4096\n"
    )
    launch = read_launch(script)
    assert (launch.preset, launch.value("training.seq_len")) == ("llama3.1-8b", 4096)


def test_precisions_that_no_gpu_is_priced_in_are_named(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(BRIDGE.replace("fp8_cs", "nvfp4"))
    launch = read_launch(Path(f"{file}:large"))
    assert launch.value("precision") is None
    assert any("nvfp4 is not judged" in told for told in launch.unjudged)


ARGUMENTS = (
    "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --bf16 True --block_size 4096 --learning_rate 2e-5"
)
"""The arguments of a program with the Trainer of transformers."""

BESIDE = {
    "zero3.json": '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, '
    '"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}',
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n"
    "fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: false}\n",
}


@pytest.mark.parametrize(
    ("start", "framework"),
    [
        (
            "torchrun --nproc_per_node 8 --nnodes 2 clm.py --deepspeed zero3.json",
            "deep",
        ),
        ("deepspeed --num_gpus 16 clm.py --deepspeed zero3.json", "deepspeed"),
        ("torchrun --nproc_per_node 16 clm.py --fsdp 'full_shard auto_wrap'", "fsdp"),
        ("accelerate launch --config_file fsdp.yaml sft.py", "fsdp"),
        (
            "accelerate launch --num_processes 16 --use_deepspeed "
            "--deepspeed_config_file zero3.json sft.py",
            "deepspeed",
        ),
    ],
)
@pytest.mark.parametrize("recomputes", [True, False])
def test_arguments_of_the_trainer_are_read_behind_every_launcher(
    start: str, framework: str, recomputes: bool, tmp_path: Path
) -> None:
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text)
    script = tmp_path / "run.sh"
    flag = "--gradient_checkpointing True" if recomputes else "--odd 1"
    script.write_text(f"{start} {ARGUMENTS} {flag}\n")
    launch = read_launch(script)
    pins = decide(launch, sizes_of(launch)).pins
    assert launch.framework.startswith(framework)
    assert launch.preset == "llama3.1-8b"
    assert launch.value("training.seq_len") == 4096
    read = {"micro_batch": 2, "microbatches": 4, "zero": 3, "dp_shard": 16}
    assert pins.items() >= {**read, "precision": "bf16"}.items()
    assert (launch.value("recompute") == "full") is recomputes
    assert launch.unknown == ([] if recomputes else ["--odd"])


@pytest.mark.parametrize(
    ("kind", "line"),
    [("cutoff_len: 4096\n", ""), ("", "gradient_checkpointing: false\n")],
)
def test_programs_recompute_by_themselves(kind: str, line: str, tmp_path: Path) -> None:
    """LLaMA-Factory and TRL recompute every layer unless told, the Trainer does not."""
    (tmp_path / "zero3.json").write_text(BESIDE["zero3.json"])
    file = tmp_path / "run.yaml"
    text = "per_device_train_batch_size: 2\nbf16: true\ndeepspeed: zero3.json\n"
    file.write_text(kind + text)
    launch = read_launch(file)
    assert launch.value("recompute") == "full"
    assert launch.value("precision") == "bf16"
    off = line or "disable_gradient_checkpointing: true\n"
    file.write_text(kind + text + off)
    assert read_launch(file).value("recompute") == "none"


def test_another_precision_than_the_file_of_deepspeed_is_refused(
    tmp_path: Path,
) -> None:
    half = BESIDE["zero3.json"].replace(
        'bf16": {"enabled": "auto"', 'fp16": {"enabled": 1'
    )
    (tmp_path / "zero3.json").write_text(half)
    script = tmp_path / "run.sh"
    script.write_text(f"deepspeed clm.py --deepspeed zero3.json {ARGUMENTS}\n")
    with pytest.raises(SpecError, match=r"fp16.*contradicts --bf16"):
        read_launch(script)


def test_the_old_word_for_recomputation_is_read(tmp_path: Path) -> None:
    assert launch_of(tmp_path, "--checkpoint-activations").value("recompute") == "full"
    assert launch_of(tmp_path, "--fp16").value("recompute") == "none"


def test_a_comment_names_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "# trl sft --config config.yaml\nper_device_train_batch_size: 2\n"
        "max_length: 1024\n"
    )
    launch = read_launch(file)
    assert (launch.value("micro_batch"), launch.value("training.seq_len")) == (2, 1024)
    assert not launch.unset


def test_a_file_behind_the_program_is_read(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(BESIDE["fsdp.yaml"])
    (tmp_path / "sft.yaml").write_text(
        "cutoff_len: 2048\nuse_muon: true\nper_device_train_batch_size: 1\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch --config_file fsdp.yaml src/train.py sft.yaml")
    launch = read_launch(script)
    assert launch.value("training.seq_len") == 2048
    assert launch.value("training.optimizer") == "muon"
    assert launch.value("gpus") == 16


def test_axolotl_is_plain_unless_its_file_shards(tmp_path: Path) -> None:
    script, file = tmp_path / "run.sh", tmp_path / "axolotl.yaml"
    script.write_text("torchrun --nproc-per-node 8 -m axolotl.cli.train axolotl.yaml\n")
    plain = "base_model: a/b\nmicro_batch_size: 1\nsequence_len: 2048\n"
    for more, zero in (("", 0), ("deepspeed: absent.json\n", None)):
        file.write_text(plain + more)
        assert read_launch(script).value("zero") == zero
    script.write_text(f"{script.read_text().rstrip()} --deepspeed absent.json\n")
    file.write_text(plain)
    assert read_launch(script).value("zero") is None


@pytest.mark.parametrize(
    "plain",
    [
        "base_model: a/b\nmicro_batch_size: 1\nsequence_len: 2048\n",
        "model_name_or_path: a/b\ncutoff_len: 2048\n",
    ],
)
def test_a_file_that_shards_nothing_is_of_replicas(plain: str, tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(plain)
    launch = read_launch(file)
    assert (launch.value("zero"), launch.value("offload")) == (0, "none")
    assert any("names neither FSDP nor DeepSpeed" in told for told in launch.notes())
    file.write_text(f"{plain}deepspeed: absent.json\n")
    assert read_launch(file).value("zero") is None


def test_a_file_is_found_where_programs_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (examples / "sft.yaml").write_text(
        "model_name_or_path: a/b\ncutoff_len: 2048\ndeepspeed: ds.json\n"
    )
    monkeypatch.chdir(tmp_path)
    assert read_launch(Path("examples/sft.yaml")).value("zero") == 2
    # What lies above the folder of a file that is named otherwise is not looked at.
    assert read_launch(examples / "sft.yaml").value("zero") is None
    monkeypatch.chdir(examples)
    assert read_launch(Path("../examples/sft.yaml")).value("zero") is None


def test_accelerate_without_a_configuration_starts_replicas(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "accelerate launch --mixed_precision bf16 --num_processes 8 finetune.py "
        "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 "
        "--attn_implementation flash_2 --use_lora --use_qlora --lora_rank 64\n"
    )
    launch = read_launch(script)
    assert (launch.value("gpus"), launch.value("zero")) == (8, 0)
    assert (launch.value("precision"), launch.preset) == ("bf16", "qwen3-8b")
    assert launch.value("training.attention") == "flash2"
    adapters = [launch.value(f"training.lora.{name}") for name in ("rank", "weights")]
    assert (adapters, launch.unknown) == ([64, "nf4"], [])
    assert any("names neither FSDP nor DeepSpeed" in told for told in launch.notes())
    script.write_text(script.read_text().replace("\n", " --deepspeed absent.json\n"))
    assert read_launch(script).value("zero") is None


def test_ends_trained_beside_adapters_are_read(tmp_path: Path) -> None:
    """Shards cast what is trained to fp32; without, copies stay as they are loaded."""
    file, script = tmp_path / "sft.yaml", tmp_path / "run.sh"
    plain = "base_model: a/b\nsequence_len: 2048\nadapter: lora\nlora_r: 8\n"
    whole = f"{plain}lora_modules_to_save: [model.embed_tokens, lm_head]\n"
    script.write_text(f"axolotl train {file.name}\n")
    for text, kept in (
        (plain, None),
        (whole, "bf16"),
        (f"{whole}deepspeed: absent.json\n", "mixed"),
        (f"{whole}fsdp: [full_shard, auto_wrap]\n", "mixed"),
        (whole.replace("adapter: lora\nlora_r: 8", "adapter:"), None),
    ):
        file.write_text(text)
        for started in (file, script):
            launch = read_launch(started)
            assert launch.value("training.lora.ends") == kept, text
            assert not launch.unjudged


def test_other_matrices_trained_beside_adapters_are_told(tmp_path: Path) -> None:
    plain = "base_model: a/b\nsequence_len: 2048\nadapter: lora\nlora_r: 8\n"
    for named in ("[lm_head]", "[embed_tokens, lm_head, norm]"):
        file = tmp_path / "sft.yaml"
        file.write_text(f"{plain}lora_modules_to_save: {named}\n")
        launch = read_launch(file)
        assert launch.value("training.lora.ends") is None
        (told,) = launch.unjudged
        assert "lora_modules_to_save" in told
        assert "embedding and head together" in told


UNSLOTH = """\
from unsloth import FastLanguageModel
model, _ = FastLanguageModel.from_pretrained("unsloth/llama-3-8b", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=128, target_modules=TARGETS)
trainer = SFTTrainer(model, args=SFTConfig(per_device_train_batch_size=2))
"""


def test_unsloth_trains_ends_whole_that_are_targets(tmp_path: Path) -> None:
    """Its continued pretraining has them so; PEFT has adapters beside them."""
    file = tmp_path / "train.py"
    for targets, is_noted in (
        (["q_proj", "embed_tokens", "lm_head"], False),
        (["q_proj", "lm_head"], True),
    ):
        file.write_text(UNSLOTH.replace("TARGETS", str(targets)))
        launch = read_launch(file)
        ends = launch.value("training.lora.ends")
        assert ends == (None if is_noted else "bf16")
        assert launch.value("training.lora.targets") == ["q_proj"]
        assert any("target_modules" in told for told in launch.unjudged) == is_noted
    launch = read_yaml_file(
        tmp_path,
        f"{AXOLOTL}adapter: lora\nlora_r: 8\n"
        "lora_target_modules: [q_proj, embed_tokens, lm_head]\n",
    )
    assert launch.value("training.lora.ends") is None
    (told,) = launch.unjudged
    assert "adapters beside embedding or head are not priced" in told


def test_kernels_of_adapters_are_read_where_all_are_there(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    plain = (
        "base_model: a/b\nsequence_len: 2048\nadapter: qlora\nlora_r: 8\n"
        "gradient_checkpointing: offload\ngradient_checkpointing_kwargs: "
        "{use_reentrant: true}\nlora_qkv_kernel: true\nlora_mlp_kernel: true\n"
    )
    for more, expected in (
        ("lora_o_kernel: true\n", "fused"),
        ("lora_o_kernel: true\nlora_dropout: 0\n", "fused"),
        ("lora_o_kernel: true\nlora_dropout: 0.05\n", None),
        ("", None),
    ):
        file.write_text(plain + more)
        launch = read_launch(file)
        assert launch.value("training.lora.adapters") == expected
        told = [one for one in launch.unjudged if "_kernel: true" in one]
        assert (not told) == bool(expected)
        assert launch.unknown == []


def test_ulysses_under_accelerate_splits_sequences(tmp_path: Path) -> None:
    file = tmp_path / "ulysses.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3}\nparallelism_config: "
        "{parallelism_config_sp_size: 2, parallelism_config_dp_shard_size: 2}\n"
    )
    launch = read_launch(file)
    pins = decide(launch, sizes_of(launch)).pins
    assert (pins["cp"], pins["dp_shard"], pins["tp"]) == (2, 2, 1)


def test_adapters_of_deepspeed_chat_are_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "deepspeed main.py --per_device_train_batch_size 4 --zero_stage 2 "
        "--lora_dim 128 --deepspeed\n"
    )
    launch = read_launch(script)
    assert launch.value("training.lora.rank") == 128
    assert (launch.value("pp"), launch.value("zero")) == (1, 2)
    script.write_text(script.read_text().replace("128", "0"))
    assert launch.unknown == []
    assert read_launch(script).value("training.lora.rank") is None


@pytest.mark.parametrize("value", ["", "null", "auto"])
def test_accelerate_without_a_kind_is_refused_by_name(
    value: str, tmp_path: Path
) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(f"distributed_type: {value}\n")
    with pytest.raises(SpecError, match=r"accelerate\.yaml.*distributed_type"):
        read_launch(file)


VERL = """
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=1024 data.max_prompt_length=1024 \\
    data.max_response_length=1024 actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.model.lora_rank=32 \\
    actor_rollout_ref.model.target_modules=all-linear \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 MORE
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", {"micro_batch": 4}),
        ("actor_rollout_ref.actor.ppo_micro_batch_size=32", {"micro_batch": 4}),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=True "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=6144",
            {"micro_batch": 3},
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.fsdp_size=8 "
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            {"dp_shard": 8, "recompute": "none"},
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.offload_policy=True "
            "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False",
            {"offload": "parameters", "zero": 2},
        ),
        (
            "actor_rollout_ref.model.target_modules=[q_proj,v_proj]",
            {"training.lora.targets": ["q_proj", "v_proj"]},
        ),
    ],
)
def test_verl_trains_its_actor_under_fsdp(
    more: str, expected: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "grpo.sh"
    file.write_text(VERL.replace("MORE", more))
    launch = read_launch(file)
    usual = {
        "cp": 2, "tp": 1, "zero": 3, "recompute": "full", "offload": "none",
        "training.seq_len": 2048, "training.global_batch": 1280, "gpus": 16,
        "training.lora.rank": 32,
    }  # fmt: skip
    wanted = usual | expected
    assert {name: launch.value(name) for name in wanted} == wanted
    assert (launch.framework, launch.preset) == ("fsdp", "qwen2.5-7b")


def test_verl_tunes_on_examples_under_fsdp(tmp_path: Path) -> None:
    file = tmp_path / "sft.sh"
    file.write_text(
        "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer"
        " data.micro_batch_size_per_gpu=4 data.train_batch_size=64"
        " data.max_length=4096 model.partial_pretrain=Qwen/Qwen3-8B"
    )
    launch = read_launch(file)
    fields = ("micro_batch", "training.global_batch", "training.seq_len", "gpus")
    assert [launch.value(name) for name in fields] == [4, 64, 4096, 8]
    assert launch.preset == "qwen3-8b"


def test_ms_swift_starts_megatron_with_its_defaults(tmp_path: Path) -> None:
    file = tmp_path / "sft.sh"
    file.write_text(
        "swift export --model Qwen/Qwen3-30B-A3B --to_mcore true\n"
        "NPROC_PER_NODE=8 \\\nmegatron sft \\\n  --model Qwen/Qwen3-30B-A3B"
        " --tensor_model_parallel_size 2 --expert_model_parallel_size 4"
        " --micro_batch_size 2 --max_length 8192 --sequence_parallel true"
        " --recompute_granularity none --tuner_type lora --target_modules all-linear"
    )
    launch = read_launch(file)
    expected = {
        "tp": 2, "ep": 4, "etp": 1, "zero": 1, "micro_batch": 2, "recompute": "none",
        "training.global_batch": 16, "training.seq_len": 8192, "precision": "bf16",
        "training.lora.rank": 8, "training.lora.targets": None, "gpus": 8,
        "training.lora.dropout": True,
    }  # fmt: skip
    assert {name: launch.value(name) for name in expected} == expected
    assert launch.preset == "qwen3-30b-a3b"


def test_a_comment_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    tuned = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\n"
    file.write_text(f"# accelerate launch src/train.py sft.yaml\n{tuned}")
    assert read_launch(file).kind == "llama_factory"


def test_a_recipe_of_nemo_rl_may_leave_its_backend_to_another(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("defaults: ../base.yaml\npolicy:\n  model_name: Qwen/Qwen3-4B\n")
    launch = read_launch(file)
    assert (launch.framework, launch.preset) == ("", "qwen3-4b")


AUTOMODEL = (Path(__file__).parents[2] / "data/imports/automodel.txt").read_text()


def test_automodel_keeps_weights_in_the_type_they_are_loaded_in(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(AUTOMODEL)
    launch = read_launch(file)
    assert (launch.framework, launch.preset) == ("fsdp", "llama3.1-8b")
    state = ("training.master_weights", "training.moments", "training.seq_len")
    assert [launch.value(name) for name in state] == ["none", "bf16", 4096]
    file.write_text(
        AUTOMODEL.replace(
            "pp_size: 1", "pp_size: 2\n  pipeline: {pp_microbatch_size: 1}"
        )
        .replace("torch_dtype: bfloat16", "torch_dtype: float32")
        .replace("packed_sequence_size: 0", "packed_sequence_size: 8192")
    )
    launch = read_launch(file)
    assert [launch.value(name) for name in state] == [None, None, 8192]
    fields = ("local_batch", "pipeline_micro_batch", "micro_batch")
    assert [launch.value(name) for name in fields] == [2, 1, None]
    assert launch.framework == "torchtitan"
    file.write_text(AUTOMODEL + "peft: {dim: 16, target_modules: [q_proj]}\n")
    launch = read_launch(file)
    assert launch.value("training.lora.targets") == ["q_proj"]
    assert launch.value("training.master_weights") is None


def test_openrlhf_has_sections_in_its_options_since(tmp_path: Path) -> None:
    file = tmp_path / "ppo.sh"
    file.write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 2"
        " --actor.num_gpus_per_node 8 --actor.model_name_or_path Qwen/Qwen3-8B"
        " --critic.num_gpus_per_node 4 --train.batch_size 128 --data.max_len 2048"
        " --train.micro_batch_size 4 --ds.zero_stage 3 --ds.ring_attn_size 2"
        " --ds.lora.rank 16 --actor.gradient_checkpointing_enable"
    )
    launch = read_launch(file)
    expected = {
        "gpus": 16, "zero": 3, "micro_batch": 4, "training.global_batch": 128,
        "training.seq_len": 2048, "training.lora.rank": 16, "recompute": "full",
    }  # fmt: skip
    assert {name: launch.value(name) for name in expected} == expected
    assert launch.preset == "qwen3-8b"
    assert any("ring_attn_size" in told for told in launch.unjudged)


@pytest.mark.parametrize(
    ("module", "config", "model"),
    [
        ("llama3", "llama3_8b", "llama3-8b"),
        ("qwen3", "qwen3_0_6b", "qwen3-0.6b"),
        ("deepseek_v3", "deepseek_v3_671b_float8", "deepseek-v3"),
        ("llama3", "llama3_debugmodel", None),
    ],
)
def test_configurations_of_torchtitan_name_their_models(
    module: str, config: str, model: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"torchrun --nproc_per_node 8 -m torchtitan.train --module {module} \\\n"
        f"  --config {config} --parallelism.tensor_parallel_degree 2\n"
    )
    launch = read_launch(path)
    assert launch.value("model") == model
    told = f"--config {config}: what else it sets is left open"
    assert any(told in note for note in launch.notes())


OF_DATA = """\
base_model: meta-llama/Meta-Llama-3-8B
sequence_len: 512
micro_batch_size: 1
strict: false
train_on_inputs: false
group_by_length: false
fsdp_config: {fsdp_limit_all_gathers: true, fsdp_state_dict_type: FULL_STATE_DICT}
"""


def test_options_of_every_template_are_known(tmp_path: Path) -> None:
    """Axolotl's examples and transformers' configuration of ZeRO-3 have them."""
    (tmp_path / "lora.yaml").write_text(OF_DATA)
    assert not read_launch(tmp_path / "lora.yaml").unknown
    zero = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    assert not read_launch(tmp_path / "ds.json").unknown


@pytest.mark.parametrize(
    ("options", "vocab"),
    [
        ("--padded-vocab-size 128256", 128256),
        ("--vocab-size 50257 --padded-vocab-size 50304", 50257),
    ],
)
def test_a_padded_vocabulary_counts_where_no_other_is_said(
    tmp_path: Path, options: str, vocab: int
) -> None:
    """Megatron-LM prints both among its arguments, the first often as None."""
    assert launch_of(tmp_path, options).value("model.vocab") == vocab


AXOLOTL = "base_model: a/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 2048\n"


def read_yaml_file(folder: Path, text: str) -> Launch:
    file = folder / "train.yaml"
    file.write_text(text)
    return read_launch(file)


def test_axolotl_trains_the_16_bit_weights_that_it_loads(tmp_path: Path) -> None:
    def master(more: str) -> str | None:
        launch = read_yaml_file(tmp_path, AXOLOTL + more)
        word: str | None = launch.value("training.master_weights")
        return word

    assert master("bf16: auto\noptimizer: paged_adamw_8bit\n") == "none"
    assert master("adapter: lora\nlora_r: 8\n") is None
    for other in ("fp16: true\n", "optimizer: adafactor\n"):
        assert master(other) is None
    for sharded in ("fsdp: [full_shard, auto_wrap]\n", "deepspeed: absent.json\n"):
        assert master(sharded) is None


def test_axolotl_cuts_the_loss_where_its_plugin_is_named(tmp_path: Path) -> None:
    plugin = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
    named = f"{AXOLOTL}plugins:\n  - {plugin}\n"
    for text, is_cut in (
        (AXOLOTL, None),
        (named, True),
        (f"{named}cut_cross_entropy: false\n", None),
        (f"{AXOLOTL}plugins: [axolotl.integrations.liger.LigerPlugin]\n", None),
    ):
        launch = read_yaml_file(tmp_path, text)
        assert launch.value("training.fused.loss") is is_cut
        assert (launch.value("training.loss_chunks") or 1) == (32 if is_cut else 1)
        assert not launch.unknown


@pytest.mark.parametrize(
    ("more", "chunks"),
    [
        ("tiled_mlp: true\ntiled_mlp_num_shards: 4\n", 4),
        ("tiled_mlp: true\n", 16),
        ("tiled_mlp: true\ncontext_parallel_size: 8\n", 2),
        ("tiled_mlp: false\ntiled_mlp_num_shards: 4\n", None),
        ("", None),
    ],
)
def test_axolotl_cuts_the_mlp_of_a_long_text(
    tmp_path: Path, more: str, chunks: int | None
) -> None:
    text = AXOLOTL.replace("2048", "500000") + more
    launch = read_yaml_file(tmp_path, text)
    assert launch.value("training.mlp_chunks") == chunks
    assert not launch.unjudged
    assert not launch.unknown


def test_an_mlp_in_one_part_is_told_not_to_be_cut(tmp_path: Path) -> None:
    launch = read_yaml_file(tmp_path, f"{AXOLOTL}tiled_mlp: true\n")
    assert launch.value("training.mlp_chunks") is None
    assert "tiled_mlp" in str(launch.unjudged)


def test_matrices_are_known_by_the_last_part_of_their_names(tmp_path: Path) -> None:
    text = (
        f"{AXOLOTL}adapter: lora\nlora_r: 8\nlora_target_modules: [self_attn.qkv_proj, "
        "linear_attn.in_proj_ba, shared_expert.down_proj, shared_expert_gate]\n"
    )
    targets = read_yaml_file(tmp_path, text).value("training.lora.targets")
    assert targets == ["q_proj", "k_proj", "v_proj", "in_proj", "down_proj"]


def test_the_length_of_older_trl_is_read(tmp_path: Path) -> None:
    trl = "model_name_or_path: a/b\nper_device_train_batch_size: 2\n"
    for name in ("max_seq_length", "max_length"):
        launch = read_yaml_file(tmp_path, f"{trl}{name}: 2048\nmodel_revision: main\n")
        assert launch.value("training.seq_len") == 2048
        assert not launch.unknown


def test_the_name_of_a_checkpoint_says_how_it_keeps_frozen_weights(
    tmp_path: Path,
) -> None:
    for name, kept in (
        ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "gptq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "int8"),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "nf4"),
        ("meta-llama/Meta-Llama-3-8B", None),
    ):
        text = AXOLOTL.replace("a/Llama-3.1-8B", name)
        launch = read_yaml_file(tmp_path, f"{text}adapter: lora\nlora_r: 8\n")
        assert launch.value("training.lora.weights") == kept
        assert launch.preset is not None
        said = read_yaml_file(tmp_path, f"{text}adapter: qlora\nload_in_4bit: true\n")
        assert said.value("training.lora.weights") == "nf4"
        assert read_yaml_file(tmp_path, text).value("training.lora.weights") is None
