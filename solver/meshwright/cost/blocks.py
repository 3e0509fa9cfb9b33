"""What the blocks of a model pass on: layers, embedding and head.

Time, link loads and the ledger of collectives are all read off these lists.
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
    """The weights of a block, and its collectives, a row per skeleton.

    Each pass of a micro-batch has those of its parts, the end of a step `end`.
    """

    weights: list[Weights]
    tp: Operations
    """Of a forward."""
    tp_back: Operations
    """Of a backward; a layer's are those of its forward."""
    ep: Operations
    """Of a forward, and as many of a backward."""
    ring: Operations
    ring_back: Operations
    gather: Operations
    """Of weights, before either pass."""
    reduce: Operations
    """Of gradients, after a backward."""
    end: Operations

    @property
    def forward(self) -> dict[str, Operations]:
        """Return a forward's, by the part of the step in which their time counts."""
        return {"tp": self.tp, "ep": self.ep, "cp": self.ring, "zero": self.gather}

    @property
    def backward(self) -> dict[str, Operations]:
        """Return a backward's, likewise."""
        zero = [*self.gather, *self.reduce]
        return {"tp": self.tp_back, "ep": self.ep, "cp": self.ring_back, "zero": zero}

    @property
    def recompute(self) -> dict[str, Operations]:
        """Return what a forward has again that is recomputed: the weights are there."""
        return {name: own for name, own in self.forward.items() if name != "zero"}


def layer(job: Job, rows: Skeletons) -> Block:
    """Return the layer that the model repeats."""
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
    """Return the embedding, whose shards of the vocabulary are summed forward.

    Under sequence parallelism they are scattered, and their gradients gathered.
    """
    whole, gathered, scattered = traffic.tensor_parallel(job, rows, 1)
    held = embedding_weights(job, rows)
    return _end(job, rows, held, [whole, scattered], [gathered])


def head(job: Job, rows: Skeletons) -> Block:
    """Return the head, whose shards' gradients of its input are summed backward."""
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
    """Return the blocks of a model by name; dense layers where some lead."""
    leading = job.spec.model.first_dense_layers
    dense = {DENSE_LAYER: dense_layer(job, rows)} if leading else {}
    ends = {EMBEDDING: embedding(job, rows), HEAD: head(job, rows)}
    return {LAYER: layer(job, rows), **dense, **ends}
