"""Programs that train the plan's model for a few steps: Accelerate's and DeepSpeed's.

Both take the program from the user. Accelerate splits neither sequences nor layers
unless the program asks; DeepSpeed splits no sequences, and ZeRO-3 no model that was
built whole. What that takes is these few lines.
"""

from __future__ import annotations

from meshwright.exports.files import TEXTS, ExportedFile
from meshwright.exports.launch import TRIAL_STEPS
from meshwright.frameworks.base.shared import is_pure
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec

FILE = "train.py"

COMMAND = f'"${{PROGRAM:-{FILE}}}"'
"""The program of the user, or else this one."""

YOURS = '"${PROGRAM:?the path of your training script}"'


def accelerate_program(spec: Spec, plan: Plan, kernel: str) -> ExportedFile | None:
    """Return the program for Accelerate: FSDP, tensor and context parallelism.

    None for adapters and for other optimizers, which are the user's to write.
    """
    if not _is_plain(spec):
        return None
    form = TEXTS["split"] if plan.tp > 1 else TEXTS["whole"]
    # FSDP's own file recomputes its layers.
    recomputes = plan.recompute == "full" and plan.zero < 2
    body = TEXTS["accelerate"].format(
        sync=plan.zero >= 2,
        model=form.format(kernel=kernel),
        recompute="model.gradient_checkpointing_enable()\n" * recomputes,
    )
    head = _head(spec, plan, TEXTS["of_accelerate"], is_longer=True)
    return ExportedFile(name=FILE, text=head + body)


def deepspeed_program(spec: Spec, plan: Plan, kernel: str) -> ExportedFile | None:
    """Return the program for DeepSpeed: ZeRO, AutoTP, AutoEP, Ulysses and offload.

    None where `left_to_you` says why.
    """
    if left_to_you(spec, plan):
        return None
    splits = plan.cp > 1
    optimizer = "deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=1e-5)"
    if plan.offload == "none":
        optimizer = "torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)"
    body = TEXTS["deepspeed"].format(
        before=TEXTS["ulysses"].format(kernel=kernel, cp=plan.cp) * splits,
        model=(TEXTS["sharded"] if plan.zero == 3 else TEXTS["whole"]).format(
            kernel=kernel
        ),
        recompute="model.gradient_checkpointing_enable()\n" * plan.repeats_layers,
        optimizer=optimizer,
        engine=TEXTS["ulysses_engine"] if splits else TEXTS["engine"],
        loss=TEXTS["ulysses_loss"] if splits else TEXTS["loss"],
    )
    more = (
        TEXTS["ulysses_imports"] if splits else "from torch.utils.data import Dataset"
    )
    head = _head(spec, plan, TEXTS["of_deepspeed"] + more, is_longer=False)
    return ExportedFile(name=FILE, text=head + body)


def left_to_you(spec: Spec, plan: Plan) -> str:
    """Return why no program is written for DeepSpeed; empty where one is."""
    reasons = {
        "its pipelines take a list of layers, and models of transformers are none": (
            plan.pp > 1
        ),
        "adapters, other optimizers than AdamW and weights without fp32 copies are "
        "made by your code": not _is_plain(spec),
        "the layers of FP8 are Transformer Engine's": plan.precision == "fp8",
        "models of transformers recompute by PyTorch's checkpoints": (
            plan.recompute == "full-cpu" or spec.training.partition_activations
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def _is_plain(spec: Spec) -> bool:
    """Return whether all weights are trained by AdamW, beside fp32 masters."""
    training = spec.training
    is_whole = training.lora is None and not is_pure(training)
    return is_whole and training.optimizer == "adamw"


def _head(spec: Spec, plan: Plan, imports: str, *, is_longer: bool) -> str:
    """Return the start of a program, whose samples are a token longer, or not."""
    tokens = "Random tokens, one more than a sequence: inputs and what follows them"
    return TEXTS["program_head"].format(
        imports=imports,
        tokens=tokens if is_longer else "Sequences of random tokens",
        length="SEQUENCE + 1" if is_longer else "SEQUENCE",
        model=spec.model.details.hub or "YOUR_MODEL",
        sequence=spec.training.seq_len,
        micro_batch=plan.micro_batch,
        microbatches=plan.microbatches,
        steps=TRIAL_STEPS,
    )
