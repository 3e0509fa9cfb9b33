"""Memory of the head, its loss and their backward, on the last stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.activation_bytes import head_saved_bytes
from meshwright.cost.job import Job
from meshwright.cost.state import is_loss_parallel, loss_bytes, loss_chunks
from meshwright.cost.traffic import hidden_bytes
from meshwright.frameworks.base.framework import GATHERED_LOGIT_BYTES
from meshwright.plans.columns import Floats
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.skeletons import Skeletons


class LossMemory(NamedTuple):
    """Bytes of the head and its loss on the last stage, (rows,)."""

    held: Floats
    """Of one micro-batch at the peak of its loss: logits and inputs of the head."""
    at_loss: Floats
    """The same with what the head has gathered."""
    at_head: Floats
    """In the backward of the head, when the loss is done."""

    def peak_beyond(self, working: Floats) -> Floats:
        """Return the peak of the last stage beyond `held` and a working layer.

        Loss, backward of the head and backward of layers follow each other, so that
        the largest of them counts once. The result is negative where both are more
        than that.
        """
        peak = np.maximum(np.maximum(self.at_loss, self.at_head), working)
        return peak - self.held - working


def loss_memory(job: Job, rows: Skeletons) -> LossMemory:
    """Return the memory of head and loss.

    Logits of one part of the sequence are there at a time where the loss is chunked.

    The head keeps the input of the final norm and its own. Its backward holds the
    gradients of the logits in the compute precision, and that of its input; under
    sequence parallelism also the whole input, which is gathered again, and its share
    of the gradient (Megatron-LM core 0.19.2, tensor_parallel/layers.py,
    `LinearWithGradAccumulationAndAsyncCommunication`).
    """
    spec, tp = job.spec, rows.tp
    tokens = rows.shards.tokens(spec.training.seq_len)
    element = ELEMENT_BYTES[spec.training.precision]
    chunks = loss_chunks(spec)
    shards = np.where(is_loss_parallel(spec), tp, 1)
    numbers = tokens / chunks * spec.model.vocab / shards
    inputs = tokens * head_saved_bytes(spec, rows.shards)
    hidden = hidden_bytes(job, rows)
    is_split = rows.sequence_parallel & (tp > 1)
    gathered = np.where(is_split, hidden, 0.0)
    if chunks > 1:
        # The gradients of all chunks are put together in fp32.
        gathered = gathered + hidden * 4 / element
    gathering = np.where((tp > 1) & (shards == 1), GATHERED_LOGIT_BYTES, 0)
    held = numbers * (element + loss_bytes(spec) + gathering) + inputs
    gradients = numbers * element + hidden + np.where(is_split, hidden / tp, 0.0)
    return LossMemory(
        held=held, at_loss=held + gathered, at_head=inputs + gathered + gradients
    )
