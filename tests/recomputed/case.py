"""What is worked out: one plan of one spec, at some efficiencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.plans.plan import Plan
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

TENSOR_ENGINE = ("megatron", "deepspeed", "internevo")
"""Frameworks whose fp8 matmuls keep the 8-bit copies that they cast."""


ENGINE = ("megatron", "ideal")
"""Frameworks with the kernels of Transformer Engine."""

EXCHANGES = {"deepspeed": "ulysses", "torchtitan": "gather"}
"""How the ranks of one sequence communicate by default; else keys and values go round.

`ulysses` exchanges tokens for heads; `gather` has all keys and values before attention,
and keeps them.
"""


GATHERING = ("megatron", "torchtitan", "fsdp")
"""Frameworks that can gather keys."""


@dataclass(frozen=True)
class Case:
    """One plan, and how much of the hardware real kernels and links reach."""

    spec: Spec
    """With the plan's precision decided."""
    plan: Plan
    rates: Mapping[str, float]

    @property
    def model(self) -> Model:
        return self.spec.model

    @property
    def training(self) -> Training:
        return self.spec.training

    @property
    def element(self) -> int:
        """Bytes of an activation or a message's number: fp8 travels as bf16."""
        return {"fp8": 2, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}[self.precision]

    @property
    def stream(self) -> int:
        """Bytes of a number that one operation hands to the next: what is not quantised
        may have been cast to fp32, and fp32 makes fp32."""
        return 4 if self.is_cast_wide else self.element

    @property
    def is_cast_wide(self) -> bool:
        """By PEFT, or by autocast, whose layer norms return fp32, and matrices of
        bitsandbytes what they got."""
        lora = self.training.lora
        if lora is None:
            return False
        is_packed = lora.weights == "nf4" or lora.weights == "int8"
        is_autocast = lora.adapters == "autocast" and self.model.norm == "layernorm"
        return lora.upcast or (is_packed and is_autocast)

    def with_every_adapter(self) -> Case:
        """With adapters beside all matrices: those that bitsandbytes may quantise."""
        lora = self.training.lora
        assert lora is not None
        every = lora.model_copy(update={"targets": ("attention", "mlp")})
        training = self.training.model_copy(update={"lora": every})
        return replace(self, spec=self.spec.model_copy(update={"training": training}))

    @property
    def trains_ends(self) -> bool:
        """Embedding and head, or copies of both beside frozen ones."""
        return self.training.lora is None or self.training.lora.ends != "frozen"

    def without_master(self) -> Case:
        """As a program trains that adds an optimizer to weights in 16 bits."""
        training = self.training.model_copy(update={"master_weights": "none"})
        return replace(self, spec=self.spec.model_copy(update={"training": training}))

    @property
    def precision(self) -> str:
        return self.plan.precision

    @property
    def keeps_fp8(self) -> bool:
        return self.precision == "fp8" and self.spec.framework in TENSOR_ENGINE

    @property
    def keeps_fp8_inputs(self) -> bool:
        """Whether matmuls save inputs in 8 bits, beside copies of weights or alone."""
        is_mathematics = self.spec.framework == "generic"
        return self.precision == "fp8" and (self.keeps_fp8 or is_mathematics)

    @property
    def is_data_parallel_alone(self) -> bool:
        plan = self.plan
        return plan.tp == plan.pp == plan.cp == plan.ep == 1

    @property
    def tokens(self) -> float:
        """Of a micro-batch, what a tensor-parallel group works on together."""
        return self.plan.micro_batch * self.training.seq_len / self.plan.cp

    @property
    def exchange(self) -> str:
        usual = EXCHANGES.get(self.spec.framework, "ring")
        picks = self.model.mla is not None and self.model.mla.indexer is not None
        if picks and self.spec.framework in GATHERING:
            usual = "gather"
        return self.training.context_exchange or usual

    @property
    def loss_chunks(self) -> int:
        usual = 8 if self.spec.framework == "torchtitan" else 1
        return self.training.loss_chunks or usual

    @property
    def is_loss_parallel(self) -> bool:
        return self.training.loss_parallel is not False

    @property
    def reduces_once(self) -> bool:
        """Whether gradients wait for the last micro-batch, asked or by a pipeline."""
        is_asked = self.training.gradient_sync == "last" and self.plan.zero >= 2
        return is_asked or self.keeps_weights

    @property
    def keeps_weights(self) -> bool:
        """Whether a pipeline puts off what ZeRO does after every micro-batch."""
        is_theirs = self.spec.framework == "torchtitan"
        return is_theirs and self.plan.pp > 1 and self.plan.zero >= 2

    @property
    def sequence_shards(self) -> int:
        return self.plan.tp if self.plan.sequence_parallel else 1

    @property
    def own_tokens(self) -> float:
        """Of these, what one rank works on between the group's matmuls."""
        return self.tokens / self.sequence_shards

    @property
    def hidden_bytes(self) -> float:
        """One micro-batch's residual stream on a tensor-parallel group."""
        return self.tokens * self.model.d_model * self.element

    @property
    def kv_shards(self) -> int:
        """Ranks that key and value heads are split over; more hold copies."""
        return min(self.plan.tp, self.model.n_kv_heads)

    @property
    def copies_per_token(self) -> float:
        """Places that a token takes among routed experts, padding included."""
        assert self.model.moe is not None
        return self.model.moe.top_k * (self.model.moe.capacity_factor or 1.0)

    @property
    def experts_exchange(self) -> bool:
        """Whether ranks send each other tokens for experts."""
        return self.plan.ep > 1 or self.plan.etp > 1

    @property
    def copies_on_the_fullest(self) -> float:
        """Of copies, more than its share where ranks of experts exchange tokens."""
        assert self.model.moe is not None
        imbalance = self.training.expert_imbalance
        if imbalance is None:
            imbalance = 1.0 if self.model.moe.capacity_factor else 1.2
        return self.copies_per_token * (imbalance if self.plan.ep > 1 else 1.0)

    @property
    def weights_experts_apart(self) -> bool:
        """Whether results of experts are weighted in fp32 by torchtitan's operations.

        DeepEP weights them on their way back, and a compiler with the activation.
        """
        return self.sums_by_index and "activation" not in self.fused

    @property
    def sums_by_index(self) -> bool:
        """Whether torchtitan's operations gather tokens for experts, and add up."""
        return self.has_torch_experts and self.training.expert_dispatch != "deepep"

    @property
    def has_torch_experts(self) -> bool:
        """Whether experts are operations of PyTorch."""
        return self.model.moe is not None and self.spec.framework == "torchtitan"

    @property
    def has_plain_experts(self) -> bool:
        """Whether no compiler makes one kernel of what experts activate."""
        return self.has_torch_experts and "activation" not in self.fused

    @property
    def expert_bytes(self) -> tuple[float, float]:
        """Bytes of both passes to add biases, and to limit what experts activate."""
        if self.spec.framework == "megatron":
            return 68.0, 36.0
        if self.has_plain_experts:
            return 30.0, 100.0
        return 6.0, 0.0

    @property
    def fused(self) -> frozenset[str]:
        """Operations that are one kernel: all under Transformer Engine, or norms."""
        if self.training.fused is not None:
            return frozenset(self.training.fused)
        if self.spec.framework in ENGINE:
            with_sums = {"residual"} if self.spec.framework == "ideal" else set()
            return frozenset(
                {"norm", "rope", "activation", "softmax", "loss", "dropout", *with_sums}
            )
        usual = {
            "internevo": {"norm", "rope", "loss"},
            "deepspeed": {"norm", "softmax", "dropout"},
        }.get(self.spec.framework, {"norm"})
        by_compiler = {"norm", "residual", "rope", "activation", "softmax", "dropout"}
        return frozenset(usual | (by_compiler if self.training.compile else set()))

    @property
    def overlap(self) -> frozenset[str]:
        """Traffic that the code base hides behind compute."""
        usual = {
            "megatron": ("gradients", "parameters", "pp"),
            "ideal": ("gradients", "parameters", "tp", "ep", "pp"),
            "internevo": ("gradients",),
        }.get(self.spec.framework, ("gradients", "parameters"))
        said = self.training.overlap.model_dump()
        return frozenset(
            kind for kind, on in said.items() if on or (on is None and kind in usual)
        )

    @property
    def host_s(self) -> float:
        """What the host takes to start a layer of plain operations, and no graph."""
        return self.rates["dispatch_s"]

    @property
    def replays(self) -> bool:
        """Whether graphs replay kernels: torchtitan's own, or where the spec says."""
        if self.training.cuda_graphs is not None:
            return self.training.cuda_graphs is True
        is_titan = self.spec.framework == "torchtitan"
        return is_titan and self.plan.pp == 1 and self.plan.ep == 1

    @property
    def joins_norms(self) -> bool:
        """Whether a norm runs with the matmul after it."""
        return self.spec.framework in ENGINE and "norm" in self.fused

    @property
    def repeats(self) -> frozenset[str]:
        """What selective recomputation runs again: modules, or a way of its own."""
        if self.plan.recompute != "selective":
            return frozenset()
        by_ops = self.spec.framework == "torchtitan"
        found = "by operations" if by_ops else "cheap"
        return frozenset((self.plan.recompute_modules or found).split("+"))

    def norm_of(self, place: str, is_dense: bool) -> str:
        """The module that runs a norm again; nobody fuses what several matmuls read."""
        if not self.joins_norms:
            return "layernorm"
        if place == "attention":
            return "layernorm" if self.model.mla is not None else "its matmul"
        return "mlp" if is_dense else "layernorm"

    @property
    def stages(self) -> range:
        return range(self.plan.pp)

    def layers(self, stage: int) -> Iterator[bool]:
        """Yield whether each layer of a stage has a dense MLP among expert layers."""
        dense = self.model.first_dense_layers
        if self.plan.vpp > 1:
            # Of the first chunks, each as long as the longest, this stage has one.
            chunk = math.ceil(self.model.n_layers / self.plan.pp) // self.plan.vpp
            dense = sum(index // chunk == stage for index in range(dense))
        elif stage:
            dense = 0
        for index in range(self.plan.stages[stage].layers):
            yield index < dense

    def is_dense(self, is_leading: bool) -> bool:
        return is_leading or self.model.moe is None
