"""The answer about one matmul, as tables and lines."""

from __future__ import annotations

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.gemm import GemmAnswer, GemmSplit, Rebuild, Roofline

GIB, MIB = 2**30, 2**20


def gemm_sections(answer: GemmAnswer) -> list[Section]:
    """Return the answer as sections: first whether the matmul fits."""
    parts: list[Section] = [Lines(_title(answer), _verdict(answer)), _memory(answer)]
    if answer.roofline:
        parts.append(Lines("Roofline", _speed(answer.roofline)))
    if answer.splits:
        parts.append(_split_table(answer))
    return parts


def _title(answer: GemmAnswer) -> str:
    given = f"{answer.memory / GIB:g} GiB"
    left = f"{given} usable" if answer.budget == "usable" else ""
    on = " with ".join(filter(None, (answer.gpu, left))) or given
    shapes = (
        f"{answer.m:,} x {answer.n:,} = ({answer.m:,} x {answer.k:,}) ({answer.k:,} x "
    )
    return f"Y = A W: {shapes}{answer.n:,}) in {answer.dtype} on {on}"


def _verdict(answer: GemmAnswer) -> tuple[str, ...]:
    sign = "<=" if answer.fits else ">"
    matrices = answer.bytes
    sizes = (_size(matrices.a), _size(matrices.w), _size(matrices.y))
    sums = "{} A + {} W + {} Y".format(*sizes)
    training = answer.training
    return (
        "Fits." if answer.fits else "Does not fit.",
        f"{sums} + {_size(answer.overhead.total)} overhead = {_size(answer.needed)} "
        f"{sign} {_size(answer.usable)} {_budget(answer)}",
        f"A step of training {'fits' if training.fits else 'does not fit'}: "
        f"{_size(training.needed)}",
    )


def _budget(answer: GemmAnswer) -> str:
    """Return how the usable memory follows from the memory that was given."""
    if answer.budget == "usable":
        return "usable, the CUDA context and all reserves taken off before"
    return f"= {_size(answer.memory)} x (1 - {answer.headroom:g} headroom)"


def _memory(answer: GemmAnswer) -> Table:
    over, training = answer.overhead, answer.training
    rows = [(f"{name.upper()}", size, size) for name, size in answer.bytes]
    rows += [
        ("gradient of A", 0, training.grad_a),
        ("gradient of W", 0, training.grad_w),
        ("gradient of Y", 0, training.grad_y),
        ("optimizer state of W", 0, training.optimizer),
        ("CUDA context", over.context, over.context),
        ("workspace", over.workspace, over.workspace),
        ("fp32 sums of split K", over.split_k, over.split_k),
        ("bias", over.bias, over.bias),
        ("residual", over.residual, over.residual),
    ]
    others = over.total - over.fragmentation
    rows.append(("fragmentation", over.fragmentation, training.overhead - others))
    rows.append(("in all", answer.needed, training.needed))
    cells = tuple((name, _size(one), _size(two)) for name, one, two in rows)
    return Table(
        "Memory (training keeps A until the gradient of W is known)",
        ("what", "inference", "training"),
        cells,
    )


def _speed(roofline: Roofline) -> tuple[str, ...]:
    return (
        f"{roofline.flops:.4g} FLOPs over {roofline.moved_bytes:.4g} bytes: "
        f"{roofline.intensity:,.1f} FLOPs per byte",
        f"The GPU turns at {roofline.ridge:,.1f}: bound by {roofline.side}",
        f"Not below {_time(roofline.bound_s)}; expected, of this shape, "
        f"{_time(roofline.expected_s)}",
    )


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _split_table(answer: GemmAnswer) -> Table:
    rows = tuple(_split_row(split) for split in answer.splits)
    heading = ("W by", "GPUs", "A", "W", "Y", "each", "fits", "Y is whole after")
    return Table("Splits", heading, rows)


def _split_row(split: GemmSplit) -> tuple[str, ...]:
    rows, columns = split.grid
    shapes = (f"{one:,} x {two:,}" for one, two in (split.a, split.w, split.y))
    rebuilt = ", ".join(_rebuild_text(step) for step in split.rebuild)
    room = "" if split.fits_rebuilt else " (no room)"
    kind = f"2d {rows} x {columns}" if split.kind == "2d" else split.kind
    fits = "yes" if split.fits else "no"
    return kind, f"{split.gpus:,}", *shapes, _size(split.needed), fits, rebuilt + room


def _rebuild_text(step: Rebuild) -> str:
    name = step.operation.replace("_", "-")
    return f"{name} of {_size(step.bytes)} over {step.ranks:,}"


def _size(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:,.2f} GiB"
    return f"{size / MIB:,.2f} MiB" if size else "0"
