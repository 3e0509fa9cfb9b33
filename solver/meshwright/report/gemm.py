"""One matmul told as tables."""

from __future__ import annotations

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.gemm import Rebuild, Roofline, Split, Told

GIB, MIB = 2**30, 2**20


def gemm_sections(told: Told) -> list[Section]:
    """Return what there is to say, whether it fits first."""
    parts: list[Section] = [Lines(_title(told), _verdict(told)), _memory(told)]
    if told.roofline:
        parts.append(Lines("Roofline", _speed(told.roofline)))
    if told.splits:
        parts.append(_split_table(told))
    return parts


def _title(told: Told) -> str:
    given = f"{told.memory / GIB:g} GiB"
    left = f"{given} usable" if told.budget == "usable" else ""
    on = " with ".join(filter(None, (told.gpu, left))) or given
    shapes = f"{told.m:,} x {told.n:,} = ({told.m:,} x {told.k:,}) ({told.k:,} x "
    return f"Y = A W: {shapes}{told.n:,}) in {told.dtype} on {on}"


def _verdict(told: Told) -> tuple[str, ...]:
    sign = "<=" if told.fits else ">"
    own = told.bytes
    sums = f"{_size(own.a)} A + {_size(own.w)} W + {_size(own.y)} Y"
    training = told.training
    return (
        "Fits." if told.fits else "Does not fit.",
        f"{sums} + {_size(told.overhead.total)} overhead = {_size(told.needed)} {sign} "
        f"{_size(told.usable)} {_budget(told)}",
        f"A step of training {'fits' if training.fits else 'does not fit'}: "
        f"{_size(training.needed)}",
    )


def _budget(told: Told) -> str:
    """Return where the usable memory comes from."""
    if told.budget == "usable":
        return "usable, the CUDA context and all reserves taken off before"
    return f"= {_size(told.memory)} x (1 - {told.headroom:g} headroom)"


def _memory(told: Told) -> Table:
    over, training = told.overhead, told.training
    rows = [(f"{name.upper()}", size, size) for name, size in told.bytes]
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
    rows.append(("in all", told.needed, training.needed))
    cells = tuple((name, _size(one), _size(two)) for name, one, two in rows)
    return Table(
        "Memory (training keeps A until the gradient of W is known)",
        ("what", "inference", "training"),
        cells,
    )


def _speed(own: Roofline) -> tuple[str, ...]:
    return (
        f"{own.flops:.4g} FLOPs over {own.moved_bytes:.4g} bytes: "
        f"{own.intensity:,.1f} FLOPs per byte",
        f"The GPU turns at {own.ridge:,.1f}: bound by {own.side}",
        f"Not below {_time(own.bound_s)}; expected, of this shape, "
        f"{_time(own.expected_s)}",
    )


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _split_table(told: Told) -> Table:
    rows = tuple(_split_row(own) for own in told.splits)
    heading = ("W by", "GPUs", "A", "W", "Y", "each", "fits", "Y is whole after")
    return Table("Splits", heading, rows)


def _split_row(own: Split) -> tuple[str, ...]:
    rows, columns = own.grid
    shapes = (f"{one:,} x {two:,}" for one, two in (own.a, own.w, own.y))
    rebuilt = ", ".join(_rebuild(step) for step in own.rebuild)
    room = "" if own.fits_rebuilt else " (no room)"
    kind = f"2d {rows} x {columns}" if own.kind == "2d" else own.kind
    fits = "yes" if own.fits else "no"
    return kind, f"{own.gpus:,}", *shapes, _size(own.needed), fits, rebuilt + room


def _rebuild(own: Rebuild) -> str:
    name = own.operation.replace("_", "-")
    return f"{name} of {_size(own.bytes)} over {own.ranks:,}"


def _size(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:,.2f} GiB"
    return f"{size / MIB:,.2f} MiB" if size else "0"
