"""Attention to the tokens that an indexer picks, on one rank: its kernels, its loss.

DeepSeek-AI 2025, arXiv 2512.02556: queries of all heads meet one key, as wide as the
latent vector and its rotary part, and the first part of it is the value. What runs is
counted operation by operation, bytes and all, from Megatron-LM's files.
"""

from __future__ import annotations

from meshwright.spec.model_parts import Indexer, LatentAttention
from tests.recomputed import texts
from tests.recomputed.case import Case
from tests.recomputed.machine import Machine

FLOAT, INT, LONG, BIT = 4, 4, 8, 1

TO_PICK = {
    "at least 0": INT + BIT,
    "below the end": INT + BIT,
    "both": 3 * BIT,
    "clamped": 2 * INT,
    "widened": INT + LONG,
    "position": LONG + LONG + LONG,
    "after start": LONG + BIT,
    "before end": LONG + BIT,
    "both bounds": 3 * BIT,
    "all four": 3 * BIT,
    "a row of -1": INT,
    "chosen": BIT + 3 * INT,
    # to the front
    "is there": INT + BIT,
    "how many": BIT,
    "place or end": BIT + LONG,
    "sort places": LONG * 5,
    "gather": LONG + 2 * INT,
    "gather bits": LONG + 2 * BIT,
    "not": 2 * BIT,
    "fill": INT + BIT + INT,
    # in order
    "first so many": BIT,
    "a row of ends": INT,
    "key or end": BIT + 3 * INT,
    "sort keys": INT * 4 + LONG,
    "gather again": LONG + 2 * INT,
    "gather bits again": LONG + 2 * BIT,
    "not again": 2 * BIT,
    "fill again": INT + BIT + INT,
}
"""Bytes a pick; a sort reads and writes keys twice, and writes places."""

KEPT = 2 * INT
"""Clamped to another tensor for the backward."""

FOR_LOSS = {
    # Beside what the same pick took without scores of its own.
    "score is finite, and both": FLOAT + BIT + 3 * BIT,
    "score chosen": BIT + 4 * FLOAT,
    "is finite, and both": FLOAT + BIT + 3 * BIT,
    "gather scores": LONG + 2 * FLOAT,
    "not, and fill scores": 2 * BIT + 2 * FLOAT + BIT,
    "to the front once more": 5 + 1 + 9 + 40 + 16 + 10 + 2 + 9,
    "two copies for backwards, less one": KEPT,
    # The loss.
    "valid": BIT + INT + BIT + 3 * BIT,
    "not, and masked": 2 * BIT + 2 * FLOAT + BIT,
    "any": BIT,
    "safe": 4 * FLOAT,
    "log softmax": 2 * FLOAT,
    "not, and masked again": 2 * BIT + 2 * FLOAT + BIT,
    "exponential": 2 * FLOAT,
    "not, and masked exponential": 2 * BIT + 2 * FLOAT + BIT,
    "target masked": 2 * BIT + 2 * FLOAT + BIT,
    "sum and division": 3 * FLOAT,
    "target masked again": 2 * BIT + 2 * FLOAT + BIT,
    "clamp, logarithm": 4 * FLOAT,
    "difference, product": 6 * FLOAT,
    "its sum": FLOAT,
    "picks masked": 2 * BIT + 2 * INT + BIT,
    "picks and scores clamped": 4 * FLOAT,
}


