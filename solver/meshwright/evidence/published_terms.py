"""Translates what publications say of a training run into fields of spec and plan.

The words that publications use are in `published.yaml`. Where a publication is silent,
a usual value is assumed and noted (`Assumptions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.cost.profile import RunClass, class_on
from meshwright.evidence.runs import Run, RunConfig
from meshwright.frameworks.base.framework import ALL_FUSED
from meshwright.frameworks.base.registry import GENERIC, framework_published_as
from meshwright.frameworks.base.registry import framework as framework_named
from meshwright.frameworks.base.registry import framework_of as spec_framework
from meshwright.frameworks.base.switches import SWITCHES
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.plan_fields import MODULES
from meshwright.spec.spec import Spec
from meshwright.spec.training import LIGER_FUSED, Overlap

T = TypeVar("T")
Part = TypeVar("Part", bound=BaseModel)


class Unpriced(Exception):
    """Raised when a run cannot be priced; the message is shown with the run."""


@dataclass
class Assumptions:
    """Fields that a publication leaves out, with the values assumed."""

    fields: dict[str, object] = field(default_factory=dict)

    def value(self, name: str, value: T) -> T:
        """Note the value assumed for a field, and return it."""
        self.fields[name] = value
        return value


def checked(schema: type[Part], field: str, data: object) -> Part:
    """Return a validated part of a spec, the one in `field`.

    Raises:
        Unpriced: the part is invalid; names the first thing that is wrong.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(filter(None, (field, *map(str, first["loc"]))))
        told = first["msg"].removeprefix("Value error, ")
        raise Unpriced(f"{path}: {told}") from None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


FRAMEWORK_FIELD = "config.framework"
"""The field that is noted as assumed where no framework is like a code base."""


def class_on_gpu(run: Run, gpu: str, framework: str) -> RunClass:
    """Return the class of a run on a GPU, given the framework that it is priced as.

    XLA generates other kernels and runs another host program.
    """
    return RunClass(gpu, "xla", "xla") if is_xla(run) else class_on(gpu, framework)


def is_xla(run: Run) -> bool:
    """Return whether XLA compiled the whole program of a run."""
    return is_of(run.config, VOCABULARY.frameworks.xla)


def named_in(text: str, words: Mapping[str, Iterable[str]]) -> str | None:
    """Return the first meaning of which a text has a word, None without one."""
    lower = text.lower()
    for meaning, spelled in words.items():
        if any(word in lower for word in spelled):
            return meaning
    return None


def is_of(config: RunConfig, words: Iterable[str]) -> bool:
    """Return whether the name of the code base has one of some words."""
    name = config.framework.lower()
    return any(word in name for word in words)


