"""A program that trains the plan's model for a few steps under Accelerate.

Accelerate takes the program from the user, and splits neither sequences nor layers
unless the program asks: what that takes is these few lines.
"""

from __future__ import annotations

from meshwright.exports.files import ExportedFile
from meshwright.exports.launch import TRIAL_STEPS
from meshwright.frameworks.base.shared import is_pure
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec

FILE = "train.py"

COMMAND = f'"${{PROGRAM:-{FILE}}}"'
"""The program of the user, or else this one."""

YOURS = '"${PROGRAM:?the path of your training script}"'

_HEAD = '''"""Trains the plan's model on made-up tokens; launch.sh starts it."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = os.environ.get("MODEL", {model!r})  # model.details.hub, or a folder
SEQUENCE = {sequence}  # training.seq_len
MICRO_BATCH = {micro_batch}  # plan.micro_batch
MICROBATCHES = {microbatches}  # plan.microbatches
STEPS = {steps}  # yours


class MadeUp(Dataset):
    """Random tokens, one more than a sequence: inputs and what follows them."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return torch.randint(0, config.vocab_size, (SEQUENCE + 1,), generator=source)


config = AutoConfig.from_pretrained(MODEL)
'''

_ACCELERATE = """plugin = GradientAccumulationPlugin(
    num_steps=MICROBATCHES, sync_each_batch={sync}
)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
{model}
{recompute}optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = DataLoader(MadeUp(), batch_size=MICRO_BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for count, tokens in zip(range(STEPS * MICROBATCHES), loader):
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    places = torch.arange(SEQUENCE, device=inputs.device).repeat(len(inputs), 1)
    parts = [inputs, targets, places]
    with accelerator.maybe_context_parallel(
        buffers=parts, buffer_seq_dims=[1, 1, 1], no_restore_buffers={{*parts}}
    ), accelerator.accumulate(model):
        logits = model(input_ids=inputs, position_ids=places, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten()
        )
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        step = count // MICROBATCHES + 1
        accelerator.print(f"step {{step}}: loss {{loss.item():.4f}}")
accelerator.end_training()
"""

_WHOLE = """model = AutoModelForCausalLM.from_config(
    config, attn_implementation={kernel!r}
)"""

_SPLIT = """model = AutoModelForCausalLM.from_pretrained(
    MODEL,
    attn_implementation={kernel!r},
    tp_plan="auto",  # plan.tp
    device_mesh=accelerator.torch_device_mesh["tp"],
)"""


def accelerate_program(spec: Spec, plan: Plan, kernel: str) -> ExportedFile | None:
    """Return the program for Accelerate: FSDP, tensor and context parallelism.

    None for adapters and for other optimizers, which are the user's to write.
    """
    if not _is_plain(spec):
        return None
    form = _SPLIT if plan.tp > 1 else _WHOLE
    # FSDP's own file recomputes its layers.
    recomputes = plan.recompute == "full" and plan.zero < 2
    body = _ACCELERATE.format(
        sync=plan.zero >= 2,
        model=form.format(kernel=kernel),
        recompute="model.gradient_checkpointing_enable()\n" * recomputes,
    )
    return ExportedFile(name=FILE, text=_head(spec, plan) + body)


def _is_plain(spec: Spec) -> bool:
    """Return whether all weights are trained by AdamW, beside fp32 masters."""
    training = spec.training
    is_whole = training.lora is None and not is_pure(training)
    return is_whole and training.optimizer == "adamw"


def _head(spec: Spec, plan: Plan) -> str:
    return _HEAD.format(
        model=spec.model.details.hub or "YOUR_MODEL",
        sequence=spec.training.seq_len,
        micro_batch=plan.micro_batch,
        microbatches=plan.microbatches,
        steps=TRIAL_STEPS,
    )
