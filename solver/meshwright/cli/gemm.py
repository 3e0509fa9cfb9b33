"""`meshwright gemm`: one matmul, whether it fits, how fast it can be, how to cut it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from meshwright.cli.exit_codes import FOUND, NONE_FITS
from meshwright.cli.options import (
    Format,
    FormatOption,
    OutputOption,
    check_writable,
    formatted,
    write,
)
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.spec.gpu import Gpu

LARGEST = 10_000_000

HEADROOM = 0.03
"""Default share of the memory that stays free."""


class Budget(NamedTuple):
    """The memory for a matmul, and the share of it that stays free."""

    memory_gib: float
    headroom: float


class Dtype(StrEnum):
    """Precisions of A and W."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp8 = "fp8"
    tf32 = "tf32"
    fp32 = "fp32"


def gemm(
    m: Annotated[int, typer.Argument(min=1, max=LARGEST, help="Rows of A and Y.")],
    k: Annotated[
        int, typer.Argument(min=1, max=LARGEST, help="Columns of A, rows of W.")
    ],
    n: Annotated[int, typer.Argument(min=1, max=LARGEST, help="Columns of W and Y.")],
    dtype: Annotated[Dtype, typer.Option(help="Of A and W.")] = Dtype.bf16,
    gpu: Annotated[
        str | None, typer.Option(help="A bundled GPU, or a YAML file of one.")
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(help="Memory, such as 40GiB; replaces that of the GPU."),
    ] = None,
    usable: Annotated[
        str | None,
        typer.Option(
            help="What is left of the memory, such as 1GiB, once the CUDA context and "
            "all reserves are taken off; instead of --vram and --headroom."
        ),
    ] = None,
    headroom: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=0.99, help="Share of the memory that stays free; default 0.03."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=2, max=65_536, help="Split over so many, fit or not."),
    ] = None,
    split_k: Annotated[
        int, typer.Option(min=1, max=1_024, help="Parts of K, added up at the end.")
    ] = 1,
    bias: Annotated[bool, typer.Option("--bias", help="Count a bias.")] = False,
    residual: Annotated[
        bool, typer.Option("--residual", help="Count a residual, shaped as Y.")
    ] = False,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say whether Y = A W fits a GPU, how fast it can be, and how to cut it."""
    check_writable(output)
    chosen_gpu = _gpu(gpu, dtype) if gpu is not None else None
    budget = _budget(vram, usable, headroom, chosen_gpu)

    from meshwright.economics.gemm import CONTEXT, Matmul, answer
    from meshwright.report.gemm import gemm_sections

    context = CONTEXT if usable is None else 0
    matmul = Matmul(m, k, n, dtype.value, split_k, bias, residual, context)
    told = answer(matmul, chosen_gpu, budget.memory_gib, budget.headroom, gpus)
    text = formatted(
        output_format,
        lambda: gemm_sections(told),
        lambda: told.model_dump(mode="json"),
    )
    write(text, output)
    raise typer.Exit(FOUND if told.fits else NONE_FITS)


def _gpu(name: str, dtype: Dtype) -> Gpu:
    from meshwright.loading.load import load_gpu

    gpu = load_gpu("--gpu", name)
    known = gpu.peak_tflops.known
    if dtype.value not in known:
        told = f"{gpu.name} has no peak for it; accepted: {', '.join(known)}"
        raise SpecError(f"--dtype {dtype.value}: {told}")
    return gpu


def _budget(
    vram: str | None, usable: str | None, headroom: float | None, gpu: Gpu | None
) -> Budget:
    """Return the memory: of all memory a share stays free, of usable memory none.

    Raises:
        SpecError: no option gives the memory, or two do.
    """
    if usable is not None:
        for name, other in {"vram": vram, "headroom": headroom}.items():
            if other is not None:
                raise SpecError(f"--usable: given beside --{name}; accepted: either")
        return Budget(_gib("--usable", usable), 0.0)
    share = HEADROOM if headroom is None else headroom
    if vram is not None:
        return Budget(_gib("--vram", vram), share)
    if gpu is None:
        raise SpecError(
            "--gpu: missing; expected --gpu NAME, --vram 40GiB or --usable 38GiB"
        )
    return Budget(gpu.memory_gib, share)


def _gib(option: str, text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    from meshwright.reading.messages import shown
    from meshwright.spec.units import GiB

    try:
        return float(TypeAdapter(GiB).validate_python(text))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"{option} {shown(text)}: {reason}") from None
