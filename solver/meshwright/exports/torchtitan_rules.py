"""What torchtitan cannot be told of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.layer_refusals import layer_refusals
from meshwright.exports.refusals import Refusal
from meshwright.exports.target import recomputed_text
from meshwright.exports.torchtitan_model_code import BACKENDS
from meshwright.exports.torchtitan_models import flavor, is_llama
from meshwright.frameworks.base.registry import overlap_of
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield what of a plan torchtitan cannot be told."""
    if plan.recomputes_some_layers:
        check = "torchtitan/distributed/activation_checkpoint.py: apply"
        sentence = (
            f"{plan.recompute} on {recomputed_text(plan)}: a policy wraps every block"
        )
        yield Refusal("recompute", sentence, check)
    yield from _model_refusals(spec, plan)
    yield from _training_refusals(spec, plan)


def _model_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    model = spec.model
    yield from layer_refusals(model, "torchtitan")
    if flavor(model) is None and not is_llama(model):
        sentence = f"{model.name}: none of its models is of this kind and shape"
        yield Refusal("model", sentence, "torchtitan/models: model_registry")
    if plan.precision == "fp8" and model.moe is not None:
        check = "torchtitan/components/quantization: Float8LinearConverter"
        yield Refusal("precision", "fp8 with experts: linear layers alone", check)


def _training_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    training = spec.training
    configs = "torchtitan/config/configs.py: TrainingConfig"
    if training.optimizer != "adamw":
        check = "torchtitan/components/optimizer.py: default_adamw"
        yield Refusal("training.optimizer", f"{training.optimizer}", check)
    if training.gradients == "bf16":
        check = f"{configs}.mixed_precision_reduce"
        yield Refusal("training.gradients", "bf16: float32 is the only one", check)
    if plan.precision in ("fp16", "tf32"):
        check = f"{configs}.mixed_precision_param"
        yield Refusal("precision", f"{plan.precision}: bfloat16 or float32", check)
    if "tp" in overlap_of(spec) and not training.compile:
        sentence = "without training.compile, which splits matmuls for it"
        check = "torchtitan/config/configs.py: CompileConfig.__post_init__"
        yield Refusal("training.overlap.tp", sentence, check)
    if training.cuda_graphs == "outside_experts":
        sentence = "outside_experts: its graphs are those of the whole step"
        check = "torchtitan/trainer.py: _validate_cuda_graphs"
        yield Refusal("training.cuda_graphs", sentence, check)
    elif training.cuda_graphs and (plan.pp > 1 or plan.ep > 1):
        sentence = "beside a pipeline or experts that are spread: nothing is captured"
        check = "torchtitan/trainer.py: _validate_cuda_graphs"
        yield Refusal("training.cuda_graphs", sentence, check)
    if training.attention not in BACKENDS:
        check = "torchtitan/models/common/config_utils.py: get_attention_config"
        sentence = f"{training.attention}: its kernels are {', '.join(BACKENDS)}"
        yield Refusal("training.attention", sentence, check)
    elif training.attention == "flash2" and plan.cp > 1:
        check = "torchtitan/trainer.py: context parallelism needs FlexAttention"
        yield Refusal("training.attention", "flash2 beside context parallelism", check)
