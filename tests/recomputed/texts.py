"""Operations that Megatron's host starts for every text of a packed sequence."""

from __future__ import annotations

from tests.recomputed.case import Case

TURNED = (
    "cosine", "scale", "cast", "sine", "scale", "cast",
    "times cosine", "minus", "join", "times sine", "sum", "join", "copy",
)  # fmt: skip
"""Of queries or of keys, in a forward."""

TURNED_BACK = (
    "copy all", "clone", "zeros", "copy", "fill", "sum",
    "times cosine", "times sine", "join", "minus", "sum",
)  # fmt: skip

PAIRS = ("join",)
"""Latent attention puts pairs apart before."""

PAIRS_BACK = ("fill", "copy", "fill", "copy", "sum")


def positions(case: Case) -> tuple[int, int]:
    """Of rotary positions that are several kernels, forward and backward."""
    model = case.model
    if model.learned_positions or model.alibi or "rope" in case.fused:
        return 0, 0
    forward, backward = [*TURNED], [*TURNED_BACK]
    if model.mla is not None:
        forward += PAIRS
        backward += PAIRS_BACK
        if model.mla.indexer is not None:
            # Of its queries and its key.
            forward += TURNED
            backward += TURNED_BACK
    if case.plan.cp > 1:
        forward.append("join angles of both chunks")
    return 2 * len(forward), 2 * len(backward)


def exchange(case: Case) -> tuple[int, int]:
    """To put tokens in order where ranks exchange them for heads."""
    if case.exchange != "ulysses" or case.plan.cp == 1:
        return 0, 0
    forward = [_ordered(case) for _ in ("queries", "keys", "values")]
    forward += [_split(case)]
    backward = [_ordered(case)]
    backward += [_split(case) for _ in ("queries", "keys", "values")]
    return sum(forward), sum(backward)


def _ordered(case: Case) -> int:
    """Both bounds of every chunk, read by the host, and the indices between them."""
    started = 0
    for chunk in range(2 * case.plan.cp):
        near = ["chunk by 2", "times length", "sum"]
        far = ["start and end", "half", *near]
        bounds = near, far
        started += sum(map(len, bounds if chunk < case.plan.cp else bounds[::-1]))
        started += len(["read", "read", "indices"])
    return started


def _split(case: Case) -> int:
    """The same of two parts for every rank, whose bounds are a product and a sum."""
    started = 0
    for _ in range(case.plan.cp):
        for _ in ("first part", "last part"):
            for _ in ("start", "end"):
                started += len(["product", "sum", "read"])
            started += len(["indices"])
    return started


def operation_s(case: Case) -> float:
    """Of one operation for all texts; a layer of plain operations has 25."""
    training = case.training
    if case.spec.framework != "megatron" or not training.text_loops:
        return 0.0
    return case.host_s / 25 * case.plan.micro_batch * texts(case)


def texts(case: Case) -> float:
    """How many there are in a sequence."""
    return case.training.seq_len / seen(case)


def seen(case: Case) -> int:
    """Tokens among which a token attends: its text, or the whole sequence."""
    said, whole = case.training.document_tokens, case.training.seq_len
    return whole if said is None or said > whole else said
