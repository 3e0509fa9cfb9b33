"""Trains the plan's model on made-up tokens; launch.sh starts it."""

import argparse
import os

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = os.environ.get("MODEL", 'YOUR_MODEL')  # model.details.hub, or a folder
SEQUENCE = 8192  # training.seq_len
MICRO_BATCH = 2  # plan.micro_batch
MICROBATCHES = 4  # plan.microbatches
STEPS = 10  # yours


class MadeUp(Dataset):
    """Sequences of random tokens."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return torch.randint(0, config.vocab_size, (SEQUENCE,), generator=source)


config = AutoConfig.from_pretrained(MODEL)
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
arguments, _ = parser.parse_known_args()  # --deepspeed_config
deepspeed.init_distributed()
model = AutoModelForCausalLM.from_config(
    config, attn_implementation='flash_attention_2'
)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
engine, _, loader, _ = deepspeed.initialize(
    args=arguments, model=model, optimizer=optimizer, training_data=MadeUp()
)

for count, tokens in zip(range(STEPS * MICROBATCHES), loader):
    tokens = tokens.to(engine.device)
    loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
    engine.backward(loss)
    engine.step()
    if (count + 1) % MICROBATCHES == 0 and engine.global_rank == 0:
        print(f"step {engine.global_steps}: loss {loss.item():.4f}", flush=True)
