"""Diagnoses a run by its log: `meshwright.diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright import DEFAULT_PROFILE, catalog
from meshwright.api.arguments import checked
from meshwright.api.load import source_of
from meshwright.api.options import (
    OnProgress,
    StrPath,
    batch_of,
    launch_fields,
    quiet,
    read_profile,
    told_batch,
)
from meshwright.cost.profile import Profile
from meshwright.cost.whole_model import job_flops
from meshwright.deadline import Interrupt
from meshwright.diagnosis.diagnose import diagnosis
from meshwright.diagnosis.faults import Run
from meshwright.diagnosis.memory_event import micro_batch_of
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.explanations.decisions import with_pins
from meshwright.frameworks.base.switches import said_switches
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import decide
from meshwright.imports.logs.deaths import find_death
from meshwright.imports.logs.log_text import log_lines
from meshwright.imports.logs.run_log import ENGINES
from meshwright.imports.logs.training_log import TrainingLog, read_log
from meshwright.imports.read import join, read_launch
from meshwright.imports.text import read_text
from meshwright.loading.asked import Asked, ask
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import as_pins, read_plan, sizes_in
from meshwright.loading.sources import USER_FILES, Files, Source
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.plans.plan import Plan
from meshwright.reading.document import Document, Where
from meshwright.results.claims import seconds_text
from meshwright.results.diagnosis import Diagnosis
from meshwright.spec.model import WHOLE_MODEL
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from meshwright.surface import option, worded

PLAIN = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "offload": "none"}
"""Values of a launch that does not say them: frameworks do none of this unless told."""


@checked
def diagnose(
    log: StrPath | TrainingLog,
    *,
    launch: StrPath | None = None,
    spec: Source | Spec | None = None,
    plan: str | None = None,
    model: str | None = None,
    cluster: str | None = None,
    gpu: str | None = None,
    machine: str | None = None,
    count: int | None = None,
    framework: str | None = None,
    seq_len: int | str | None = None,
    batch: int | None = None,
    precision: str | None = None,
    lora: int | None = None,
    notes: list[str] | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> Diagnosis:
    """Return what slows a run down or stopped it, by its log, and what to change.

    Args:
        log: A file, or a log that was read. Its configuration is read too, where it
            has one.
        launch: What started the run, for what the log does not say.
        spec: The model, the cluster and the job, for what neither says.
        plan: Fields of the plan that ran and that nothing else says, as for
            `meshwright.explain`.
        model: A bundled model, as on the Hugging Face hub, or a config.json.
        cluster: A bundled machine or topology, or a file, as of `meshwright solve`.
        gpu: The GPU, where the file of the cluster does not say it.
        machine: The machine that the switches of such a file join.
        count: Machines; without, as many as have the GPUs that ran.
        framework: What trained.
        seq_len: Tokens per sequence, as a number or as '128k'.
        batch: Sequences per step.
        precision: As 'bf16'.
        lora: Rank of LoRA adapters.
        notes: Gets what is assumed, and what in the files has no effect.
        profile: Efficiencies, as for `meshwright.solve`.
        on_progress: Called with a line whenever something else is being done.
        interrupt: Ends the search for better plans once its `is_asked` is set.

    Raises:
        SpecError: a file cannot be read, files contradict each other, or the model or
            the cluster is in none of them; names what to give.

    Example:
        >>> import meshwright as mw
        >>> text = "CUDA out of memory. Tried to allocate 3.91 GiB"
        >>> from pathlib import Path
        >>> _ = Path("run.log").write_text(text)
        >>> told = mw.diagnose(
        ...     "run.log",
        ...     spec="llama3-8b-2xh100-nvlink",
        ...     plan="tp=1,pp=1,zero=3,micro_batch=1,recompute=none",
        ... )
        >>> told.out_of_memory.suspects[0].name
        'fp32 logits of one micro-batch'
    """
    read = log if isinstance(log, TrainingLog) else log_of_run(log)
    told = [] if notes is None else notes
    started = read.launch
    if launch is not None:
        started = joined(read.launch, read_launch(Path(launch)))
    said = Asked(
        model, cluster, gpu, machine, count, framework, seq_len, batch, precision, lora
    )
    options = Options(
        profile=read_profile(profile),
        on_progress=on_progress,
        interrupt=interrupt or Interrupt(),
    )
    return diagnose_run(read, started, said, options, told, spec=spec, plan=plan)


def diagnose_run(
    read: TrainingLog,
    started: Launch,
    said: Asked,
    options: Options,
    told: list[str],
    *,
    spec: Source | Spec | None = None,
    plan: str | None = None,
    files: Files = USER_FILES,
) -> Diagnosis:
    """Return what slows a run down or stopped it; see `diagnose`.

    Args:
        read: The log.
        started: What the log and the launch say of the run.
        said: What the user says of it.
        options: How plans are found and priced.
        told: Gets notes.
        spec: The question, where it is known.
        plan: Fields of the plan that nothing else says.
        files: The files that names may mean.

    Raises:
        SpecError: see `diagnose`.
    """
    asked = _with_gpus(said, started)
    if not started.framework and said.framework is not None:
        started = replace(started, framework=said.framework)
    assumed: list[str] = []
    if spec is None and not started.framework and started.usual:
        started = replace(started, framework=started.usual)
        assumed.append(
            f"assumed the framework {started.usual}; say {option('framework')}"
        )
    if spec is None:
        asked = _on_gpus_of(read, asked, assumed)
    with worded(**({} if asked is said else _words(started))):
        question = _question(read, started, spec, asked, assumed, files)
    decided = decide(started, sizes_in(question))
    pins = as_pins(started, decided)
    if plan is not None:
        given = read_plan(plan, question, told, files)
        pins = pins.model_copy(update=_set(given))
    told += [*read.notes, *started.notes()]
    whole = with_pins(question, pins.model_copy(update=_plain(pins)))
    applied = options.profile.applied_to(whole)
    options.on_progress("finding the plan that ran")
    brief = replace(options, is_brief=True)
    ran = asked_plan(applied, brief)
    is_open = {"micro_batch", "microbatches"}.isdisjoint(_set(pins))
    if is_open and (size := _by_size(applied, ran, read)):
        pins = pins.model_copy(
            update={"micro_batch": Pins(micro_batch=size).micro_batch}
        )
        assumed.append(BY_SIZE.format(size))
        ran = asked_plan(with_pins(applied, pins), brief)
    known = frozenset(said_switches(question) | _set(pins).keys())
    run = Run(applied.model_copy(update={"pins": Pins()}), ran, read, known)
    told += assumed
    doubts = [*assumed, *started.unjudged, *_left_open(question, pins)]
    doubts += _contradictions(read, question)
    return diagnosis(run, options, tuple(doubts))


NEARLY = 1.1
"""How many times the memory that PyTorch prints may be that of the same GPU."""

BY_SIZE = "micro-batch {}: logits of it have the size that could not be allocated"


def _by_size(spec: Spec, plan: Plan, log: TrainingLog) -> int | None:
    """Return the micro-batch that a message of memory tells, if it tells one."""
    event = log.out_of_memory
    return micro_batch_of(spec, plan, event) if event is not None else None


def log_of_run(log: StrPath) -> TrainingLog:
    """Return what the log of a run tells.

    Raises:
        SpecError: it is no log that is known; says of what the run died, if it says so.
    """
    path = Path(log)
    name, text = printable(str(path)), read_text(path)
    try:
        return read_log(text, name)
    except SpecError as error:
        if not (died := find_death(log_lines(text, name))):
            raise
        told = f"{name}: died: {died}; nothing else is known of the run"
        raise SpecError(told) from error


def joined(logged: Launch, given: Launch) -> Launch:
    """Return the configuration of a log with what the launch adds.

    Raises:
        SpecError: the two contradict each other.
    """
    if given.has_pairs:
        logged.count_pairs()
    if logged.values:
        join(logged, given)
        return logged
    return given


def _with_gpus(asked: Asked, launch: Launch) -> Asked:
    """Return the question with as many GPUs as ran, unless it says how many."""
    gpus = launch.value("gpus")
    if gpus is None or asked.count is not None or asked.gpus is not None:
        return asked
    return replace(asked, gpus=gpus)


def _words(launch: Launch) -> dict[str, str]:
    """Return the words for the number of GPUs where a launch says it: its line."""
    said = launch.setting("gpus")
    place = str(said.where) if said else printable(launch.name)
    return {"gpus": f"{place}: GPUs that ran:"}


def _on_gpus_of(log: TrainingLog, asked: Asked, notes: list[str]) -> Asked:
    """Return the question on the GPUs that a log names, where nothing else says any."""
    named = catalog.meant(catalog.GPUS, log.gpu)
    if not named or asked.cluster is not None or asked.gpu is not None:
        return asked
    cluster = option("cluster", "NAME")
    notes.append(f"the log ran on {named}; to say what joins them: {cluster}")
    return replace(asked, gpu=named)


def _question(
    log: TrainingLog,
    launch: Launch,
    spec: Source | Spec | None,
    asked: Asked,
    notes: list[str],
    files: Files,
) -> Spec:
    """Return the spec of a run: of the user, and else of its configuration.

    Raises:
        SpecError: the model or the cluster is nowhere.
    """
    if isinstance(spec, Spec) and asked.is_silent:
        return spec
    if spec is not None:
        asked_of = ask(source_of(spec), asked, notes, files)
        return load_spec(asked_of, None, notes, files=files)
    fields = launch_fields(launch)
    if asked.model is not None:
        fields.pop("model", None)
    elif named := launch.model_note():
        notes.append(named)
    per_rank = batch_of(launch, 1)
    training = fields.setdefault("training", {})
    is_open = asked.batch is None and "global_batch" not in training
    if is_open and per_rank:
        training["global_batch"] = per_rank
    _ask_for_missing(log, launch, fields, asked)
    document = Document(fields, {(): Where(launch.name or "log")})
    asked_of = ask(document, asked, notes, files)
    question = load_spec(asked_of, None, notes, files=files)
    if not (is_open and per_rank):
        return question
    batch = batch_of(launch, question.cluster.gpus)
    notes.append(told_batch(launch, batch))
    return question.having("training", global_batch=batch)


OPTIONS = {"training.seq_len": "seq_len", "training.global_batch": "batch"}
"""By field of a spec, the option that gives it."""


def _ask_for_missing(
    log: TrainingLog, launch: Launch, fields: Mapping[str, Any], asked: Asked
) -> None:
    """Refuse a question that lacks what no log tells, with the options that give it.

    Raises:
        SpecError: something is missing.
    """
    wanted = []
    model = fields.get("model", {})
    is_whole = isinstance(model, str) or all(name in model for name in WHOLE_MODEL)
    if asked.model is None and not is_whole:
        wanted.append(option("model", "NAME"))
    if asked.cluster is None and asked.gpu is None and "cluster" not in fields:
        found = f" ({log.gpu})" if log.gpu else ""
        gpu = option("gpu", "NAME")
        wanted.append(f"{option('cluster', 'NAME')}{found} or {gpu}")
    training = fields.get("training", {})
    has_adapters = asked.lora is not None or bool(training.get("lora"))
    if asked.framework is None and "framework" not in fields and not has_adapters:
        wanted.append(option("framework", "NAME"))
    for field, name in OPTIONS.items():
        if getattr(asked, name) is None and field.partition(".")[2] not in training:
            wanted.append(option(name, "N"))
    if wanted:
        name = printable(log.launch.name) or "log"
        is_alone = launch is log.launch
        more = f"what started it ({option('launch', 'FILE')}), or " if is_alone else ""
        told = f"does not say all of the run; add {more}{' '.join(wanted)}"
        if ENGINES.search(log.title):
            told += "; an engine is asked about by `inference` in a spec"
        raise SpecError(f"{name}: {told}")


ALIKE = 1.05
"""Factor within which two numbers of tokens are the same but for rounding."""


UNLIKE = 1.8
"""Factor between two rates that no way to count FLOPs explains: with what is computed
again it is 4 / 3, with all of causal attention less."""


def _contradictions(log: TrainingLog, spec: Spec) -> Iterator[str]:
    """Yield what the log says of the run that the spec does not."""
    gpu = spec.cluster.topology.gpu.name
    if (named := catalog.meant(catalog.GPUS, log.gpu)) not in (None, gpu):
        yield f"the log ran on {named}, and the cluster has {gpu}"
    event, has_gib = log.out_of_memory, spec.cluster.topology.gpu.memory_gib
    ran_gib = event.capacity_gib if event is not None else None
    if ran_gib and not 1 / NEARLY < ran_gib / has_gib < NEARLY:
        yield (
            f"the GPU that ran out of memory has {ran_gib:.1f} GiB, and {gpu} of the "
            f"cluster {has_gib:.1f}: is it another?"
        )
    rate, steps = log.tokens_per_s_per_gpu, log.steps
    if rate and steps:
        tokens = spec.training.global_batch * spec.training.seq_len
        counted = rate * steps.step_s * spec.cluster.gpus
        if not 1 / ALIKE < counted / tokens < ALIKE:
            yield (
                f"{counted:,.0f} tokens a step by the log's rate, and {tokens:,} by "
                "batch, sequence and GPUs: is one of them another?"
            )
    printed = log.tflops_per_gpu
    if printed and steps and spec.training.lora is None:
        made = job_flops(spec) / (spec.cluster.gpus * steps.step_s) / 1e12
        if not 1 / UNLIKE < printed / made < UNLIKE:
            yield (
                f"the log prints {printed:,.0f} TFLOP/s of a GPU, and {made:,.0f} "
                "follow from model, batch, sequence and GPUs: is one of them another?"
            )
    if steps and (least_s := _least_s(spec)) > steps.step_s:
        yield (
            f"a step of {seconds_text(steps.step_s)} is shorter than its operations "
            f"take at the peak of all GPUs, {seconds_text(least_s)}: batch, sequence, "
            "model or GPUs are others"
        )


def _least_s(spec: Spec) -> float:
    """Return the seconds of a step at the peak of all GPUs; 0 where they are unlike."""
    if spec.cluster.parts:
        return 0.0
    peak_flops = max(spec.at(name).peak_flops for name in spec.training.precisions)
    return job_flops(spec) / (spec.cluster.gpus * peak_flops)


def _set(pins: Pins) -> dict[str, Any]:
    """Return the pins that decide something."""
    return {name: value for name, value in pins if value is not None}


def _plain(pins: Pins) -> dict[str, Any]:
    """Return what is off in a launch that does not say it.

    Frameworks that shard do so over all ranks unless they are told otherwise.
    """
    known, plain = _set(pins), dict[str, Any](PLAIN)
    is_sharded = pins.zero is not None and not pins.zero.accepts(0)
    if is_sharded and not {"dp", "dp_replicate", "dp_shard"} & {*known}:
        plain["dp_replicate"] = 1
    values = Pins.model_validate(plain)
    return {name: getattr(values, name) for name in plain if name not in known}


ASKED = ("zero", "micro_batch", "recompute")
"""Fields of a plan that frameworks always have, and that nothing says."""


def _left_open(spec: Spec, pins: Pins) -> Iterator[str]:
    """Yield a sentence on each way in which fields of the plan are filled in."""
    known = _set(pins)
    is_alone = spec.cluster.gpus == 1
    off = [name for name in PLAIN if name not in known]
    if off and not is_alone:
        yield f"not said, so taken to be off: {', '.join(off)}; see {option('plan')}"
    names = [name for name in ASKED if name not in known]
    if "microbatches" in known and "micro_batch" in names:
        names.remove("micro_batch")
    if is_alone and "zero" in names:
        names.remove("zero")
    if names:
        plan = option("plan", ",".join(f"{name}=..." for name in names))
        yield f"not said, so taken from the best plan; to say it: {plan}"