class Recompute(NamedTuple):
    """A recompute mode, applied to one layer in every `every`."""

    mode: str
    every: int = 1
    modules: str = ""
    """Modules of selective recomputation, as plans write them; empty for the usual."""
    most: int | None = None
    """Most layers of a chunk that are recomputed, its first ones; None for all."""

    def layers(self, count: int, chunks: int = 1) -> int:
        """Return how many layers of a stage with some chunks are recomputed."""
        if self.mode == "none":
            return 0
        every = -(-count // self.every)
        return every if self.most is None else min(self.most * chunks, every)

    def __str__(self) -> str:
        """Return the mode in words."""
        return self.mode if self.every == 1 else f"{self.mode}, 1 in {self.every}"


NONE, SELECTIVE, FULL = Recompute("none"), Recompute("selective"), Recompute("full")

LADDER = (NONE, SELECTIVE, *(Recompute("full", every) for every in (8, 4, 2, 1)))
"""Recomputation from least to most. Megatron-LM recomputes any number of layers of a
stage (`--recompute-num-layers`)."""


class Frameworks(_Part):
    """Words in the names of code bases, lower case."""

    xla: tuple[str, ...]
    bf16_gradients: tuple[str, ...]
    hides_gradients: tuple[str, ...]
    primary_fp8_weights: tuple[str, ...]
    reduces_last: tuple[str, ...]
    has_first_fsdp: tuple[str, ...]
    flattens_adapters: tuple[str, ...]
    splits_experts: tuple[str, ...]
    reentrant: tuple[str, ...]
    expands: tuple[str, ...]
    casts_logits: tuple[str, ...]
    leaves_logits: tuple[str, ...]
    without_autocast: tuple[str, ...]
    casts_adapters: tuple[str, ...]
    updates_by_tensor: tuple[str, ...]
    all_fused: tuple[str, ...]
    quantises_itself: tuple[str, ...]
    pins_bitsandbytes: tuple[str, ...]
    holds_logits: tuple[str, ...]
    chunks_loss: tuple[str, ...]
    takes_flex: tuple[str, ...]
    repeats_compiled: tuple[str, ...]


class Since(_Part):
    """Dates, as the start of `YYYY-MM-DD`, from which usual code differs."""

    flash_2: str
    flex: str
    cudnn_first: str
    chunked_loss: str
    compiled_loss: str
    keeps_compiled: str
    logits_apart: str
    logits_once: str
    fused_update: str
    fused_norm: str
    frees_inputs: str
    pinned_frees_inputs: str
    fp32_adapters: str
    cuda_graphs: str
    distributed_optimizer: str
    no_gpt: str


class Machine(_Part):
    """The reference machine of a GPU, for fields that a publication leaves out."""

    link: str
    gb_s: float
    """Bandwidth of the uplink of one GPU inside the machine, per direction."""
    network_gbit_s: float | None = None
    """Network of one GPU in the machine of its vendor; None where there is none."""
    host_gb_s: float
    """Rated bandwidth of a host's memory, over its GPUs."""


class Hardware(_Part):
    """Machines by the start of the name of their GPU, and their networks."""

    latency_us: dict[str, float]
    adapter_gbit_s: dict[str, float]
    network_shares: dict[str, float]
    machines: dict[str, Machine]


class Vocabulary(_Part):
    """Words of publications, with what they mean; the schema of `published.yaml`."""

    frameworks: Frameworks
    vendors: tuple[str, ...]
    precisions: dict[str, tuple[str, ...]]
    peaks: dict[str, float]
    pure: tuple[str, ...]
    frozen_weights: dict[str, tuple[str, ...]]
    lora_targets: dict[str, tuple[str, ...]]
    optimizers: dict[str, tuple[str, ...]]
    schedules: dict[str, str]
    offloads: dict[str, tuple[str, ...]]
    activations: tuple[str, ...]
    context_exchanges: dict[str, str]
    recompute: dict[str, Recompute]
    modules: dict[str, str]
    cheap_modules: tuple[str, ...]
    attention: dict[str, tuple[str, ...]]
    overlap: dict[str, str]
    since: Since
    hardware: Hardware


VOCABULARY = Vocabulary.model_validate(
    read_yaml(Path(__file__).with_name("published.yaml")).data
)

_LAYERS = re.compile(r"\b(\d{1,3})( of \d{1,3})? layers?\b")
"""Recomputed layers of each chunk, or of so many in all."""

_CHUNKS = re.compile(r"interleaved-vpp([1-9]\d{0,3})")

_LAYOUT = ("dp", "tp", "pp")

_EXPERTS = ("n_experts", "top_k", "expert_d_ff")

_HARDWARE = ("gpu", "n_gpus")

SHAPE = ("n_layers", "d_model", "n_heads", "vocab", "seq_len")
"""Fields of a model without which no run is priced."""


def refuse(run: Run) -> None:
    """Refuse a run that lacks a field or uses what the cost model does not know.

    Raises:
        Unpriced: names the field.
    """
    config = run.config
    missing = [f"model.{name}" for name in SHAPE if getattr(run.model, name) is None]
    missing += [
        f"model.moe.{name}"
        for name in _EXPERTS
        if run.model.moe and not getattr(run.model.moe, name)
    ]
    missing += [f"hardware.{n}" for n in _HARDWARE if not getattr(run.hardware, n)]
    missing += [f"config.{name}" for name in _LAYOUT if getattr(config, name) is None]
    for name in missing:
        raise Unpriced(f"{name}: not published")


def framework_of(run: Run, assumed: Assumptions) -> str:
    """Return the framework whose rules and memory are nearest to those of a run.

    A code base that is like none of them is taken for generic, which is noted.
    """
    found = framework_published_as(run.config.framework)
    return found or assumed.value(FRAMEWORK_FIELD, GENERIC)


def dispatch_of(run: Run, assumed: Assumptions) -> str:
    """Return how tokens get to their experts.

    The recipes of Megatron-Bridge for DeepSeek, Kimi and GPT-OSS set
    moe_flex_dispatcher_backend to deepep or hybridep, those for Qwen3 do not on the
    GPUs whose experts cross the network (perf_recipes). Megatron-LM and NeMo send
    every copy separately.
    """
    if run.config.expert_dispatch is not None:
        return run.config.expert_dispatch
    is_bridge = "megatron-bridge" in run.config.framework.lower()
    is_qwen = run.model.name.lower().startswith("qwen")
    if run.model.moe is None or not is_bridge or is_qwen:
        return "alltoall"
    return assumed.value("training.expert_dispatch", "deepep")


def expert_parts(run: Run) -> int:
    """Return the GPUs of a tensor-parallel group that split each expert.

    Megatron Core splits experts as it splits all else unless told
    (`expert_tensor_parallel_size`); recipes of Megatron-Bridge have whole ones.
    """
    config, moe = run.config, run.model.moe
    if moe is None or config.tp is None:
        return 1
    if config.etp is not None:
        return config.etp
    splits = is_of(config, VOCABULARY.frameworks.splits_experts)
    room = run.hardware.n_gpus // (config.pp or 1)
    has_room = room % ((config.ep or 1) * config.tp) == 0
    return config.tp if splits and has_room and not moe.expert_d_ff % config.tp else 1


def tuned_of(run: Run, assumed: Assumptions) -> str:
    """Return who tuned a run: the vendor of its GPUs, or a user.

    Where it is not said, code and recipes of GPU vendors are taken for theirs.
    """
    if run.config.tuned is not None:
        return run.config.tuned
    told = f"{run.source} {run.source_id} {run.config.framework}".lower()
    is_vendor = not {*VOCABULARY.vendors}.isdisjoint(re.split(r"[^a-z0-9]+", told))
    return assumed.value("config.tuned", "vendor" if is_vendor else "user")


def expert_imbalance_of(run: Run, tuned: object) -> float | None:
    """Return the imbalance of experts, None if usual.

    Vendors force balance in their benchmarks (Megatron-Bridge v0.6.0
    docs/performance-summary-archive.md).
    """
    if run.config.expert_imbalance is not None:
        return run.config.expert_imbalance
    return 1.0 if run.model.moe is not None and tuned == "vendor" else None


def context_exchange_of(config: RunConfig) -> str | None:
    """Return how context parallelism communicated, None if as usual.

    Raises:
        Unpriced: the published exchange is not modelled.
    """
    published = config.cp_comm_type
    if published is None:
        return None
    if published not in VOCABULARY.context_exchanges:
        raise Unpriced(f"config.cp_comm_type: {published} is not modelled")
    return VOCABULARY.context_exchanges[published]


def schedule_of(config: RunConfig) -> tuple[str, int | None]:
    """Return the pipeline schedule, and its chunks per stage where published.

    Raises:
        Unpriced: the schedule is not modelled.
    """
    published = (config.schedule or "1f1b").lower()
    if found := _CHUNKS.fullmatch(published):
        return "1f1b", int(found[1])
    plain = re.sub(r"[\s_-]", "", published)
    if plain not in VOCABULARY.schedules:
        raise Unpriced(f"config.schedule: {config.schedule} is not modelled")
    return VOCABULARY.schedules[plain], config.vp


def modules_of(spec: Spec, recompute: Recompute) -> str:
    """Return the modules that a run recomputed, as plans write them.

    Megatron-LM's selective recomputation was that of the core of attention alone, and
    is so by default: with plain attention it frees the scores (Korthikanti et al. 2022,
    section 5). With a flash kernel it frees nothing, so that a later run is taken to
    have named what does: norms and activation functions.
    """
    selective = spec_framework(spec).selective
    if recompute.modules:
        return recompute.modules
    has_modules = selective is not None and selective.modules > 0
    is_core = recompute.mode == "selective" and spec.training.attention == "plain"
    return "core_attn" if has_modules and is_core else ""


def recompute_of(run: Run) -> tuple[Recompute, ...]:
    """Return what a run may have recomputed, least first; one entry where published.

    Raises:
        Unpriced: the published recomputation is not modelled.
    """
    published = run.config.recompute
    if published is None:
        # A scan over layers keeps little more than each layer's input by default.
        return (FULL,) if is_xla(run) else LADDER
    text = published.strip().lower()
    if found := _LAYERS.search(text):
        first, *_ = text.split()
        known = VOCABULARY.recompute.get(first.strip(",:("), FULL)
        chunks = (run.config.pp or 1) * (run.config.vp or 1) if found[2] else 1
        return (known._replace(most=-(-int(found[1]) // chunks)),)
    found_mode = VOCABULARY.recompute.get(text) or _selective(text)
    if found_mode is None:
        raise Unpriced(f"config.recompute: {published} is not modelled")
    is_selective = found_mode.mode == "selective"
    return (FULL if is_selective and _repeats_compiled(run) else found_mode,)


def _repeats_compiled(run: Run) -> bool:
    """Return whether selective recomputation repeated whole layers with experts."""
    is_old = run.era < VOCABULARY.since.keeps_compiled
    is_such = is_of(run.config, VOCABULARY.frameworks.repeats_compiled)
    return is_old and is_such and run.model.moe is not None and is_compiled(run)


def _selective(text: str) -> Recompute | None:
    """Return selective recomputation of the modules that a text lists, if of any."""
    listed = re.sub(r"^selective|^modules?|[:()\[\]]", " ", text)
    names = [name for name in re.split(r"[\s,+/&]+", listed) if name]
    if not {*VOCABULARY.cheap_modules}.isdisjoint(names):
        return SELECTIVE
    known = [VOCABULARY.modules.get(name, name) for name in names]
    if not known or not {*known} <= {*MODULES}:
        return None
    return Recompute("selective", modules="+".join(n for n in MODULES if n in known))


def attention_of(run: Run, assumed: Assumptions) -> str:
    """Return the attention of a run: plain before fused kernels were common."""
    said = run.config.attention
    if said is not None:
        lower = said.lower()
        found = named_in(lower, VOCABULARY.attention) or "plain"
        return _flash(run) if found == "flash" else found
    code = run.config.framework.lower()
    is_usual = run.era >= "2023" and "megatron-deepspeed" not in code
    is_fused = "flash" in code or is_usual
    found = _flash(run) if is_fused else "plain"
    return assumed.value("config.attention", found)


def _flash(run: Run) -> str:
    """Return the fused kernel of a run's era; code bases of XLA call cuDNN's."""
    since = VOCABULARY.since
    if run.era < since.flash_2:
        return "flash1"
    if run.era < since.flex and is_of(run.config, VOCABULARY.frameworks.takes_flex):
        return "flash2" if run.era < since.cudnn_first else "cudnn"
    return "cudnn" if is_xla(run) else "flash"


def is_compiled(run: Run) -> bool:
    """Return whether a compiler fused the kernels of a run: torch.compile or XLA."""
    if run.config.compile is not None:
        return run.config.compile
    return is_xla(run) or is_of(run.config, ["torch.compile"])


def fused_of(run: Run, framework: str) -> list[str] | None:
    """Return what a run had fused, None if what its framework has.

    LLM Foundry has flash-attention's cross-entropy beside what FSDP has, Liger-Kernel
    all but dropout and softmax.
    """
    if run.config.fused is not None:
        return list(run.config.fused)
    like = framework_named(framework)
    usual = like.fused
    if is_of(run.config, ["transformer engine"]):
        return sorted(usual | ENGINE_FUSED)
    if is_of(run.config, VOCABULARY.frameworks.all_fused):
        return sorted(ALL_FUSED)
    if has_liger(run):
        return sorted({*usual, *LIGER_FUSED})
    fused = usual | ({"loss"} if "foundry" in run.config.framework.lower() else set())
    is_plain = like.has_plain_norm and not is_compiled(run)
    if is_plain and run.era < VOCABULARY.since.fused_norm:
        fused -= {"norm"}
    return None if fused == usual else sorted(fused)


ENGINE_FUSED = frozenset({"norm", "activation", "rope"})
"""What modules of Transformer Engine have as kernels (2.11, pytorch/module/
layernorm_mlp.py, pytorch/attention/rope.py)."""


def has_liger(run: Run) -> bool:
    """Return whether Liger-Kernel stands for the layers and the loss of a run."""
    return run.config.fused is None and is_of(run.config, ["liger"])


def cuda_graphs_of(run: Run) -> bool | str | None:
    """Return whether graphs replayed a run: not before any framework had them."""
    if run.config.cuda_graphs is not None:
        return run.config.cuda_graphs
    return None if run.era >= VOCABULARY.since.cuda_graphs else False


def expands_segments(run: Run) -> bool:
    """Return whether the allocator of a run leaves no holes; PyTorch's must be told."""
    said = run.config.expandable_segments
    return is_of(run.config, VOCABULARY.frameworks.expands) if said is None else said


def overlap_of(run: Run, framework: str, assumed: Assumptions) -> dict[str, bool]:
    """Return which traffic a run hid behind compute.

    Megatron-LM and DeepSpeed hide nothing unless told, but for DeepSpeed's ZeRO-3
    (zero/config.py: `overlap_comm_valid`) and the sends of interleaved stages since
    2023. Other code bases do as their framework.
    """
    if run.config.overlap is not None:
        text = run.config.overlap.lower()
        said = {kind for word, kind in VOCABULARY.overlap.items() if word in text}
        return {kind: kind in said for kind in Overlap.model_fields}
    code = run.config.framework.lower()
    like = framework_named(framework)
    if not like.asks_overlap:
        return {}
    if is_of(run.config, VOCABULARY.frameworks.hides_gradients):
        on = {"gradients", "parameters", "pp"}
    elif "zero-3" in code or run.config.zero_stage == 3:
        on = {"gradients", "parameters"}
    else:
        on = {"pp"} & like.overlap if run.era >= "2023" else set()
    text = ", ".join(sorted(on)) or "none"
    assumed.value("config.overlap", text)
    return {kind: kind in on for kind in Overlap.model_fields}


_SAID_AS = {"context_exchange": "cp_comm_type"}
"""By the field of `training`, the field of a run that says it under another name."""


def said_by(run: Run) -> frozenset[str]:
    """Return the names of the switches that a run says itself."""
    said = (
        switch.name
        for switch in SWITCHES
        if getattr(run.config, _SAID_AS.get(switch.field, switch.field)) is not None
    )
    return frozenset(said)
