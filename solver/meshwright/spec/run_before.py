"""Which combinations of decisions have been run, and what a step beyond them is worth.

A combination is written as `tp inside a node + pp to 8 + interleaved`: one word for
every decision that is not the plain one. How far plans are from combinations is in
`plans.simplicity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from meshwright.spec.base import CountOrNone, SpecModel, number
from meshwright.spec.training import ExpertDispatch

PLAIN = "data parallelism alone"
"""How the combination without any decision but the plain ones is written."""


class Decision(NamedTuple):
    """A decision, as far as it makes plans alike or unlike others that were run."""

    name: str
    words: tuple[str, ...]
    """Its levels; the plain one comes first and is never written."""
    is_switch: bool = False
    """Whether a plan that has less of it than what was run is not doubted for that."""


DECISIONS = (
    Decision("tp", ("no tp", "tp inside a node", "tp across nodes")),
    Decision("pp", ("no pp", "pp to 8", "pp to 16", "pp over 16")),
    Decision("adapters", ("no such", "adapters of a split model"), is_switch=True),
    Decision("vpp", ("not interleaved", "interleaved"), is_switch=True),
    Decision("cp", ("no cp", "cp 2", "cp over 2 on long", "cp over 2 on short")),
    Decision("cp_tokens", ("many tokens", "few tokens a GPU"), is_switch=True),
    Decision("cp_sequence", ("no short one", "cp on a short sequence"), is_switch=True),
    Decision(
        "ep",
        (
            "no ep",
            "ep inside a node",
            "ep across nodes",
            "ep over 64",
            "experts without ep",
        ),
    ),
    Decision("zero", ("ZeRO-1 at most", "ZeRO-2", "ZeRO-3"), is_switch=True),
    Decision("hsdp", ("shards of a node", "hsdp inside a node"), is_switch=True),
    Decision("offload", ("no offload", "offload"), is_switch=True),
    Decision("inputs", ("on the GPU", "inputs on the host"), is_switch=True),
    Decision("schedule", ("1F1B", "zero-bubble or GPipe"), is_switch=True),
)
"""Sequences are long from 16,384 tokens on, and short below 8,192: of 206 known runs
that split sequences none has shorter ones. Tokens are few below 4,096 a GPU. A model
without experts has no ep; to leave the experts of another one unsplit is a decision.
Replicas of shards (hybrid sharding, PyTorch's HSDP) are usual where one fills a node,
or several; of 63 known runs none has smaller ones. Adapters train beside layers that
TP or a pipeline splits where the framework cuts the model, as Megatron-LM does;
DeepSpeed's pipelines take a list of layers, which PEFT does not wrap."""

LONG = 16_384
"""Tokens of a sequence that is split over more than two GPUs without any doubt."""

SHORT = 8_192
"""Tokens of a sequence below which none was split over GPUs."""

FEW_TOKENS = 4_096
"""Tokens of a GPU below which context parallelism splits a sequence too far."""

WIDEST_EP = 64
"""GPUs that share a layer's experts in trainings that teams publish: DeepSeek-V3 has
64 (DeepSeek-AI 2024, 3.2), and so have NVIDIA's recipes for racks of 72."""

SAME_JOB = 2
"""How many times as many GPUs, and sequences of each, the very job may have that a plan
is published for: what is left for data parallelism changes, and little else."""

COMMON = 10
"""Runs from which on a combination is common."""

_CODE_OF = {
    word: (place, code)
    for place, decision in enumerate(DECISIONS)
    for code, word in enumerate(decision.words)
    if code
}

Codes = tuple[int, ...]
"""The level of every decision, in the order of `DECISIONS`."""


@lru_cache(maxsize=1024)
def codes_of(text: str) -> Codes:
    """Return the levels of a combination from its text.

    Raises:
        ValueError: a word is unknown, or names a decision twice.
    """
    codes = [0] * len(DECISIONS)
    for word in () if text == PLAIN else text.split(" + "):
        if word not in _CODE_OF:
            accepted = ", ".join((PLAIN, *_CODE_OF))
            raise ValueError(f"{word!r} is no decision; expected {accepted}")
        place, code = _CODE_OF[word]
        if codes[place]:
            raise ValueError(f"{text!r} says {DECISIONS[place].name} twice")
        codes[place] = code
    return tuple(codes)


def text_of(codes: Codes) -> str:
    """Return the text of a combination."""
    pairs = zip(DECISIONS, codes, strict=True)
    return " + ".join(decision.words[c] for decision, c in pairs if c) or PLAIN


def between(known: Iterable[str]) -> dict[str, int]:
    """Return the combinations between two known ones, each with no run.

    Where pipelines were run with fewer stages and with more, all else the same, those
    with a number between them are no bolder.
    """
    place = [decision.name for decision in DECISIONS].index("pp")
    stages = defaultdict[Codes, set[int]](set)
    for codes in map(codes_of, known):
        stages[(*codes[:place], 0, *codes[place + 1 :])].add(codes[place])
    return {
        text_of((*codes[:place], level, *codes[place + 1 :])): 0
        for codes, run in stages.items()
        for level in range(min(run), max(run))
        if level not in run
    }


def _known(counts: dict[str, int]) -> dict[str, int]:
    for text in counts:
        codes_of(text)
    return counts


Combinations = Annotated[dict[str, CountOrNone], AfterValidator(_known)]
"""How many runs of every combination there are, by its text."""

PerDecision = Annotated[float, number("from 0 to 1", lambda share: 0 <= share <= 1)]


class PlanOfMaker(SpecModel):
    """The plan that a maker published for a model, a sequence and GPUs."""

    model: str
    params: int
    gpu: str
    gpus: int
    framework: str
    precision: str
    seq_len: int
    global_batch: int
    frozen: str | None = None
    """The precision of frozen weights beside adapters, where it trains these alone."""
    plan: dict[str, Any]
    """As `pins` of a spec; data parallelism is what is left."""
    gradients: Literal["bf16", "fp32"] | None = None
    """The precision in which it keeps gradients, where that is not as usual."""
    expert_dispatch: ExpertDispatch | None = None
    """How it sends tokens to experts, where there are any."""
    tokens_per_s_per_gpu: float | None = None
    """The rate that was measured, where that is published."""
    source: str

    def is_for(self, gpus: int, batch: int) -> bool:
        """Return whether it is for a job on so many GPUs with so many sequences."""
        ratios = gpus / self.gpus, batch / gpus / (self.global_batch / self.gpus)
        return all(1 / SAME_JOB <= ratio <= SAME_JOB for ratio in ratios)

    def on(self, gpus: int) -> dict[str, Any]:
        """Return its plan for a number of GPUs: how data are sharded may change."""
        fixed = () if gpus == self.gpus else ("dp_replicate", "dp_shard")
        return {name: v for name, v in self.plan.items() if name not in fixed}


class RunBefore(SpecModel):
    """Combinations that were run with frameworks of one kind, and doubt beyond."""

    combinations: Combinations = Field(default_factory=dict)
    per_decision: PerDecision = Field(
        0.0,
        description="Share by which a step may be longer than modelled for every "
        "decision of a plan beyond the nearest combination.",
    )
    published: PlanOfMaker | None = Field(
        None, description="The plan that a maker publishes for the job, if one does."
    )

    @property
    def common(self) -> tuple[Codes, ...]:
        """Return the levels of the combinations that are common."""
        counts = self.combinations.items()
        return tuple(codes_of(text) for text, count in counts if count >= COMMON)

    @property
    def percent(self) -> int:
        """Return the share for each decision in whole percents: 0 if nothing is known.

        Prices of the solver are whole numbers.
        """
        return round(100 * self.per_decision) if self.combinations else 0

    @property
    def share(self) -> float:
        """Return the share for each decision that the solver counts."""
        return self.percent / 100


NOTHING_KNOWN = RunBefore()


class Familiarity(SpecModel):
    """How near a plan is to what was run with frameworks like this one."""

    like: str = Field(description="The nearest combination of decisions that was run.")
    runs: int = Field(
        description="Known runs of that combination; 0 if it lies between two others."
    )
    beyond: tuple[str, ...] = Field(
        description="Decisions of the plan that this combination does not have."
    )
    doubt: float = Field(
        description="Share of the step that is doubted for each of these decisions."
    )

    @property
    def factor(self) -> float:
        """Return the doubted step as a multiple of the modelled one."""
        return 1 + self.doubt * len(self.beyond)
