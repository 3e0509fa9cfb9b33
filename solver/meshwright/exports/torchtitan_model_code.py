"""The lines of a torchtitan configuration that say the model."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.torchtitan_models import flavor
from meshwright.plans.plan import Plan
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

Line = tuple[str, str]
"""Code, and the comment behind it."""

_FLOAT8 = "torchtitan.components.quantization"


def imports(spec: Spec, plan: Plan) -> Iterator[str]:
    """Yield the imports that the lines on the model need."""
    if plan.precision == "fp8":
        yield f"from {_FLOAT8} import Float8LinearConverter"
    own = flavor(spec.model)
    if own is not None:
        yield f"from torchtitan.models.{own.module} import model_registry"
        return
    yield "import torchtitan.models.llama3 as llama3"
    yield "from torchtitan.distributed.pipeline_parallel import pipeline_llm"
    yield "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm"
    yield "from torchtitan.protocols.model_spec import ModelSpec"


def model_lines(spec: Spec, plan: Plan) -> list[Line]:
    """Return the lines that make `model_spec`."""
    own = flavor(spec.model)
    if own is None:
        return _llama_lines(spec.model, spec.training.seq_len, plan)
    lines = [(f"model_spec = model_registry({own.name!r}", "the spec's model")]
    if plan.precision != "fp8":
        return [(lines[0][0] + ")", lines[0][1])]
    converter = "Float8LinearConverter.Config(model_compile_enabled=False)"
    return [
        ("model_spec = model_registry(", ""),
        (f"    {own.name!r},", "the spec's model"),
        (f"    converters=[{converter}],", "plan.precision fp8"),
        (")", ""),
    ]


def _llama_lines(model: Model, seq_len: int, plan: Plan) -> list[Line]:
    lines = [
        (f"dim, vocab = {model.d_model}, {model.vocab}", "model.d_model, model.vocab"),
        ("rope = ComplexRoPE.Config(", ""),
        (f"    dim={model.head_dim},", "model.head_dim"),
        (f"    max_seq_len={seq_len},", "training.seq_len"),
        ("    theta=500000,", "Llama 3's; yours to change"),
        (")", ""),
        ("config = llama3.Llama3Model.Config(", ""),
        ("    dim=dim,", ""),
        ("    vocab_size=vocab,", ""),
        (
            f"    enable_weight_tying={model.tied_embeddings},",
            "model.tied_embeddings",
        ),
        ("    tok_embeddings=Embedding.Config(", ""),
        ("        num_embeddings=vocab,", ""),
        ("        embedding_dim=dim,", ""),
        ("        param_init=llama3._EMBEDDING_INIT,", ""),
        ("    ),", ""),
        ("    norm=RMSNorm.Config(", ""),
        ("        normalized_shape=dim, param_init=llama3._NORM_INIT", ""),
        ("    ),", ""),
        ("    lm_head=Linear.Config(", ""),
        ("        in_features=dim,", ""),
        ("        out_features=vocab,", ""),
        ("        param_init=llama3._output_linear_init(dim),", ""),
        ("    ),", ""),
        ("    layers=llama3._build_llama3_layers(", ""),
        (f"        n_layers={model.n_layers},", "model.n_layers"),
        ("        dim=dim,", ""),
        (f"        n_heads={model.n_heads},", "model.n_heads"),
        (f"        n_kv_heads={model.n_kv_heads},", "model.n_kv_heads"),
        (f"        hidden_dim={model.d_ff},", "model.d_ff"),
        ("        rope=rope,", ""),
        ('        attn_backend="flex",', "training.attention flash"),
        ("    ),", ""),
        (")", ""),
    ]
    if plan.precision == "fp8":
        converter = "Float8LinearConverter.Config(model_compile_enabled=False)"
        lines.append(
            (f"config = {converter}.build().convert(config)", "plan.precision")
        )
    lines += [
        ("model_spec = ModelSpec(", ""),
        ('    name="llama3",', ""),
        ('    flavor="plan",', ""),
        ("    model=config,", ""),
        ("    parallelize_fn=llama3.parallelize_llama,", ""),
        ("    pipelining_fn=pipeline_llm,", ""),
        ("    post_optimizer_build_fn=None,", ""),
        ("    state_dict_adapter=llama3.Llama3StateDictAdapter,", ""),
        (")", ""),
    ]
    return lines
