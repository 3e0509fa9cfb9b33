"""Configurations of frameworks as pins of a spec: agreement, contradiction, notes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.loading.plan_text import read_plan

DATA = Path(__file__).parents[1] / "data" / "imports"

LLAMA = {
    "name": "llama",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 32,
    "d_ff": 11008,
    "vocab": 32000,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
    "tied_embeddings": False,
}

MEGATRON = """\
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 \\
  --num-attention-heads 32 --swiglu --normalization RMSNorm \\
  --disable-bias-linear --untie-embeddings-and-output-weights \\
  --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --bf16 \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""


def spec(framework: str = "megatron", **training: Any) -> mw.Spec:
    """Return the spec of 32 GPUs that the configurations below are for."""
    return mw.load(
        {
            "model": LLAMA,
            "cluster": {"topology": "dgx-h100", "count": 4},
            "framework": framework,
            "training": {"seq_len": 4096, "global_batch": 128} | training,
        },
        mw.Spec,
    )


def pins(
    tmp_path: Path, text: str, none: mw.Spec | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the pinned values of a configuration, and the notes on it."""
    path = tmp_path / "run.sh"
    path.write_text(text)
    notes: list[str] = []
    found = read_plan(str(path), none or spec(), notes)
    values = found.model_dump(exclude_none=True)
    plain = {
        name: one["values"][0] if isinstance(one, dict) and "values" in one else one
        for name, one in values.items()
    }
    return plain, [note.replace(f"{tmp_path}/", "") for note in notes]


def test_a_script_decides_all_but_the_placement(tmp_path: Path) -> None:
    found, notes = pins(tmp_path, MEGATRON)
    assert found == {
        "tp": 4, "pp": 2, "vpp": 1, "cp": 1, "ep": 1, "dp_replicate": 1, "dp_shard": 4,
        "zero": 1, "micro_batch": 1, "recompute": ("none",), "offload": ("none",),
        "precision": ("bf16",), "schedule": ("1f1b",), "sequence_parallel": False,
        "layers": (16, 16),
    }  # fmt: skip
    assert notes == [
        "run.sh: left open and taken from the best plan: placement of ranks"
    ]


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("--recompute-granularity full --recompute-method block "
         "--recompute-num-layers 3", "recompute_layers", (3, 3)),
        ("--recompute-granularity full --recompute-method uniform "
         "--recompute-num-layers 1", "recompute_layers", "all"),
        ("--recompute-granularity full --recompute-method uniform "
         "--recompute-num-layers 4", "recompute_segment", 4),
        ("--recompute-activations", "recompute", ("selective",)),
        ("--num-layers-per-virtual-pipeline-stage 4", "vpp", 4),
        ("--num-virtual-stages-per-pipeline-rank 2", "vpp", 2),
        ("--pipeline-model-parallel-layout 'Et*15|t*17L'", "layers", (15, 17)),
        ("--pipeline-model-parallel-layout 'Et*7|t*9|t*8|t*8L'", "layers", (15, 17)),
        ("--pipeline-model-parallel-layout 'Et*7|t*9|t*8|t*8L'", "vpp", 2),
        ("--decoder-first-pipeline-num-layers 14", "layers", (14, 18)),
        ("--account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", "layers", (16, 16)),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
         "zero", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
         "zero", 3),
        ("--use-torch-fsdp2", "zero", 3),
        ("--num-distributed-optimizer-instances 2", "dp_replicate", 2),
        ("--num-distributed-optimizer-instances 2", "dp_shard", 2),
        ("--optimizer-cpu-offload", "offload", ("optimizer",)),
        ("--sequence-parallel", "sequence_parallel", True),
    ],
)  # fmt: skip
def test_options_of_megatron(
    tmp_path: Path, more: str, field: str, value: object
) -> None:
    found, _ = pins(tmp_path, f"{MEGATRON[:-1]} {more}\n")
    assert found[field] == value


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--seq-length 8192",
         "--seq-length 8192: the spec's training.seq_len is 4096; accepted: 4096"),
        ("--global-batch-size 64", "training.global_batch is 128; accepted: 128"),
        ("--fp16", "--fp16: contradicts --bf16 (run.sh:7); accepted: one of them"),
        ("--fp8-format hybrid", "that is fp8; the spec's training.precision is bf16"),
        ("--grad-reduce-in-bf16", "the spec's training.gradients is fp32"),
        ("--optimizer sgd", "the spec's training.optimizer is adamw"),
        ("--num-layers 40", "--num-layers 40: the spec's model.n_layers is 32"),
        ("--nnodes 8", "the spec's cluster has 32; accepted: 32"),
        ("--pipeline-model-parallel-size 3", "does not divide 32 layers"),
        ("--num-layers-per-virtual-pipeline-stage 5", "does not divide the 16 layers"),
        ("--pipeline-model-parallel-layout 'Et*8|t*8L'", "has 16 layers; expected 32"),
        ("--pipeline-model-parallel-layout 'Et*30|t|tL'", "a multiple of the 2 ranks"),
        ("--num-virtual-stages-per-pipeline-rank 2 "
         "--num-layers-per-virtual-pipeline-stage 8", "accepted: one of them"),
        ("--recompute-granularity full", "expected --recompute-method uniform or "),
        ("--recompute-granularity full --recompute-method block "
         "--recompute-num-layers 17", "is more than 16"),
        ("--recompute-granularity selective --recompute-method block",
         "accepted: full"),
        ("--num-distributed-optimizer-instances 3", "does not divide the data-"),
        ("--expert-model-parallel-size 2", "without --num-experts; accepted: 1"),
        ("--num-virtual-stages-per-pipeline-rank 2 "
         "--microbatch-group-size-per-virtual-pipeline-stage 31",
         "makes groups of 31 from 32 micro-batches, and no group may have fewer than "
         "the 2 stages; accepted: 2"),
        ("--num-virtual-stages-per-pipeline-rank 2 "
         "--microbatch-group-size-per-virtual-pipeline-stage 1", "accepted: 2"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
         "the spec's training.offload_fraction is 1.0; accepted: 1.0"),
        ("--micro-batch-size zero", "expected a whole number, 1 or more"),
        ("--data-parallel-sharding-strategy all", "accepted: no_shard, optim,"),
    ],
)  # fmt: skip
def test_contradictions_name_line_option_value_and_what_is_accepted(
    tmp_path: Path, more: str, told: str
) -> None:
    with pytest.raises(mw.SpecError) as caught:
        pins(tmp_path, f"{MEGATRON[:-1]} {more}\n")
    said = str(caught.value)
    assert re.match(rf"{tmp_path}/run.sh:[18]: --", said)
    assert told in said.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--recompute-num-layers 2", "changes nothing: recomputation is not full"),
        ("--recompute-modules moe_act", "changes nothing: recomputation is not selec"),
        ("--tensor-model-parallel-size 1 --sequence-parallel",
         "--sequence-parallel changes nothing: the tensor-parallel size is 1"),
        ("--data-parallel-sharding-strategy optim_grads",
         "changes nothing: Megatron-FSDP is not used"),
        ("--micro-batch-size 2", "--micro-batch-size 1 changes nothing: it is given "),
        ("--optimizer-offload-fraction 0.5", "changes nothing: nothing is offloaded"),
        ("--microbatch-group-size-per-virtual-pipeline-stage 2",
         "changes nothing: stages have one chunk each"),
        ("--num-virtual-stages-per-pipeline-rank 2 "
         "--microbatch-group-size-per-virtual-pipeline-stage 4",
         "is not judged: groups of 2 count, which hold less and take as long"),
        ("--expert-tensor-parallel-size 2",
         "--expert-tensor-parallel-size 2 changes nothing: the model has no experts"),
        ("--data-path /data --lr 1e-4", "effect on plan or price: --data-path, --lr"),
        ("--micro-batch-size $MBS", "left open: MBS is not set in the file"),
        ("--micro-batch-size $MBS", "from the best plan: micro_batch, placement"),
        ("--attention-backend unfused", "training.attention is plain there"),
        ("--attention-backend flash --use-flash-attn",
         "--use-flash-attn changes nothing: the attention backend says it"),
    ],
)  # fmt: skip
def test_notes_say_what_becomes_of_options(
    tmp_path: Path, more: str, told: str
) -> None:
    _, notes = pins(tmp_path, f"{MEGATRON[:-1]} {more}\n")
    assert any(told in note for note in notes), notes


def test_megatron_splits_experts_as_it_splits_all_else_unless_told(
    tmp_path: Path,
) -> None:
    mixtral = mw.load("mixtral-8x7b-64xh100", mw.Spec)
    script = """torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --bf16 \\
  --tensor-model-parallel-size 4 --expert-model-parallel-size 8 --num-experts 8 \\
  --micro-batch-size 1 --use-distributed-optimizer --sequence-parallel \\
  --overlap-grad-reduce --overlap-param-gather"""
    assert pins(tmp_path, f"{script}\n", mixtral)[0]["etp"] == 4
    told = f"{script} --expert-tensor-parallel-size 1\n"
    assert pins(tmp_path, told, mixtral)[0]["etp"] == 1


@pytest.mark.parametrize("backend", ["flash", "fused", "auto"])
def test_any_fused_attention_is_that_of_the_framework(
    tmp_path: Path, backend: str
) -> None:
    _, notes = pins(tmp_path, f"{MEGATRON[:-1]} --attention-backend {backend}\n")
    assert not any("training.attention is" in note for note in notes), notes


@pytest.mark.parametrize(
    ("said", "more", "told"),
    [
        ({"tp": False}, " --tp-comm-overlap",
         "--tp-comm-overlap: training.overlap.tp is true there and false in the spec"),
        ({"gradients": False}, "",
         "--overlap-grad-reduce: training.overlap.gradients is true there and false"),
        ({"parameters": True}, "", ""),
        ({}, " --tp-comm-overlap", ""),
    ],
)  # fmt: skip
def test_what_hides_is_compared_with_what_a_spec_says_of_it(
    tmp_path: Path, said: dict[str, bool], more: str, told: str
) -> None:
    """A spec that leaves a switch to its framework contradicts no launch."""
    found = spec(overlap=said)
    _, notes = pins(tmp_path, f"{MEGATRON[:-1]}{more}\n", found)
    about = [note for note in notes if "training.overlap" in note]
    assert [told in note for note in about] == [True] * bool(told)


def test_groups_of_micro_batches_are_named_where_stages_leave_a_rest(
    tmp_path: Path,
) -> None:
    """Of 31 micro-batches on 2 stages, groups of 2 leave 1, and groups of 3 do too."""
    result, odd = spec(global_batch=124), MEGATRON.replace("128", "124")[:-1]
    odd += " --num-virtual-stages-per-pipeline-rank 2"
    option = "--microbatch-group-size-per-virtual-pipeline-stage 4"
    told = f"2: has groups of 2 micro-batches, which leave 1 of 31; accepted: {option}"
    with pytest.raises(mw.SpecError, match=told):
        pins(tmp_path, f"{odd}\n", result)
    found, notes = pins(tmp_path, f"{odd} {option}\n", result)
    assert found["vpp"] == 2
    assert len(notes) == 1


def test_state_that_a_spec_leaves_out_may_differ_and_is_told(tmp_path: Path) -> None:
    script = f"{MEGATRON[:-1]} --use-precision-aware-optimizer\n"
    _, notes = pins(tmp_path, script)
    told = "training.master_weights is remainders there and fp32 in the spec"
    assert sum(told in note for note in notes) == 1, notes
    with pytest.raises(
        mw.SpecError, match=r"the spec's training\.master_weights is fp"
    ):
        pins(tmp_path, script, spec(master_weights="fp32"))


def test_another_framework_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mw.SpecError, match="framework: megatron; the spec has fsdp"):
        pins(tmp_path, MEGATRON, spec("fsdp"))
    serving = mw.load("serve-llama3-8b-1xa100", mw.ServingSpec)
    path = tmp_path / "own.sh"
    path.write_text(MEGATRON)
    with pytest.raises(mw.SpecError, match="is of training"):
        read_plan(str(path), serving)


def test_deepspeed_leaves_open_what_is_auto_or_in_code(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},\n'
    text += ' "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
    found, notes = pins(tmp_path, text, spec("deepspeed"))
    assert (found["zero"], found["pp"], found["offload"]) == (3, 1, ("parameters",))
    assert (found["tp"], found["ep"]) == (1, 1)  # Who fills in `auto` splits no model.
    assert "micro_batch" not in found
    assert "best plan: micro_batch, recompute, precision, placement" in notes[-1]


@pytest.mark.parametrize(
    ("where", "ratio", "offload", "told"),
    [
        ("offload_optimizer", 0.25, ("optimizer",), ""),
        ("offload_optimizer", 0.0, ("none",), ""),
        ("offload_param", 0.25, ("parameters",), "is not judged: all of the optimizer"),
        ("", 0.25, ("none",), "changes nothing: nothing is offloaded"),
    ],
)
def test_ratio_of_deepspeed(
    tmp_path: Path, where: str, ratio: float, offload: tuple[str, ...], told: str
) -> None:
    result = spec("deepspeed", offload_fraction=0.25)
    zero: dict[str, Any] = {"stage": 3, "offload_optimizer": {"ratio": ratio}}
    if where:
        zero.setdefault(where, {})["device"] = "cpu"
    text = {"train_batch_size": 128, "zero_optimization": zero}
    text["bf16"] = {"enabled": True}
    found, notes = pins(tmp_path, json.dumps(text), result)
    assert found["offload"] == offload
    about = [note for note in notes if "ratio" in note]
    assert [told in note for note in about] == [True] * bool(told)


def test_batches_of_deepspeed_must_agree(tmp_path: Path) -> None:
    text = '{"train_batch_size": 128, "train_micro_batch_size_per_gpu": 3,\n'
    text += '"gradient_accumulation_steps": 4, "bf16": {"enabled": true}}'
    with pytest.raises(mw.SpecError, match="multiple of micro-batch 3 x 4"):
        pins(tmp_path, text, spec("deepspeed"))


def test_local_batches_of_torchtitan_make_the_global_one(tmp_path: Path) -> None:
    text = "[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\n"
    text += "tensor_parallel_degree = 8\n"
    with pytest.raises(mw.SpecError, match="makes 8 sequences a step"):
        pins(tmp_path, text, spec("torchtitan"))
    found, _ = pins(tmp_path, text, spec("torchtitan", global_batch=8))
    assert (found["dp_shard"], found["zero"], found["micro_batch"]) == (4, 3, 2)


def test_files_beside_a_script_are_read_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    )
    script = "deepspeed --num_nodes 4 --num_gpus 8 train.py --deepspeed_config {}\n"
    found, _ = pins(tmp_path, script.format("ds.json"), spec("deepspeed"))
    assert found["zero"] == 2
    for name in ("../ds.json", "/etc/passwd", "none.json"):
        found, notes = pins(tmp_path, script.format(name), spec("deepspeed"))
        assert "zero" not in found
        assert any("no such file beside it" in note for note in notes)


def test_explain_judges_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON)
    notes: list[str] = []
    told = mw.explain(spec(), str(path), notes=notes)
    assert told.plan is not None
    assert (told.plan.plan.tp, told.plan.plan.pp) == (4, 2)
    assert notes


@pytest.mark.parametrize("name", ["train.sh", "a b/train.py:config", "plan.yaml"])
def test_a_plan_in_a_file_that_is_not_there_is_said_to_be_no_file(name: str) -> None:
    """Without a spec the model was said to be missing, and with one a field."""
    file = name.partition(":")[0]
    with pytest.raises(mw.SpecError, match=f"{re.escape(file)}: no such file; expecte"):
        read_plan(name)
