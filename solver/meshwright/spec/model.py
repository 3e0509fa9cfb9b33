"""The `model` section: the shape of a decoder-only transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, TypeGuard

from pydantic import Field, PrivateAttr, model_validator

from meshwright.reading.document import FieldPath
from meshwright.spec.base import (
    MAX_COUNT,
    Count,
    CountOrNone,
    Flag,
    LayerCount,
    Name,
    Positive,
    Problem,
    SpecModel,
    nearest,
    refuse,
)
from meshwright.spec.model_parts import (
    Details,
    Experts,
    Indexer,
    LatentAttention,
    LayerKind,
    Mixer,
    Order,
    StateSpace,
    order_of,
)


def kind_problems(model: Model) -> Iterator[Problem]:
    """Yield unknown kinds of a pattern, and kinds that contradict the model."""
    yield from _pattern(model)
    yield from _mixers(model)
    yield from _indexers(model)
    if model.attention_window and model.attention_chunk:
        sentence = "beside model.attention_window; accepted: one of them"
        yield Problem(("attention_chunk",), model.attention_chunk, sentence)
    if model.mtp_layers > model.n_layers:
        sentence = f"are more than model.n_layers {model.n_layers}"
        yield Problem(("mtp_layers",), model.mtp_layers, sentence)
    if not model.d_ff and model.mixer == "none":
        yield Problem(("d_ff",), 0, "without a mixer leaves an empty layer")


def _pattern(model: Model) -> Iterator[Problem]:
    known, named = ", ".join(model.kinds) or "none", model.pattern
    for index, name in enumerate(named):
        if name not in model.kinds:
            sentence = f"is not in model.kinds; accepted: {known}"
            yield Problem(("pattern", index), name, sentence)
    for name in model.kinds:
        if name not in named:
            sentence = "is not in model.pattern; a kind needs a layer"
            yield Problem(("kinds",), name, sentence)
    if len(named) > model.n_layers:
        sentence = f"are more than model.n_layers {model.n_layers}"
        yield Problem(("pattern",), len(named), sentence)
    if named and model.first_dense_layers:
        sentence = "beside model.pattern; write dense layers as a kind, experts: false"
        path = ("moe", "first_dense_layers")
        yield Problem(path, model.first_dense_layers, sentence)


def _mixers(model: Model) -> Iterator[Problem]:
    """Yield state spaces that are missing, and parts that no layer of a kind has."""
    mixers: dict[FieldPath, str] = {("mixer",): model.mixer}
    for name, kind in model.kinds.items():
        if kind.mixer is not None:
            mixers[("kinds", name, "mixer")] = kind.mixer
        heads = model.n_heads
        kv_heads = kind.n_kv_heads or model.n_kv_heads
        if heads % kv_heads:
            sentence = f"does not divide the {heads} query heads"
            yield Problem(("kinds", name, "n_kv_heads"), kv_heads, sentence)
        if kind.experts and model.moe is None:
            sentence = "without model.moe; accepted: false"
            yield Problem(("kinds", name, "experts"), True, sentence)
    for path, mixer in mixers.items():
        if mixer == "state_space" and model.state_space is None:
            yield Problem(path, mixer, "needs model.state_space")
    if model.state_space is not None and "state_space" not in mixers.values():
        sentence = "is of no layer: no mixer of a kind or the model is state_space"
        yield Problem(("state_space",), model.state_space.form, sentence)


def _indexers(model: Model) -> Iterator[Problem]:
    """Yield layers that share an indexer where none before them has one."""
    if model.shares_indexer:
        sentence = "is of all layers; accepted: in a kind of model.kinds"
        yield Problem(("shares_indexer",), True, sentence)
    sharing = [name for name, kind in model.kinds.items() if kind.shares_indexer]
    if sharing and model.picker is None:
        sentence = "without model.mla.indexer; accepted: false"
        yield Problem(("kinds", sharing[0], "shares_indexer"), True, sentence)
    elif model.pattern[:1] and model.pattern[0] in sharing:
        sentence = "shares the indexer of a layer before it, and is the first"
        yield Problem(("pattern", 0), model.pattern[0], sentence)


WHOLE_MODEL = ("n_layers", "d_model", "n_heads", "d_ff", "vocab")
"""Fields without which a model stays open, beside its name."""


class Model(SpecModel):
    """The shape of a decoder-only transformer; presets are in specs/models."""

    REPLACED: ClassVar[Mapping[str, str]] = {
        "mamba_layers": "model.pattern, model.kinds and model.state_space",
        "hybrid_override_pattern": "model.pattern, model.kinds and model.state_space",
        "layer_types": "model.pattern and model.kinds",
        "sliding_window": "model.attention_window",
        "num_nextn_predict_layers": "model.mtp_layers",
        "mtp_num_layers": "model.mtp_layers",
    }

    name: Name = Field("inline", description="For the reader; not used.")
    n_layers: LayerCount = Field(description="Transformer layers.")
    d_model: Count = Field(description="Width of the residual stream.")
    n_heads: Count = Field(description="Query heads.")
    n_kv_heads: Count = Field(description="Key and value heads; n_heads without GQA.")
    head_dim: Count = Field(
        description="Width of a head; default d_model / n_heads, or the sum of mla's."
    )
    d_ff: CountOrNone = Field(
        description="Inner width of the MLP; 0 for layers without one."
    )
    vocab: Count = Field(description="Rows of the embedding table.")
    gated_mlp: Flag = Field(False, description="SwiGLU or GeGLU: three MLP matrices.")
    norm: Literal["layernorm", "rmsnorm"] = Field(
        "layernorm", description="The kind of all norms; layernorm has a bias."
    )
    norms_per_layer: Count = Field(
        2,
        description="Norms of a layer: 1 that attention and MLP share, 2 before them, "
        "or 4 before and after them.",
    )
    qk_norm: Flag = Field(
        False, description="A norm over each query head, and one over each key head."
    )
    parallel_residual: Flag = Field(
        False, description="Attention and MLP read the same input; both are added."
    )
    embedding_norm: Flag = Field(
        False, description="A norm after the embedding, before the first layer."
    )
    bias: Literal["none", "qkv", "attention", "mlp", "all"] = Field(
        "all", description="Which linear layers have a bias, beside the head."
    )
    tied_embeddings: Flag = Field(True, description="Head and embedding share weights.")
    learned_positions: CountOrNone = Field(0, description="Learned position vectors.")
    alibi: Flag = Field(
        False, description="Linear biases on the scores; default rotary positions."
    )
    moe: Experts | None = Field(
        None, description="Experts instead of one MLP per layer; default dense."
    )
    mla: LatentAttention | None = Field(
        None, description="Latent attention; default plain heads of head_dim."
    )
    shares_indexer: Flag = Field(
        False,
        description="Of a kind: the layer has no indexer, and reads the tokens that "
        "the one of a layer before it picked.",
    )
    attention_window: CountOrNone = Field(
        0, description="Nearest tokens that a token attends to; 0 for all before it."
    )
    attention_chunk: CountOrNone = Field(
        0, description="Tokens of a chunk inside which tokens attend; 0 for all."
    )
    output_gate: Flag = Field(
        False, description="A gate as wide as the queries over attention's output."
    )
    attention_sinks: Flag = Field(
        False, description="A learned score per head that every softmax sums, too."
    )
    keys_are_values: Flag = Field(
        False, description="Keys are the values as well: one projection for both."
    )
    head_bias: Flag = Field(False, description="A bias in the head.")
    mtp_layers: CountOrNone = Field(
        0,
        description="Layers after the last that predict one token further each, beside "
        "the head: multi-token prediction. They are like the last layer.",
    )
    mixer: Mixer = Field(
        "attention", description="What mixes tokens in a layer; none for an MLP alone."
    )
    state_space: StateSpace | None = Field(
        None, description="The recurrent mixer of layers with mixer: state_space."
    )
    kinds: dict[Name, LayerKind] = Field(
        default_factory=dict,
        description="Kinds of layers by name, each with what differs from the model.",
    )
    pattern: tuple[Name, ...] = Field(
        (), description="Names of kinds in the order of layers; repeats to the last."
    )
    dropout: Flag = Field(False, description="Trained with dropout: masks are saved.")
    details: Details = Field(
        default_factory=Details,
        description="What training needs and no price: positions, epsilon, router.",
    )
    published_params: Positive | None = Field(
        None, description="Parameters that the model's authors publish; for tests."
    )

    _picks_for_others: bool = PrivateAttr(default=False)
    """Of a model that was taken from one of several kinds of layers."""

    @model_validator(mode="before")
    @classmethod
    def _default_heads(cls, data: object) -> object:
        """Fill n_kv_heads and head_dim from the heads where they are left out."""
        if not isinstance(data, dict):
            return data
        heads, width = data.get("n_heads"), data.get("d_model")
        if not _is_count(heads) or not _is_count(width):
            # Both are refused for what they are; derived fields add no errors.
            return {"n_kv_heads": 1, "head_dim": 1, **data}
        if "head_dim" not in data and (latent := _latent_head_dim(data.get("mla"))):
            return {"n_kv_heads": heads, "head_dim": latent, **data}
        if "head_dim" not in data and width % heads:
            sentence = f"does not divide model.d_model {width}; {nearest(heads, width)}"
            sentence += ", or give model.head_dim"
            refuse([Problem(("n_heads",), heads, sentence)])
        return {"n_kv_heads": heads, "head_dim": width // heads, **data}

    @model_validator(mode="after")
    def _check_norms(self) -> Model:
        parallel, count = self.parallel_residual, self.norms_per_layer
        accepted = (1, 2) if parallel else (2, 4)
        if count not in accepted and not self._has_one_part(count):
            state = "with" if parallel else "without"
            sentence = f"{state} model.parallel_residual; accepted: %d or %d" % accepted
            refuse([Problem(("norms_per_layer",), count, sentence)])
        return self

    def _has_one_part(self, norms: int) -> bool:
        """Return whether the one norm of layers is all that they need."""
        is_half = self.mixer == "none" or self.d_ff == 0
        return norms == 1 and (is_half or bool(self.pattern))

    @model_validator(mode="after")
    def _check_kinds(self) -> Model:
        refuse(kind_problems(self))
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Model:
        if self.alibi and self.learned_positions:
            sentence = "beside model.learned_positions; accepted: one of them"
            refuse([Problem(("alibi",), True, sentence)])
        return self

    @model_validator(mode="after")
    def _check_kv_heads(self) -> Model:
        heads, kv_heads = self.n_heads, self.n_kv_heads
        if heads % kv_heads:
            near = nearest(kv_heads, heads)
            sentence = f"does not divide model.n_heads {heads}; {near}"
            refuse([Problem(("n_kv_heads",), kv_heads, sentence)])
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Model:
        most = self.n_layers - 1
        if self.first_dense_layers > most:
            path = ("moe", "first_dense_layers")
            sentence = f"leaves no layer of model.n_layers {self.n_layers} to experts; "
            sentence += f"accepted: up to {most}"
            refuse([Problem(path, self.first_dense_layers, sentence)])
        return self

    @model_validator(mode="after")
    def _check_latent(self) -> Model:
        if self.mla is not None:
            beside = "beside model.mla; accepted:"
            width = self.mla.nope_dim + self.mla.rope_dim
            accepted = {
                "n_kv_heads": (self.n_heads, f"model.n_heads {self.n_heads}"),
                "head_dim": (width, f"nope_dim + rope_dim {width}"),
                "bias": ("none", "none"),
                "qk_norm": (False, "false"),
            }
            refuse(
                Problem((field,), getattr(self, field), f"{beside} {name}")
                for field, (only, name) in accepted.items()
                if getattr(self, field) != only
            )
        return self

    @property
    def indexer(self) -> Indexer | None:
        """Return the indexer that every layer has; none where it shares another's."""
        return None if self.shares_indexer else self.picker

    @property
    def mixing_space(self) -> StateSpace | None:
        """Return the state space that mixes tokens in place of attention, if any."""
        return self.state_space if self.mixer == "state_space" else None

    @property
    def picker(self) -> Indexer | None:
        """Return the indexer that picks what attention reads, of any layer."""
        return None if self.mla is None else self.mla.indexer

    @property
    def picks_for_others(self) -> bool:
        """Return whether some layers read what the indexer of another layer picked."""
        shares = any(kind.shares_indexer for kind in self.kinds.values())
        return shares or self._picks_for_others

    @property
    def first_dense_layers(self) -> int:
        """Return how many leading layers have an MLP instead of experts."""
        return self.moe.first_dense_layers if self.moe is not None else 0

    @property
    def has_query_bias(self) -> bool:
        """Return whether projections to queries, keys and values have a bias."""
        return self.bias in ("qkv", "attention", "all")

    @property
    def has_output_bias(self) -> bool:
        """Return whether the projection of what attention returns has a bias."""
        return self.bias in ("attention", "all")

    @property
    def has_mlp_bias(self) -> bool:
        """Return whether the matrices of MLPs and experts have biases."""
        return self.bias in ("mlp", "all")

    @property
    def order(self) -> Order:
        """Return the order of the kinds of layers; all are one kind by default."""
        return order_of(self.pattern or ("layer",), self.n_layers)

    @property
    def leading_layers(self) -> int:
        """Return how many leading layers differ from those that repeat."""
        return self.first_dense_layers + len(self.order.leading)

    @property
    def leading_parts(self) -> int:
        """Return how many parts lead: each dense layer, or all before a pattern."""
        return self.first_dense_layers or int(len(self.order.leading) > 0)

    @property
    def kv_head_counts(self) -> tuple[int, ...]:
        """Return the numbers of key and value heads that kinds of layers have."""
        of_kinds = (kind.n_kv_heads or self.n_kv_heads for kind in self.kinds.values())
        return tuple(sorted({self.n_kv_heads, *of_kinds}))

    @property
    def copies_embedding(self) -> bool:
        """Return whether the stage of the head has the embedding, too.

        A tied head is a copy, and layers that predict further tokens read one.
        """
        return self.tied_embeddings or self.mtp_layers > 0

    def of_kind(self, name: str) -> Model:
        """Return the model as if all of its layers were of one kind."""
        if not self.pattern:
            return self
        only: dict[str, object] = {"pattern": (), "kinds": {}}
        only_one = self.model_copy(update=self.kinds[name].changed | only)
        only_one._picks_for_others = self.picks_for_others
        return only_one


def _latent_head_dim(mla: object) -> int | None:
    """Return the head_dim that latent attention implies, None where it has none."""
    if not isinstance(mla, dict):
        return None
    nope, rope = mla.get("nope_dim"), mla.get("rope_dim")
    return nope + rope if _is_count(nope) and _is_count(rope) else None


def _is_count(value: object) -> TypeGuard[int]:
    is_flag = isinstance(value, bool)
    return isinstance(value, int) and not is_flag and 0 < value <= MAX_COUNT
