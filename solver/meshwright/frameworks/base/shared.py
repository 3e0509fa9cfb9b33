"""Rules and bytes of state that several frameworks share.

Each framework lists those that it has, with the source where it was read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import Lever, Setting, StateBytes
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Degrees, Rule, RuleOf
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import KEEPS_ALL, ONE_F_ONE_B, PARAMETERS, SELECTIVE
from meshwright.spec.serving import FixedSpec
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

PURE_BF16 = "pure bf16"
"""The option of state by which weights, gradients and moments are all in bf16."""

STATE_OPTIONS = frozenset({"moments", "master_weights", "fp8_weights", PURE_BF16})
"""Fields of `training` by which state takes fewer bytes than usual, and pure bf16."""

FROZEN_WEIGHTS = frozenset({"bf16", "fp32", "nf4", "int8", "gptq"})
"""Formats of frozen weights: plain ones, and those of bitsandbytes."""

TRAINED_ENDS = frozenset({"bf16", "mixed"})
"""How embedding and head are trained beside adapters: as they are loaded, or not."""


def special_state(training: Training) -> frozenset[str]:
    """Return the options among `STATE_OPTIONS` that a job sets."""
    fields = type(training).model_fields
    special = {
        name
        for name in STATE_OPTIONS - {PURE_BF16}
        if getattr(training, name) != fields[name].default
    }
    if is_pure(training):
        special = (special & {"fp8_weights"}) | {PURE_BF16}
    return frozenset(special)


def is_pure(training: Training) -> bool:
    """Return whether weights, gradients and moments are all in bf16."""
    return training.master_weights == "none"


def master_bytes(training: Training) -> int:
    """Return the bytes of an optimizer's master copy of a 16-bit weight."""
    return {"fp32": 4, "remainders": 2, "none": 0}[training.master_weights]


def mixed_precision_state(training: Training, moments: float) -> StateBytes:
    """Return the state with 16-bit weights and gradients, and an fp32 copy of weights.

    That is 2 + 2 + 12 bytes with Adam (Rajbhandari et al. 2019, section 3.1). Gradients
    have 4 bytes if the spec asks for sums in fp32.
    """
    gradients = 4 if training.gradients == "fp32" else 2
    return StateBytes(2, gradients, master_bytes(training) + moments, 2, gradients)


def fully_shard_state(training: Training, moments: float) -> StateBytes:
    """Return the state in mixed precision, 4 + 4 + 8 bytes with Adam.

    Parameters and gradients are in fp32. Parameters are cast for compute, and gradients
    are reduced in the precision that the spec gives (PyTorch's `MixedPrecisionPolicy`).
    """
    reduced = 2 if training.gradients == "bf16" else 4
    return StateBytes(4, 4, moments, 2, reduced)


CHUNKS = (8, 64, 512, 4096)
"""Parts of a chunked loss to try; the first is torchtitan's (components/loss.py)."""

CHUNK_TOKENS = 128
"""Tokens that a part of the loss has at least: the rows of a matmul's tile.

With fewer, every part reads the head's weights for hardly any work, which the price of
a chunked loss does not count.
"""

HOPPER = ("h100", "h200", "h800", "h20-", "gh200")
"""How names of GPUs with the instructions of FlashAttention-3 start."""


def flash3_on_hopper(spec: Spec) -> tuple[Setting, ...]:
    """Return FlashAttention-3 where the GPU has its instructions."""
    is_hopper = spec.cluster.topology.gpu.name.startswith(HOPPER)
    return ("flash3",) if is_hopper else ()


def loss_parts(spec: Spec) -> tuple[Setting, ...]:
    """Return the parts of a loss that have `CHUNK_TOKENS` or more, or the first few.

    Losses that compare pairs of answers with a reference come whole.
    """
    if spec.training.has_reference:
        return ()
    pinned = spec.pins.micro_batch
    sequences = pinned.single if pinned is not None else None
    most = spec.training.seq_len * (sequences or 1) // CHUNK_TOKENS
    first, *more = CHUNKS
    return (first, *(parts for parts in more if parts <= most))


