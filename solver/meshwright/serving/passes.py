"""What goes through the layers at once: prompts of requests, or one token of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.serving.job import ServingJob


@dataclass(frozen=True)
class Pass:
    """What goes through the layers at once, a row per deployment."""

    tokens: Floats
    pairs: Floats
    """Queries times the keys that each of them meets."""
    cached: Floats
    """Tokens whose keys and values are read."""
    sampled: Floats
    """Tokens whose logits are asked for."""
    is_prefill: bool


def decode_pass(job: ServingJob, requests: Ints) -> Pass:
    """Return one step of decoding for so many requests, in the middle of their output.

    Under continuous batching requests of all ages share a step: their caches hold the
    prompt and half of the output on average (Yu et al. 2022, Orca, section 3.1).
    """
    tokens = requests.astype(np.float64)
    pairs = tokens * job.inference.mean_context
    return Pass(tokens, pairs, pairs, tokens, is_prefill=False)


def prefill_passes(job: ServingJob, prompts: Ints) -> tuple[Pass, Ints]:
    """Return a pass of prompts one after the other, and how many it takes for all.

    Passes hold at most `inference.prefill_tokens`, of several prompts or of a part of
    one, all equally many. A token meets those before it in its prompt.
    """
    length = job.inference.prompt_len
    whole = prompts * length
    count = -(-whole // job.inference.prefill_tokens)
    tokens = whole / count
    pairs = tokens * (length + 1) / 2
    parts = np.maximum(length / tokens, 1.0)
    cached = tokens * (parts + 1) / 2
    return Pass(tokens, pairs, cached, prompts / count, is_prefill=True), count
