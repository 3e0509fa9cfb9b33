"""The tokens of one forward pass: prompts of requests, or a token of each request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.serving.job import ServingJob


@dataclass(frozen=True)
class ForwardPass:
    """The work of one pass through the layers, a row per deployment."""

    tokens: Floats
    pairs: Floats
    """Pairs of a query and a key that it attends to."""
    cached: Floats
    """Tokens whose keys and values are read."""
    sampled: Floats
    """Tokens whose logits are computed."""
    is_prefill: bool


def decode_pass(job: ServingJob, requests: Ints) -> ForwardPass:
    """Return one step of decoding for requests in the middle of their output.

    Under continuous batching requests of all ages share a step: their caches hold the
    prompt and half of the output on average (Yu et al. 2022, Orca, section 3.1).
    """
    tokens = requests.astype(np.float64)
    pairs = tokens * job.inference.mean_context
    return ForwardPass(tokens, pairs, pairs, tokens, is_prefill=False)


def prefill_passes(job: ServingJob, prompts: Ints) -> tuple[ForwardPass, Ints]:
    """Return one pass of the prefill of some prompts, and the number of passes.

    A pass holds at most `inference.prefill_tokens`, of several prompts or of a part of
    one; all passes hold equally many. A token attends to those before it in its
    prompt.
    """
    length = job.inference.prompt_len
    prompt_tokens = prompts * length
    count = -(-prompt_tokens // job.inference.prefill_tokens)
    tokens = prompt_tokens / count
    pairs = tokens * (length + 1) / 2
    parts = np.maximum(length / tokens, 1.0)
    cached = tokens * (parts + 1) / 2
    one = ForwardPass(tokens, pairs, cached, prompts / count, is_prefill=True)
    return one, count
