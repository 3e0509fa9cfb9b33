"""Trains the plan's model on made-up tokens; launch.sh starts it."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = os.environ.get("MODEL", 'YOUR_MODEL')  # model.details.hub, or a folder
SEQUENCE = 8192  # training.seq_len
MICRO_BATCH = 2  # plan.micro_batch
MICROBATCHES = 4  # plan.microbatches
STEPS = 10  # yours


class MadeUp(Dataset):
    """Random tokens, one more than a sequence: inputs and what follows them."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return torch.randint(0, config.vocab_size, (SEQUENCE + 1,), generator=source)


config = AutoConfig.from_pretrained(MODEL)
plugin = GradientAccumulationPlugin(
    num_steps=MICROBATCHES, sync_each_batch=True
)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
model = AutoModelForCausalLM.from_config(
    config, attn_implementation='flash_attention_2'
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = DataLoader(MadeUp(), batch_size=MICRO_BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for count, tokens in zip(range(STEPS * MICROBATCHES), loader):
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    places = torch.arange(SEQUENCE, device=inputs.device).repeat(len(inputs), 1)
    parts = [inputs, targets, places]
    with accelerator.maybe_context_parallel(
        buffers=parts, buffer_seq_dims=[1, 1, 1], no_restore_buffers={*parts}
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
        accelerator.print(f"step {step}: loss {loss.item():.4f}")
accelerator.end_training()
