"""Bytes of state per parameter: weights, gradients, optimizer."""

from __future__ import annotations

from typing import NamedTuple

from tests.recomputed.case import Case


class State(NamedTuple):
    """Bytes per parameter before anything is sharded."""

    weights: float
    """In which they are kept."""
    cast: float
    """Of a copy of them that matmuls read, where they are kept in more."""
    gradients: float
    sums: float
    """Of fp32 sums beside the gradients, which no stage of ZeRO shards."""
    optimizer: float
    update: float
    """What an update makes for itself."""
    gathered: float
    """Of a weight on its way to a matmul."""
    reduced: float
    """Of a gradient on its way to the others."""
    is_trained: bool = True
    by_operations: float = 0.0
    """Of what an update on the GPU moves, as several kernels beyond one."""

    @property
    def updated(self) -> float:
        """What an update moves: it reads and writes state, and reads gradients."""
        if not self.is_trained:
            return 0.0
        return (self.optimizer + self.weights) * 2 + self.gradients


def moments(case: Case, of_matrix: bool) -> float:
    """What the optimizer keeps beside weights."""
    optimizer = case.training.optimizer
    if optimizer == "muon":
        # One momentum, and Adam's two of what is no matrix of a layer.
        return 4 if of_matrix else 4 + 4
    if optimizer == "adamw":
        low = case.training.moments == "bf16" or is_pure(case)
        return 2 + 2 if low else 4 + 4
    if optimizer == "adamw-8bit":
        # Two of a byte; blocks of 256 have one fp32 scale.
        return 2 * (1 + 4 / 256)
    if optimizer == "sgd":
        return 2 if case.training.moments == "bf16" or is_pure(case) else 4
    # Adafactor: an fp32 number per row and one per column of a square matrix.
    d = case.model.d_model
    return (4 * d + 4 * d) / (d * d)


def frozen_state(case: Case, is_layer: bool) -> State:
    """The weight; beside it zeros where FSDP has it in one tensor with adapters."""
    state, lora = _frozen_weight(case, is_layer), case.training.lora
    if lora is None or not is_layer or not lora.frozen_gradients:
        return state
    # As large as the tensor, and on its way as those of adapters are.
    return state._replace(gradients=state.weights, reduced=state_of(case).reduced)


def _frozen_weight(case: Case, is_layer: bool) -> State:
    """Nothing but the weight: 16 bits, 8, or as bitsandbytes packs those of layers."""
    lora, bits = case.training.lora, 16.0
    # FSDP casts what is kept in fp32 before it is gathered, as it does what is trained.
    cast = 2 if case.spec.framework in ("fsdp", "torchtitan") else 0
    if lora is not None and lora.upcast and not is_layer:
        return State(4, cast, 0, 0, 0, 0, 2, 0, False)
    if case.precision == "fp8" and case.training.fp8_weights == "primary" and is_layer:
        return State(1, 0, 0, 0, 0, 0, 1, 0, False)
    if lora is not None and is_layer and lora.weights == "int8":
        bits = 8
    if lora is not None and is_layer and lora.weights == "fp32":
        return State(4, cast, 0, 0, 0, 0, 2, 0, False)
    if lora is not None and is_layer and lora.weights == "nf4":
        # Dettmers et al. 2023, section 3: 0.127 bits of doubly quantised scales.
        bits = 4 + 8 / 64 + 32 / (64 * 256)
    if lora is not None and is_layer and lora.weights == "gptq":
        # A scale of 16 bits and a zero of 4 for every 128.
        bits = 4 + 20 / 128
    return State(bits / 8, 0, 0, 0, 0, 0, bits / 8, 0, False)


def is_pure(case: Case) -> bool:
    """Weights, gradients and moments are all in bf16."""
    return case.training.master_weights == "none"


def state_of(case: Case, of_matrix: bool = False) -> State:
    """With the roots of second moments that PyTorch's update makes tensor by tensor."""
    state = _state_of(case, of_matrix)
    if not case.training.foreach:
        return state
    two = moments(case, of_matrix)
    # What is trained is decayed and moved, apart: 4 times; gradients are read twice.
    # First moments are moved 3 times, second ones 2 + 2 + 1, their roots 1 + 2 + 2 + 1.
    trained = state.optimizer - two if state.optimizer > two else state.weights
    passes = 4 * trained + 2 * state.gradients + (3 + 5 + 6) * two / 2
    more = passes - (2 * trained + state.gradients + 2 * two)
    return state._replace(update=state.update + two / 2, by_operations=more)


def _state_of(case: Case, of_matrix: bool) -> State:
    """Rajbhandari et al. 2019, section 3.1, as each framework has it."""
    kept, framework = moments(case, of_matrix), case.spec.framework
    if case.precision in ("tf32", "fp32"):
        return State(4, 0, 4, 0, kept, 0, 4, 4)
    asked = case.training.gradients
    if is_pure(case):
        # Nothing beside what the matmuls read; sums leave as the framework reduces.
        usual = "fp32" if framework in ("fsdp", "torchtitan") else "bf16"
        reduced = 4 if (asked or usual) == "fp32" else 2
        if case.precision == "fp8" and case.training.fp8_weights == "primary":
            # Matmuls read fp8; what the update reads and writes is in 16 bits.
            return State(1, 0, 2, 0, 2 + kept, 0, 1, reduced)
        return State(2, 0, 2, 0, kept, 0, 2, reduced)
    # Beside bf16 weights, what they lack of fp32 ones makes do for these.
    master = 2 if case.training.master_weights == "remainders" else 4
    if framework == "megatron":
        # fp32 main gradients stand for gradients; NeMo has them in bf16.
        # fp16 has them in 16 bits unless asked.
        usual = "bf16" if case.precision == "fp16" else "fp32"
        main = 2 if (asked or usual) == "bf16" else 4
        return State(2, 0, main, 0, master + kept, 0, 2, main)
    if framework == "deepspeed":
        usual = "bf16" if case.precision == "fp16" else "fp32"
        has_sums = (asked or usual) == "fp32" and case.plan.zero <= 1
        # Without sums the update flattens gradients (2) and casts them (4).
        sums, update = (4, 0) if has_sums else (0, 6)
        return State(2, 0, 2, sums, 4 + kept, update, 2, 2)
    if framework == "internevo":
        # Gradients in fp32 (4), and what is divided is as large as the moments.
        return State(2, 0, 2, 0, 4 + kept, 4 + kept, 2, 2)
    if framework in ("generic", "ideal"):
        # 2 + 2 + 12 with Adam, as in section 3.1; sums in fp32 where they are asked.
        gradients = 4 if asked == "fp32" else 2
        return State(2, 0, gradients, 0, master + kept, 0, 2, gradients)
    reduced = 2 if asked == "bf16" else 4
    return State(4, 2, 4, 0, kept, 0, 2, reduced)


class Held(NamedTuple):
    """Bytes per parameter on one rank, GPU and host together."""

    weights: float
    gradients: float
    optimizer: float


def sharded(case: Case, state: State, shards: int, zero: int) -> Held:
    """Stage 1 shards the optimizer, 2 gradients too, 3 weights too (figure 1 there)."""
    return Held(
        weights=state.weights / (shards if zero == 3 else 1),
        gradients=state.gradients / (shards if zero >= 2 else 1) + state.sums,
        optimizer=(state.optimizer + state.update) / (shards if zero >= 1 else 1),
    )
