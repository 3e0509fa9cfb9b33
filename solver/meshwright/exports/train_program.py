"""Programs that train the plan's model for a few steps: Accelerate's and DeepSpeed's.

Both take the program from the user. Accelerate splits neither sequences nor layers
unless the program asks; DeepSpeed splits no sequences, and ZeRO-3 no model that was
built whole. What that takes is these few lines.
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

{imports}
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = os.environ.get("MODEL", {model!r})  # model.details.hub, or a folder
SEQUENCE = {sequence}  # training.seq_len
MICRO_BATCH = {micro_batch}  # plan.micro_batch
MICROBATCHES = {microbatches}  # plan.microbatches
STEPS = {steps}  # yours


class MadeUp(Dataset):
    """{tokens}."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return torch.randint(0, config.vocab_size, ({length},), generator=source)


config = AutoConfig.from_pretrained(MODEL)
'''

_OF_ACCELERATE = """import os

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader, Dataset"""

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
).train()"""


_OF_DEEPSPEED = """import argparse
import os

import deepspeed
import torch
"""

_DEEPSPEED = """parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
arguments, _ = parser.parse_known_args()  # --deepspeed_config
deepspeed.init_distributed()
{before}{model}
{recompute}optimizer = {optimizer}
{engine}

for count, tokens in zip(range(STEPS * MICROBATCHES), loader):
{loss}
    engine.backward(loss)
    engine.step()
    if (count + 1) % MICROBATCHES == 0 and engine.global_rank == 0:
        print(f"step {{engine.global_steps}}: loss {{loss.item():.4f}}", flush=True)
"""

_SHARDED = """with deepspeed.zero.Init(config_dict_or_path=arguments.deepspeed_config):
    # ZeRO-3: a rank never holds the whole model
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation={kernel!r}
    )"""

_ENGINE = """engine, _, loader, _ = deepspeed.initialize(
    args=arguments, model=model, optimizer=optimizer, training_data=MadeUp()
)"""

_LOSS = """    tokens = tokens.to(engine.device)
    loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss"""

_ULYSSES = """groups = UlyssesSPAttentionHF.register_with_transformers(
    MODEL,
    {kernel!r},
    sequence_parallel_size={cp},  # plan.cp
    micro_batch_size=MICRO_BATCH,
    seq_length=SEQUENCE,
    seq_length_is_variable=False,
)
"""

_ULYSSES_ENGINE = """engine, *_ = deepspeed.initialize(
    args=arguments, model=model, optimizer=optimizer, mpu=groups
)


def batch(rows):
    tokens = torch.stack(rows)
    places = torch.arange(SEQUENCE).repeat(len(rows), 1)
    return {"input_ids": tokens, "labels": tokens, "position_ids": places}


loader = DataLoader(
    MadeUp(), MICRO_BATCH, sampler=DistributedSampler(MadeUp()), collate_fn=batch
)
loader = UlyssesSPDataLoaderAdapter(
    loader,
    groups.get_sequence_parallel_rank(),
    groups.get_sequence_parallel_group(),
    groups.get_sequence_parallel_world_size(),
    engine.device,
)"""

_ULYSSES_LOSS = """\
    part = {name: tensor.to(engine.device) for name, tensor in tokens.items()}
    targets = part.pop("shift_labels")
    logits = engine(**part, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten()
    )"""

_ULYSSES_IMPORTS = """from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    UlyssesSPAttentionHF,
    UlyssesSPDataLoaderAdapter,
)
from torch.utils.data import DataLoader, Dataset, DistributedSampler"""


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
    head = _head(spec, plan, _OF_ACCELERATE, is_longer=True)
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
    body = _DEEPSPEED.format(
        before=_ULYSSES.format(kernel=kernel, cp=plan.cp) * splits,
        model=(_SHARDED if plan.zero == 3 else _WHOLE).format(kernel=kernel),
        recompute="model.gradient_checkpointing_enable()\n" * plan.repeats_layers,
        optimizer=optimizer,
        engine=_ULYSSES_ENGINE if splits else _ENGINE,
        loss=_ULYSSES_LOSS if splits else _LOSS,
    )
    more = _ULYSSES_IMPORTS if splits else "from torch.utils.data import Dataset"
    head = _head(spec, plan, _OF_DEEPSPEED + more, is_longer=False)
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
    return _HEAD.format(
        imports=imports,
        tokens=tokens if is_longer else "Sequences of random tokens",
        length="SEQUENCE + 1" if is_longer else "SEQUENCE",
        model=spec.model.details.hub or "YOUR_MODEL",
        sequence=spec.training.seq_len,
        micro_batch=plan.micro_batch,
        microbatches=plan.microbatches,
        steps=TRIAL_STEPS,
    )