def most_layers(spec: Spec) -> tuple[Setting, ...]:
    """Return a half of the layers, and all of them but the last."""
    layers = spec.model.n_layers
    return tuple(n for n in (layers // 2, layers - 1) if n > 0)


def graphs(spec: Spec) -> tuple[Setting, ...]:
    """Return which kernels graphs replay; those of experts change with the tokens."""
    return (True,) if spec.model.moe is None else ("outside_experts",)


COMPILES = Lever(
    "compile",
    (True,),
    "torch.compile(model)",
    "torch 2.13 torch/__init__.py: compile",
    "rounding",
)

EIGHT_BIT_MOMENTS = Lever(
    "optimizer",
    lambda spec: ("adamw-8bit",) if spec.training.optimizer == "adamw" else (),
    "bitsandbytes.optim.AdamW8bit",
    "bitsandbytes 0.50 optim/adamw.py: AdamW8bit",
    "optimizer",
)

FUSES_ATTENTION = Lever(
    "attention",
    ("flash",),
    "attn_implementation='flash_attention_2'",
    "transformers 5.23.0 modeling_flash_attention_utils.py",
    "rounding",
)

TRAINS_IN_BF16 = Lever(
    "master_weights",
    ("none",),
    "from_pretrained(..., torch_dtype=torch.bfloat16)",
    "torch 2.13 distributed/fsdp/_fully_shard: parameters keep their dtype",
    "optimizer",
)


def quantised_lora(spec: Spec) -> tuple[Setting, ...]:
    """Return the 4-bit format of LoRA's frozen weights, where they have 16 or more."""
    lora = spec.training.lora
    return ("nf4",) if lora is not None and not lora.is_quantised else ()


def without_reference(spec: Spec) -> tuple[Setting, ...]:
    """Return that no reference runs, where one does."""
    return ("none",) if spec.training.has_reference else ()


def frozen_ends(spec: Spec) -> tuple[Setting, ...]:
    """Return that embedding and head are frozen, where they are trained by adapters."""
    lora = spec.training.lora
    return ("frozen",) if lora is not None and lora.trains_ends else ()


FREEZES_ENDS = Lever(
    "lora.ends",
    frozen_ends,
    "no modules_to_save, which only new tokens need",
    "peft 0.19 utils/other.py: ModulesToSaveWrapper",
    "trained",
)

SCORES_BEFORE = Lever(
    "reference_model",
    without_reference,
    "DPOConfig(precompute_ref_log_probs=True), which scores the data once, before",
    "trl trainer/dpo_trainer.py: _precompute_ref_logps",
)

QUANTISES_FROZEN = Lever(
    "lora.weights",
    quantised_lora,
    "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')",
    "Dettmers et al. 2023, QLoRA, section 3; transformers 5.23.0 "
    "utils/quantization_config.py: BitsAndBytesConfig",
    "weights",
)

SCRIPT_LEVERS = (
    SCORES_BEFORE,
    Lever(
        "loss_chunks",
        loss_parts,
        "TRL's loss_type='chunked_nll', Axolotl's CutCrossEntropyPlugin, Liger's loss, "
        "or chunks of your own",
        "trl trainer/sft_trainer.py: _chunked_cross_entropy_loss; axolotl "
        "integrations/cut_cross_entropy; LLaMA-Factory hparams/model_args.py",
    ),
    FUSES_ATTENTION,
    replace(
        FUSES_ATTENTION,
        settings=flash3_on_hopper,
        option="attn_implementation='flash_attention_3'",
    ),
    COMPILES,
    EIGHT_BIT_MOMENTS,
    QUANTISES_FROZEN,
    FREEZES_ENDS,
)
"""Switches of a training script that calls PyTorch and transformers itself."""

MATHEMATICS = "the mathematics of parallel training"

KV_HEADS_REPEATED = RuleOf[FixedSpec, Degrees](
    "kv_heads_divisible",
    "tp divides the KV heads, or is a multiple of them (they are repeated)",
    "vLLM models/llama.py: LlamaAttention",
    lambda spec, rows: np.logical_and.reduce(
        [(n % rows.tp == 0) | (rows.tp % n == 0) for n in spec.model.kv_head_counts]
    ),
    "{spec.model.n_kv_heads} KV heads mod tp {tp} = {spec.model.n_kv_heads % tp}",
)

WHOLE_KV_HEADS = Rule(
    "kv_heads_divisible",
    "tp divides the KV heads",
    MATHEMATICS,
    lambda spec, rows: np.logical_and.reduce(
        [n % rows.tp == 0 for n in spec.model.kv_head_counts]
    ),
    "{spec.model.n_kv_heads} KV heads mod tp {tp} = {spec.model.n_kv_heads % tp}",
)

NO_CONTEXT_PARALLELISM = Rule(
    "context_parallel_supported",
    "no context parallelism",
    MATHEMATICS,
    lambda spec, rows: rows.cp == 1,
    "cp {cp}",
    is_inherited=True,
)

BALANCED_CONTEXT = Rule(
    "context_balanced",
    "2 x cp divides the sequence: two chunks a rank balance the causal mask",
    "Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.2",
    lambda spec, rows: (rows.cp == 1) | (spec.training.seq_len % (2 * rows.cp) == 0),
    "seq_len {spec.training.seq_len}, cp {cp}",
    is_inherited=True,
)

CONTEXT_SHARDS = Rule(
    "context_shards_state",
    "context parallelism shards the state: ZeRO 2 or 3",
    MATHEMATICS,
    lambda spec, rows: (rows.cp == 1) | (rows.zero >= 2),
    "zero {zero}, cp {cp}",
)

NO_HYBRID_SHARDING = Rule(
    "hybrid_sharding_supported",
    "shards span all data-parallel ranks",
    MATHEMATICS,
    lambda spec, rows: (rows.dp_shard == 1) | (rows.dp_replicate == 1),
    "dp_replicate {dp_replicate}, dp_shard {dp_shard}",
)

NO_ZERO_1 = Rule(
    "zero_supported",
    "FSDP shards gradients with the optimizer: ZeRO 0, 2 or 3",
    "PyTorch fully_shard: reshard_after_forward false is 2, true is 3",
    lambda spec, rows: rows.zero != 1,
    "zero {zero}",
)

ZERO_NEEDS_NO_PIPELINE = Rule(
    "zero_with_pipeline",
    "ZeRO 2 and 3 need pp = 1",
    MATHEMATICS,
    lambda spec, rows: (rows.pp == 1) | (rows.zero <= 1),
    "zero {zero}, pp {pp}",
)

NO_SEQUENCE_PARALLELISM = Rule(
    "sequence_parallel_supported",
    "no sequence parallelism beside tensor parallelism",
    MATHEMATICS,
    lambda spec, rows: ~rows.sequence_parallel,
    "tp {tp}, sequence_parallel {sequence_parallel}",
)

NO_EXPERT_PARALLELISM = Rule(
    "expert_parallel_supported",
    "no expert parallelism",
    MATHEMATICS,
    lambda spec, rows: rows.ep == 1,
    "ep {ep}",
)

WHOLE_EXPERTS = Rule(
    "expert_tensor_parallel",
    "a model with experts has no tensor parallelism",
    MATHEMATICS,
    lambda spec, rows: rows.tp == 1,
    "tp {tp}",
    concerns=lambda spec: spec.model.moe is not None,
)

ONLY_1F1B = Rule(
    "schedule_supported",
    "the pipeline schedule is 1F1B",
    MATHEMATICS,
    lambda spec, rows: rows.schedule == ONE_F_ONE_B,
    "schedule {schedule}, pp {pp}",
)

NO_INTERLEAVING = Rule(
    "interleaving_supported",
    "no interleaved schedule",
    MATHEMATICS,
    lambda spec, rows: rows.vpp == 1,
    "vpp {vpp}",
)


def keeps_or(rows: Skeletons, allowed: Bools | np.bool_) -> Bools:
    """Return the rows that offload nothing, or are allowed to offload."""
    return np.asarray((rows.offload == KEEPS_ALL) | allowed)


def has_no_drives(spec: Spec) -> np.bool_:
    """Return whether offloaded state goes to host memory, not to drives."""
    return np.bool_(spec.training.offload_to == "cpu")


NO_OFFLOAD = Rule(
    "offload_supported",
    "nothing is offloaded",
    MATHEMATICS,
    lambda spec, rows: rows.offload == KEEPS_ALL,
    "offload {offload}",
)

OFFLOADS_WHAT_IS_SHARDED = Rule(
    "offload_supported",
    "what is offloaded is sharded, if only over one GPU: offload of the optimizer "
    "needs ZeRO-1, of gradients ZeRO-2, of parameters ZeRO-3",
    "Ren et al. 2021, ZeRO-Offload, section 3; Rajbhandari et al. 2021, ZeRO-Infinity",
    lambda spec, rows: rows.offload <= rows.zero,
    "offload {offload}, zero {zero}",
)

FSDP_OFFLOADS_ALL = Rule(
    "offload_supported",
    "all of the state is offloaded or none, and it is sharded, if only over one GPU",
    "PyTorch fully_shard: CPUOffloadPolicy",
    lambda spec, rows: keeps_or(rows, (rows.offload == PARAMETERS) & (rows.zero >= 2)),
    "offload {offload}, zero {zero}",
)

NO_DRIVES = Rule(
    "drives_supported",
    "nothing is offloaded to NVMe drives",
    MATHEMATICS,
    lambda spec, rows: keeps_or(rows, has_no_drives(spec)),
    "offload {offload} to {spec.training.offload_to}",
)

WHOLE_LAYERS_RECOMPUTED = Rule(
    "recompute_supported",
    "layers are recomputed whole or not at all",
    MATHEMATICS,
    lambda spec, rows: rows.recompute != SELECTIVE,
    "recompute {recompute}",
)

NO_MODULES_NAMED = Rule(
    "recompute_supported",
    "selective recomputation has no modules to name",
    MATHEMATICS,
    lambda spec, rows: rows.recompute_modules == 0,
    "modules {recompute_modules}",
)
