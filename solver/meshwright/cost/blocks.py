"""The blocks of a model, layers, embedding and head, with their collectives.

Step time, link loads and the ledger of collectives all come from these lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost import traffic
from meshwright.cost.job import Job
from meshwright.cost.traffic import Collective
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.plans.skeletons import Skeletons

Operations = list[Collective]


@dataclass(frozen=True)
class Block:
    """The weights and collectives of a block, one row per skeleton."""

    weights: list[Weights]
    tp: Operations
    """Tensor parallelism in a forward."""
    tp_back: Operations
    """Tensor parallelism in a backward."""
    ep: Operations
    """Expert parallelism in a forward, and again in a backward."""
    ring: Operations
    """Context parallelism in a forward."""
    ring_back: Operations
    """Context parallelism in a backward."""
    gather: Operations
    """All-gathers of weights, before a forward and again before a backward."""
    reduce: Operations
    """Reductions of gradients after a backward."""
    end: Operations
    """Operations at the end of a step."""

    @property
    def forward(self) -> dict[str, Operations]:
        """Return the collectives of a forward, by the part of the step."""
        return {"tp": self.tp, "ep": self.ep, "cp": self.ring, "zero": self.gather}

    @property
    def backward(self) -> dict[str, Operations]:
        """Return the collectives of a backward, likewise."""
        zero = [*self.gather, *self.reduce]
        return {"tp": self.tp_back, "ep": self.ep, "cp": self.ring_back, "zero": zero}

    @property
    def recompute(self) -> dict[str, Operations]:
        """Return the collectives of a recomputed forward, whose weights are there."""
        return {name: ops for name, ops in self.forward.items() if name != "zero"}


def layer(job: Job, rows: Skeletons) -> Block:
    """Return the repeated layer of the model."""
    calls = traffic.reductions(job.spec.model)
    exchange = traffic.expert_exchange(job, rows, 2)
    return _layer(job, rows, layer_weights(job, rows), calls, exchange)


def dense_layer(job: Job, rows: Skeletons) -> Block:
    """Return a leading layer without experts."""
    return _layer(job, rows, dense_layer_weights(job, rows), 2, [])


def _layer(
    job: Job, rows: Skeletons, held: list[Weights], calls: int, exchange: Operations
) -> Block:
    reductions = traffic.tensor_parallel(job, rows, calls)
    return Block(
        weights=held,
        tp=reductions,
        tp_back=reductions,
        ep=exchange,
        ring=traffic.context_parallel(job, rows, False),
        ring_back=traffic.context_parallel(job, rows, True),
        gather=traffic.gather_weights(job, rows, held),
        reduce=traffic.reduce_gradients(job, rows, held),
        end=traffic.step_end(job, rows, held),
    )


def embedding(job: Job, rows: Skeletons) -> Block:
    """Return the embedding.

    The results of its shards of the vocabulary are summed in the forward. Under
    sequence parallelism they are scattered, and their gradients gathered.
    """
    whole, gathered, scattered = traffic.tensor_parallel(job, rows, 1)
    held = embedding_weights(job, rows)
    return _end(job, rows, held, [whole, scattered], [gathered])


def head(job: Job, rows: Skeletons) -> Block:
    """Return the head; the gradients of its input are summed in the backward."""
    whole, gathered, scattered = traffic.tensor_parallel(job, rows, 1)
    held = head_weights(job, rows)
    return _end(job, rows, held, [gathered], [whole, scattered])


def _end(
    job: Job,
    rows: Skeletons,
    held: list[Weights],
    forward: Operations,
    backward: Operations,
) -> Block:
    at_end = traffic.step_end(job, rows, held)
    return Block(
        weights=held,
        tp=forward,
        tp_back=backward,
        ep=[],
        ring=[],
        ring_back=[],
        gather=traffic.gather_weights(job, rows, held),
        reduce=traffic.reduce_gradients(job, rows, held),
        end=[*at_end, *traffic.tied_tables(job, rows)],
    )


LAYER, DENSE_LAYER, EMBEDDING, HEAD = "layer", "dense layer", "embedding", "head"


def blocks(job: Job, rows: Skeletons) -> dict[str, Block]:
    """Return the blocks of a model by name, the leading dense layer if there is one."""
    leading = job.spec.model.first_dense_layers
    dense = {DENSE_LAYER: dense_layer(job, rows)} if leading else {}
    ends = {EMBEDDING: embedding(job, rows), HEAD: head(job, rows)}
    return {LAYER: layer(job, rows), **dense, **ends}
