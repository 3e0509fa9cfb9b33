"""The answer about one matmul, Y = A W, as data; all sizes are in bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import SpecModel
from meshwright.spec.gpu import Precision

Shape = tuple[int, int]


class Matrices(SpecModel):
    """The bytes of the three matrices."""

    a: int
    w: int
    y: int


class Overhead(SpecModel):
    """The memory that a matmul needs in addition to its matrices."""

    context: int = Field(
        description="CUDA context with its kernels; 0 if the budget excludes it."
    )
    workspace: int = Field(description="Workspace of cuBLAS.")
    split_k: int = Field(
        description="fp32 sums of the parts of K; 0 without split K, which adds up in "
        "registers."
    )
    bias: int
    residual: int = Field(description="A tensor of the shape of Y that is added to Y.")
    fragmentation: int = Field(description="Bytes added by the allocator's rounding.")
    total: int


class TrainingMemory(SpecModel):
    """The memory of a training step of this matmul."""

    saved_input: int = Field(
        description="A, which is kept until the gradient of W is known."
    )
    grad_a: int
    grad_w: int
    grad_y: int
    optimizer: int = Field(description="AdamW's moments, and fp32 weights where mixed.")
    overhead: int
    needed: int = Field(description="All of these, with A, W and Y.")
    fits: bool


class Roofline(SpecModel):
    """How fast the matmul can be."""

    flops: float = Field(description="2 M K N.")
    moved_bytes: float = Field(description="A and W read, Y written, each once.")
    intensity: float = Field(description="FLOPs per byte moved.")
    ridge: float = Field(
        description="Intensity at which compute and memory take the same time."
    )
    side: Literal["compute", "memory"] = Field(description="The limit that binds.")
    bound_s: float = Field(description="Time at the rated peak and bandwidth.")
    expected_s: float = Field(
        description="Time at the rates that these kernels reach in practice."
    )


class Rebuild(SpecModel):
    """A collective that assembles Y from its shards."""

    operation: Literal["all_reduce", "all_gather"]
    ranks: int
    bytes: int = Field(description="Bytes of Y on each rank afterwards.")


class GemmSplit(SpecModel):
    """The matmul split over several GPUs; shapes and sizes are of the largest shard."""

    kind: Literal["column", "row", "2d"] = Field(description="How W is cut.")
    gpus: int
    grid: tuple[int, int] = Field(description="Parts of K, parts of N.")
    a: Shape
    w: Shape
    y: Shape = Field(description="Shape of Y on a GPU; a partial sum if K is cut.")
    bytes: Matrices
    needed: int = Field(description="Bytes on each GPU, with overhead.")
    fits: bool
    rebuild: tuple[Rebuild, ...] = Field(
        description="The collectives that make Y whole, in order."
    )
    fits_rebuilt: bool = Field(description="Whether the GPU can also hold all of Y.")


class GemmAnswer(SpecModel):
    """Whether Y = A W fits on a GPU, how fast it can be, and how to split it."""

    m: int
    k: int
    n: int
    dtype: Precision
    gpu: str
    fits: bool
    bytes: Matrices
    overhead: Overhead
    needed: int = Field(description="A, W, Y and overhead.")
    budget: Literal["memory", "usable"] = Field(
        description="Which memory was given: all of the GPU's, or the memory left "
        "after the CUDA context and all reserves."
    )
    memory: int = Field(description="The memory that was given.")
    headroom: float = Field(description="Share of the memory that stays free.")
    usable: int
    training: TrainingMemory
    roofline: Roofline | None = Field(description="None where no GPU is named.")
    splits: tuple[GemmSplit, ...] = Field(
        description="Splits over the GPUs asked for, or over the fewest on which each "
        "kind fits; none if the matmul fits on one GPU."
    )