class Picking:
    """The kernels of a layer's attention core, and of its indexer if it has one."""

    def __init__(self, case: Case) -> None:
        self.case, self.machine = case, Machine(case)
        mla = case.model.mla
        assert mla is not None
        assert mla.indexer is not None
        self.mla: LatentAttention = mla
        self.indexer: Indexer = mla.indexer
        self.key = mla.kv_rank + mla.rope_dim
        self.heads = case.model.n_heads / case.plan.tp
        self.seq_len = case.training.seq_len
        self.rows = case.plan.micro_batch * self.seq_len / case.plan.cp
        self.most = min(mla.indexer.top_k, self.seq_len)
        self.rate = _rates(case)

    def seen(self) -> float:
        """Keys of a query in the mean, one query of a text after the other."""
        length, most = int(texts.seen(self.case)), self.indexer.top_k
        if most >= length:
            return length / 2
        # A trapezium: it rises to the most, and stays there.
        return (most / 2 * most + most * (length - most)) / length

    def moved(self, numbers: float) -> float:
        return self.machine.stream(numbers / self.case.element)

    def forward(self) -> float:
        mla = self.mla
        if self.case.training.attention == "plain":
            return self.stored()
        tiled = max(self.heads, 64)
        flops = 2 * self.rows * self.seen() * tiled * (self.key + mla.kv_rank)
        numbers = self.rows * (self.heads * (self.key + mla.kv_rank) + self.key)
        kernel_s = self.kernel(flops, numbers, "forward", self.seen())
        return kernel_s + self.moved(KEPT * self.rows * self.most)

    def backward(self) -> float:
        if self.case.training.attention == "plain":
            return 2 * self.stored()
        widths = 3 * self.key + 2 * self.mla.kv_rank
        flops = 2 * self.rows * self.seen() * max(self.heads, 64) * widths
        numbers = self.rows * (self.heads * (self.key + self.mla.kv_rank) + self.key)
        return self.kernel(flops, 2 * numbers, "backward", self.seen())

    def kernel(self, flops: float, numbers: float, way: str, keys: float) -> float:
        """At a rate over A100's, less where a query has few keys; 0 for all it has."""
        rate = self.machine.peak * self.rate[way] * self.case.rates["attention"]
        rate *= keys / (keys + 170) if keys else 1.0
        return max(flops / rate, self.machine.stream(numbers))

    def stored(self) -> float:
        """All pairs in fp32: scaled, masked, through a masked softmax, and cast."""
        queries = self.seq_len / self.case.plan.cp
        batch = self.case.plan.micro_batch * self.heads
        seconds = self.machine.fp32_matmul(queries, self.seq_len, self.key, batch)
        seconds += self.machine.matmul(queries, self.mla.kv_rank, self.seq_len, batch)
        softmax = 11 + 1 + 4 + 8 + 8 + 11 + 4 + 8 + 11
        pairs = self.rows * self.seq_len * self.heads
        return seconds + self.moved((8 + 8 + softmax + 6) * pairs)

    def projections(self) -> float:
        queries = self.indexer.n_heads * self.indexer.head_dim
        beside = self.indexer.n_heads + self.indexer.head_dim
        seconds = self.machine.linear(self.rows, queries, self.mla.q_rank)
        return seconds + self.machine.linear(self.rows, beside, self.case.model.d_model)

    def scores(self) -> float:
        """By one kernel, or head by head in fp32."""
        indexer, pairs = self.indexer, self.rows * self.seq_len
        if self.case.training.attention == "plain":
            return self.stored_scores()
        if self.by_head():
            queries = self.seq_len / self.case.plan.cp
            batch, seconds = float(self.case.plan.micro_batch), 0.0
            for _ in range(indexer.n_heads):
                seconds += self.machine.fp32_matmul(
                    queries, self.seq_len, indexer.head_dim, batch
                )
                seconds += self.moved((8 + 8 + 12) * pairs)
            return seconds + self.moved((4 + 10 + 12 + 4) * pairs)
        width = indexer.n_heads * indexer.head_dim
        flops = 2 * self.rows * texts.seen(self.case) / 2 * width
        length = float(self.seq_len)
        if self.case.exchange == "ring":
            length /= self.case.plan.cp
        kernel_s = self.machine.attention(flops, self.rows * width, length)
        return kernel_s + self.moved((FLOAT + FLOAT) * pairs)

    def by_head(self) -> bool:
        """Megatron-LM, but for sequences whose scores are small, or split texts."""
        if self.case.spec.framework != "megatron":
            return False
        is_packed = self.case.training.document_tokens is not None
        if self.case.plan.cp > 1:
            return not is_packed
        is_small = 4 * self.seq_len * self.seq_len <= 2**30
        return is_packed or not is_small

    def stored_scores(self) -> float:
        queries, indexer = self.seq_len / self.case.plan.cp, self.indexer
        batch = self.case.plan.micro_batch * indexer.n_heads
        seconds = self.machine.fp32_matmul(
            queries, self.seq_len, indexer.head_dim, batch
        )
        pairs = self.rows * self.seq_len * indexer.n_heads
        return seconds + self.moved((8 + 8 + 4) * pairs)

    def picking(self) -> float:
        """All that an indexer does forward."""
        seconds = self.projections() + self.scores()
        if self.case.training.attention != "plain":
            seconds += self.moved(sum(TO_PICK.values()) * self.rows * self.most)
        return seconds

    def loss(self) -> float:
        over = self.case.training.indexer_loss
        if over == "none":
            return 0.0
        # Gradients of its matrices, not of what they read.
        weights_s = self.projections()
        if self.case.training.attention == "plain":
            return weights_s + self.stored_loss()
        return weights_s + (self.over_picks() if over == "picked" else self.over_all())

    def over_picks(self) -> float:
        places, tiled = self.rows * self.most, max(self.heads, 64)
        target = 2 * self.rows * self.seen() * tiled * self.key
        seconds = self.kernel(target, places, "backward", self.seen())
        width = max(self.indexer.n_heads, 64) * self.indexer.head_dim
        flops = sum(2 * places * width for _ in ("scores", "queries", "keys"))
        seconds += self.kernel(flops, places, "backward", 0)
        return seconds + self.moved(sum(FOR_LOSS.values()) * places)

    def over_all(self) -> float:
        queries, pairs = self.seq_len / self.case.plan.cp, self.rows * self.seq_len
        batch = self.case.plan.micro_batch * self.heads
        seconds = self.machine.fp32_matmul(queries, self.seq_len, self.key, batch)
        seconds += self.moved((8 + 8 + 4) * pairs * self.heads)
        half = self.rows * texts.seen(self.case) / 2
        target = 2 * half * max(self.heads, 64) * self.key
        seconds += self.kernel(target, half, "backward", 0)
        width = max(self.indexer.n_heads, 64) * self.indexer.head_dim
        flops = sum(2 * half * width for _ in ("scores", "queries", "keys"))
        seconds += self.kernel(flops, half, "backward", 0)
        divergence = 8 + 5 + 13 + 8 + 8 + 8 + 12 + 12 + 13 + 4
        return seconds + self.moved((4 + 4 + divergence + 4 + 4) * pairs)

    def stored_loss(self) -> float:
        queries = self.seq_len / self.case.plan.cp
        batch, pairs = self.case.plan.micro_batch, self.rows * self.seq_len
        indexer, seconds = self.indexer, 0.0
        for _ in ("forward", "backward"):
            seconds += self.machine.fp32_matmul(
                queries, self.seq_len, self.key, batch * self.heads
            )
            softmax = 11 + 1 + 4 + 8 + 8 + 11 + 4 + 8 + 11
            # Scaled, masked by bounds and by picks, summed over heads.
            scores = 8 + 8 + 8 + softmax + 4
            seconds += self.moved(scores * pairs * self.heads)
        for _ in ("for the gradient of scores", "for that of weights"):
            seconds += self.stored_scores()
        for _ in ("queries", "keys"):
            seconds += self.machine.fp32_matmul(
                queries, self.seq_len, indexer.head_dim, batch * indexer.n_heads
            )
        gradient = 8 + 4 + 4 + 1 + 12 + 5 + 4
        return seconds + self.moved(gradient * pairs * indexer.n_heads)

    def operations(self) -> tuple[int, int]:
        """What the host starts, forward and backward."""
        found = 12 + 32 + 18 + 30 + 23 + 5
        if self.case.training.attention != "plain" and self.by_head():
            found += 6 * self.indexer.n_heads
        return found, 0 if self.case.training.indexer_loss == "none" else 90


def _rates(case: Case) -> dict[str, float]:
    """Rates over the peak; those of Blackwell beyond 2 PFLOP/s."""
    peaks = case.spec.cluster.topology.gpu.peak_tflops
    name = "bf16" if case.precision == "fp8" else case.precision
    is_newest = float(getattr(peaks, name)) > 2_000
    newest = {"forward": 1.27, "backward": 0.54}
    return newest if is_newest else {"forward": 1.27, "backward": 0.74}


def has_one(case: Case) -> bool:
    mla = case.model.mla
    return mla is not None and mla.indexer is not None
