"""What is told of one matmul, Y = A W, as data; all sizes are bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import SpecModel
from meshwright.spec.gpu import Precision

Shape = tuple[int, int]


class Matrices(SpecModel):
    """The three matrices."""

    a: int
    w: int
    y: int


class Overhead(SpecModel):
    """What takes memory beside the matrices."""

    context: int = Field(
        description="CUDA context with its kernels; 0 if gone from the budget."
    )
    workspace: int = Field(description="Of cuBLAS.")
    split_k: int = Field(
        description="fp32 sums of the parts of K; a matmul in one part adds up in "
        "registers."
    )
    bias: int
    residual: int = Field(description="Of the shape of Y, added to it.")
    fragmentation: int = Field(description="What the allocator rounds up.")
    total: int


class Training(SpecModel):
    """What a step of training holds beside W."""

    saved_input: int = Field(description="A, until the gradient of W is known.")
    grad_a: int
    grad_w: int
    grad_y: int
    optimizer: int = Field(description="AdamW's moments, and fp32 weights where mixed.")
    overhead: int
    needed: int = Field(description="All of these, A, W and Y.")
    fits: bool


class Roofline(SpecModel):
    """How fast the matmul can be."""

    flops: float = Field(description="2 M K N.")
    moved_bytes: float = Field(description="A and W read, Y written, each once.")
    intensity: float = Field(description="FLOPs per byte moved.")
    ridge: float = Field(description="Intensity at which the GPU's two limits meet.")
    side: Literal["compute", "memory"] = Field(description="What bounds it.")
    bound_s: float = Field(description="By the rated peak and bandwidth.")
    expected_s: float = Field(description="At what kernels of this shape reach.")


class Rebuild(SpecModel):
    """A collective after which each GPU has more of Y."""

    operation: Literal["all_reduce", "all_gather"]
    ranks: int
    bytes: int = Field(description="Of Y on each rank after it.")


class Split(SpecModel):
    """The matmul over several GPUs; the largest shard is told of."""

    kind: Literal["column", "row", "2d"] = Field(description="How W is cut.")
    gpus: int
    grid: tuple[int, int] = Field(description="Parts of K, parts of N.")
    a: Shape
    w: Shape
    y: Shape = Field(description="A partial sum where K is cut.")
    bytes: Matrices
    needed: int = Field(description="On each GPU, with overhead.")
    fits: bool
    rebuild: tuple[Rebuild, ...] = Field(description="What makes Y whole, in order.")
    fits_rebuilt: bool = Field(description="Whether there is room for all of Y too.")


class Told(SpecModel):
    """The answer to whether Y = A W fits."""

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
        description="Whether the GPU's memory was given, or what of it is left once "
        "the CUDA context and all reserves are taken off."
    )
    memory: int = Field(description="As given, all of the GPU's or what is usable.")
    headroom: float = Field(description="Share of the memory that is left free.")
    usable: int
    training: Training
    roofline: Roofline | None = Field(description="None where no GPU is named.")
    splits: tuple[Split, ...] = Field(
        description="Over the GPUs asked for, or the fewest on which each kind fits; "
        "none where it fits on one."
    )
