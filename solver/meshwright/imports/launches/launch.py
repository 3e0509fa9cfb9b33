"""A launch: the values that a configuration sets in a plan, a job and a model.

Fields have the names of specs: those of plans (`tp`, `zero`), `training.seq_len`,
`model.n_layers`. A few other fields need the sizes of the model or the cluster to
become fields of a plan; see `plan.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright import catalog
from meshwright.escape import printable
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    canonical,
    fields,
    how_and_names,
    words_of,
)
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.document import Document

CHOICES = ("precision", "offload")
"""Fields of which a list has the values that one option leaves."""

PRIMUS_MODEL = "primus.model"
"""The setting that has the name of the model's file in Primus's YAML."""

ALL = ("all", "all-linear")
"""All matrices of layers, as targets of adapters."""

ENDS: Mapping[str, str] = OPTIONS["adapters"]["ends"]
"""Which end of a model has a name."""

APART = (*OPTIONS["apart"].split(),)
"""Beginnings of options of what runs beside the update."""

UPDATE_ALONE = (
    "of generation, or of reference, reward and value models, which are not modelled "
    "(an engine alone: `inference` in a spec; memory kept free: limits.reserved_gib)"
)

WITHOUT_EFFECT = "data, rates, logs and checkpoints, without effect on plan or price"

MOST_NAMED = 12
"""Most harmless options that a note lists by name unless asked for all."""


FURTHER = "model.mtp_layers"
"""The field of layers that predict further tokens, which no bundled model has."""


@dataclass(frozen=True)
class FieldValue:
    """A value of a field, and the option that sets it."""

    value: Any
    setting: Setting | None = None
    """None where the value is what the framework does without an option."""


@dataclass
class Launch:
    """The values that a configuration sets, and its options that set none."""

    kind: str
    """The kind of its file, as `meshwright import` names it."""
    title: str
    framework: str
    """The framework whose plan it is, by the name that specs give it."""
    name: str
    """The name of its file."""
    values: dict[str, FieldValue] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    """Sentences on known options that change nothing here."""
    unjudged: list[str] = field(default_factory=list)
    """Sentences on options that change time or memory, but not our model of them."""
    unset: list[str] = field(default_factory=list)
    """Sentences on options whose value is not in the file."""
    ignored: list[str] = field(default_factory=list)
    """Names of options known to change neither the plan nor its price."""
    apart: list[str] = field(default_factory=list)
    """Names of options of what runs beside the update, which alone is modelled."""
    unknown: list[str] = field(default_factory=list)
    """Names of options that are not known, and may matter, with their lines."""
    files: list[Setting] = field(default_factory=list)
    """Settings that name other files, with the rest of the configuration."""
    unsharded: dict[str, Any] = field(default_factory=dict)
    """Values that fields have if none of its files shards anything."""
    trained_ends: Setting | None = None
    """What trains embedding and head whole beside adapters."""
    written: dict[str, str] = field(default_factory=dict)
    """By name, the files that a script writes; blank lines before a text keep its line
    numbers."""
    function: str | None = None
    """The function of a file of Python that is meant, where it was said."""
    programs: list[Setting] = field(default_factory=list)
    """Programs in Python that a script starts, read if they call a known trainer."""
    has_pairs: bool = False
    """Whether batches count pairs of answers, each of two sequences."""
    overrides: Sequence[Setting] = ()
    """Options of a command that count in the place of those in the file it names."""
    usual: str = ""
    """The framework that the program most often runs, where no file says one."""
    auto: list[str] = field(default_factory=list)
    """Notes on values that are left to the program which reads the file."""
    fills_auto: bool = False
    """Whether it is that program, and fills in those of other files."""

    def set(self, name: str, value: Any, setting: Setting | None = None) -> None:
        """Keep the value of a field."""
        before = self.values.get(name)
        if before is None or (before.setting is None and setting is not None):
            self.values[name] = FieldValue(value, setting)
        elif setting is not None and before.value != value:
            both = _among(before.value, value) if name in CHOICES else None
            if both is None:
                other = before.setting
                assert other is not None
                setting.refuse(
                    f"contradicts {other} ({other.where}); accepted: one of them"
                )
            self.values[name] = FieldValue(both, setting)

    def keep_inputs_on_host(
        self, setting: Setting, *, moves_all: bool = False, waits: bool = False
    ) -> None:
        """Let the inputs of recomputed layers wait in host memory, as an option says.

        Another option, or another file, says which layers are recomputed.

        Args:
            setting: The option.
            moves_all: Whether it moves all that a layer saves which is not recomputed.
            waits: Whether its copies run between kernels, so that compute waits.
        """
        is_fsdp = (self.framework or self.usual) == "fsdp"
        if self.value("recompute") != "none":
            self.values["recompute"] = FieldValue("full-cpu", setting)
            if is_fsdp and not waits:
                self.is_not_judged(setting, "its copies are priced between kernels")
            waits = waits and not is_fsdp
        elif not moves_all:
            self.changes_nothing(setting, "no layer is recomputed")
            return
        elif (layers := self.size_of_model("n_layers")) is None or not is_fsdp:
            self.is_not_judged(setting, "what layers save is priced on the GPU")
            return
        else:  # The layer at work has its own on the GPU.
            self.set("training.offload_activations", layers - 1, setting)
        if waits:
            self.is_not_judged(setting, "its copies are priced as made beside compute")

    def put(
        self, name: str, found: tuple[Any, Setting] | None, otherwise: Any = None
    ) -> None:
        """Keep the value that an option has, or else that of the framework, if any."""
        if found is not None:
            self.set(name, *found)
        elif otherwise is not None:
            self.set(name, otherwise)

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Keep a program's defaults for the fields that no option sets."""
        for name, value in defaults.items():
            self.set(name, value)

    def has_one_value(self, program: str) -> None:
        """Keep the fields of plans of which a program has one value."""
        self.assume(OPTIONS["one_value"][program])

    def read(
        self, settings: Settings, rows: Mapping[str, Any], *, is_whole: bool = False
    ) -> None:
        """Keep the values that rows of `options.yaml` read, by field.

        Args:
            settings: The options of the program.
            rows: A row for each field, or several.
            is_whole: Whether an option that is not given has the program's default.
        """
        for name, told in rows.items():
            for row in told if isinstance(told, list) else [told]:
                found = self._read_row(settings, row)
                names = how_and_names(row)[1]
                is_open = any(one.name in names for one in settings.open)
                usual = row.get("default") if is_whole and not is_open else None
                self.put(name, found, usual)

    def _read_row(
        self, settings: Settings, row: Mapping[str, Any]
    ) -> tuple[Any, Setting] | None:
        """Return what a row reads; note a word without a price, or an idle option."""
        how, names = how_and_names(row)
        if how == "word" and (why := row.get("otherwise")) is not None:
            setting = settings.get(*names)
            known = {word.lower() for word in row["words"]}
            if setting is not None and str(setting.value).lower() not in known:
                if why and setting.value is not None:
                    self.is_not_judged(setting, why)
                return None
        found = settings.read(row)
        if found and found[0] and "idle" in row:
            field, value, why = row["idle"]
            if self.value(field) == value:
                self.changes_nothing(found[1], why)
                return None
        return found

    def read_shards(self, settings: Settings, name: str) -> None:
        """Keep the ranks that share a state: a number, or all that are left."""
        shards = settings.count(name, least=-1)
        if shards and shards[0] > 0:
            self.set("dp_shard", *shards)
        else:
            self.set("dp_shard_rest", True, shards and shards[1])

    def note_unpriced(self, settings: Settings, program: Mapping[str, Any]) -> None:
        """Note options that our model does not know, unless they are off or plain."""
        plain = {"", "none", "false", *program.get("plain", ())}
        for name, told in program["unpriced"].items():
            why, *idle = told if isinstance(told, list) else [told]
            if settings.is_auto(name):
                settings.skip(name)
                continue
            setting = settings.get(name)
            if setting is not None and (
                setting.is_bare or _plain_word(setting.value) not in (*plain, *idle)
            ):
                self.is_not_judged(setting, why)

    def settle_ends(self) -> None:
        """Keep how copies of embedding and head are trained beside adapters.

        What shards them casts them to fp32; else they stay as they were loaded.
        """
        if self.trained_ends is not None:
            kept = "mixed" if self.framework else "bf16"
            self.set("training.lora.ends", kept, self.trained_ends)

    def settle_pairs(self) -> None:
        """Decide what training on pairs of answers has, once all files are read.

        A batch counts pairs, and both answers are sequences of it. The program, which
        one file names, may compare them with a frozen model, which another file may
        say how to load.
        """
        if not self.has_pairs:
            return
        self.count_pairs()
        if self.setting("training.loss_chunks") is None:
            # Only the loss of the next token comes in parts by itself.
            self.values.pop("training.loss_chunks", None)
        kept = self.value("reference_format")
        if self.value("compares") and kept is not None:
            self.set("training.reference_model", kept, self.setting("compares"))

    def count_pairs(self) -> None:
        """Count two sequences for every pair of answers that a batch counts."""
        for name in ("micro_batch", "training.global_batch"):
            if setting := self.setting(name):
                self.values[name] = FieldValue(2 * self.value(name), setting)
                told = f"pairs of sequences, so {self.value(name)} are priced"
                where = f"{setting.where}: {printable(str(setting))}"
                self.unjudged.append(f"{where}: {told}")

    def value(self, name: str) -> Any:
        """Return the value of a field, None where no option sets it."""
        found = self.values.get(name)
        return None if found is None else found.value

    def setting(self, name: str) -> Setting | None:
        """Return the option that sets a field."""
        found = self.values.get(name)
        return None if found is None else found.setting

    def read_name(self, settings: Settings, *names: str) -> None:
        """Keep the name that the first of some settings gives the model."""
        named = settings.get(*names)
        if named is not None and isinstance(named.value, str) and named.value:
            self.set("model", named.value, named)

    def read_adapters(
        self, settings: Settings, names: Mapping[str, Any], *, are_there: bool = False
    ) -> None:
        """Keep adapters of low rank, if there are any.

        Args:
            settings: The options of the program.
            names: Its row of `adapters` in options.yaml.
            are_there: Whether there are adapters also where no rank is given.
        """
        rank, usual = settings.read(names["rank"]), names.get("usual_rank")
        if not (rank[0] if rank else usual or are_there):
            return
        self.put("training.lora.rank", rank, usual)
        targets = settings.get(*names.get("targets", ()))
        words = words_of(targets) if targets and targets.value is not None else []
        if targets and words and not any("*" in one or one in ALL for one in words):
            matrices = OPTIONS["adapters"]["matrices"] | names.get("matrices", {})
            short = [one.rpartition(".")[2] for one in words]  # self_attn.q_proj
            if ends := [one for one in short if one in ENDS]:
                self._adapt_ends(targets, ends)
            layers = [one for one in short if one not in ENDS]
            found = [name for one in layers for name in matrices.get(one, [one])]
            found = [*dict.fromkeys(found)]
            self.set("training.lora.targets", found, targets)
        usual = names.get("usual_dropout", 0.0)
        share, dropout = settings.number(*names.get("dropout", ())) or (usual, None)
        if share > 0 or dropout is not None:
            self.set("training.lora.dropout", share > 0, dropout)

    def _adapt_ends(self, targets: Setting, ends: list[str]) -> None:
        """Keep what targets of adapters do to the ends: Unsloth trains them whole."""
        if self.title == "Unsloth":
            self.train_whole(targets, ends)
        else:
            told = "adapters beside embedding or head are not priced"
            self.is_not_judged(targets, told)

    def train_whole(self, setting: Setting, names: Iterable[str]) -> None:
        """Keep that modules are trained whole beside adapters: both ends, or none."""
        if {ENDS.get(name.rpartition(".")[2]) for name in names} == {"in", "out"}:
            self.trained_ends = setting
        else:
            told = "modules that are trained whole, each with gradients and Adam, are "
            told += "not priced, but embedding and head together"
            self.is_not_judged(setting, told)

    def read_primus_model(self, settings: Settings) -> None:
        """Keep the model after whose file Primus names it, without its precision."""
        if (file := settings.get(PRIMUS_MODEL)) is not None:
            name = str(file.value).removesuffix(".yaml").removesuffix("-fp8")
            self.set("model", name.replace("_", "-"), file)

    def read_primus(self, document: Document) -> list[Setting]:
        """Return the overrides of a trainer of Primus, and what it assumes beside them.

        There are no settings where the document is of no such trainer.

        Raises:
            SpecError: the trainer is another framework's.
        """
        written = {setting.written: setting for setting in fields(document)}
        program = OPTIONS[self.framework]
        older = program.get("older", {})
        for trainer, assumed in program["primus"].items():
            start = f"modules.{trainer}."
            given = {
                older.get(short, short): setting
                for name, setting in written.items()
                if (short := name.removeprefix(f"{start}overrides.")) != name
            }
            kind = written.get(f"{start}framework")
            if not given or kind is None:
                continue
            if kind.value != self.framework:
                kind.refuse(f"accepted: {self.framework}")
            if (file := written.get(f"{start}model")) is not None:
                given[PRIMUS_MODEL] = file
            usual = [
                Setting(name, value, kind.where, f"{name} of Primus")
                for name, value in assumed.items()
                if name not in given
            ]
            return usual + [
                Setting(canonical(name), value, one.where, name.removeprefix("primus."))
                for name, one in given.items()
                if (value := _or_else(one.value)) is not None
            ]
        return []

    @property
    def preset(self) -> str | None:
        """The bundled model whose name `model` is, as the hub or others spell it."""
        return catalog.meant(catalog.MODELS, str(self.value("model") or ""))

    @property
    def bundled_model(self) -> str | dict[str, Any] | None:
        """The same as a spec has it, with layers that are trained beside it."""
        further = self.value(FURTHER)
        if self.preset is None or not further:
            return self.preset
        return {"preset": self.preset, "mtp_layers": further}

    @property
    def bundled_fields(self) -> dict[str, Any]:
        """The fields of the bundled model; none where no option names one."""
        if self.preset is None:
            return {}
        return dict(catalog.read(catalog.bundled(catalog.MODELS, self.preset)).data)

    def size_of_model(self, name: str) -> int | None:
        """Return a size of the model, if the launch says it or names a bundled one."""
        said = self.value(f"model.{name}")
        if said is None:
            said = self.bundled_fields.get(name)
        return None if said is None else int(said)

    def model_note(self) -> str:
        """Return a sentence on the model that an option names; empty without one."""
        named, preset = self.setting("model"), self.preset
        if named is None:
            return ""
        place = f"{named.where}: {printable(str(named))}"
        if preset is None:
            return f"{place}: no bundled model; give its config.json as the model"
        said = [field for field in self.values if field.startswith("model.")]
        sizes = [field for field in said if field != FURTHER]
        rest = f", so not read: {', '.join(sizes)}" if sizes else ""
        return f"{place}: taken as the bundled {preset}{rest}"

    def changes_nothing(self, setting: Setting, why: str) -> None:
        """Note that an option changes nothing."""
        self._note(self.idle, setting, f"changes nothing: {why}")

    def is_not_judged(self, setting: Setting, why: str) -> None:
        """Note that an option changes time or memory, but not our model of them."""
        self._note(self.unjudged, setting, f"is not judged: {why}")

    def _note(self, notes: list[str], setting: Setting, told: str) -> None:
        sentence = f"{setting.where}: {printable(str(setting))} {told}"
        if sentence not in notes:
            notes.append(sentence)

    def close(self, settings: Settings) -> None:
        """Note settings that are unread, repeated, or without a value in the file."""
        for setting in settings.repeated.values():
            self.changes_nothing(setting, "it is given again, and the last one counts")
        for setting in settings.open:
            (self.unset if setting.unset else self.auto).append(
                f"{setting.where}: {printable(str(setting))}: {_why_open(setting)}"
            )
        for setting in settings.skipped():
            self._kept(setting, self.ignored)
        for setting in settings.unread():
            if is_harmless(setting.name):
                self._kept(setting, self.ignored)
            else:
                near = settings.near(setting)
                hint = f" (did you mean {near}?)" if near else ""
                self._kept(setting, self.unknown, hint)

    def _kept(self, setting: Setting, others: list[str], hint: str = "") -> None:
        """Keep the name of an option that was not read."""
        is_off = str(setting.value).lower() == "false"
        is_apart = setting.name.startswith(APART) and not is_off
        (self.apart if is_apart else others).append(setting.written + hint)

    def notes(self, *, is_whole: bool = False) -> list[str]:
        """Return the notes on options, each once.

        Args:
            is_whole: Whether all options without effect are named, however many.
        """
        told = [*self.auto, *self.unset, *self.unjudged, *self.idle]
        if self.unknown:
            shown = ", ".join(_names(self.unknown))
            told.append(f"{self.name}: not known, so not judged: {shown}")
        known = {UPDATE_ALONE: self.apart, WITHOUT_EFFECT: self.ignored}
        for why, written in known.items():
            names = _names(written)
            most = len(names) if is_whole else MOST_NAMED
            more = len(names) - most
            rest = f" and {more} more, which --verbose names" if more > 0 else ""
            if names:
                told.append(f"{self.name}: {why}: {', '.join(names[:most])}{rest}")
        return told


def _among(one: Any, other: Any) -> Any:
    """Return the value of two that is among the choices of the other, else None."""
    for choices, value in ((one, other), (other, one)):
        if isinstance(choices, list) and value in choices:
            return value
    return None


def _names(written: Iterable[str]) -> list[str]:
    """Return names that are safe to show, each once."""
    return [*dict.fromkeys(printable(name)[:120] for name in written)]


def _plain_word(value: Any) -> str:
    """Return a value as tables of options have it: 1e9 and 1e+09 as 1000000000."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower()


def _why_open(setting: Setting) -> str:
    if not setting.unset:
        return "left open: the program that reads it decides"
    if setting.unset == (setting.value,):
        return "left open: only a run knows it"
    return f"left open: {listed(setting.unset)} is not set in the file"


def listed(words: Iterable[str]) -> str:
    """Return words joined for a sentence: `a, b and c`."""
    shown = [printable(word)[:40] for word in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


_HARMLESS = {
    kind: f"(?:{'|'.join(words.split())})"
    for kind, words in OPTIONS["harmless"].items()
}
_SECTION = re.compile(rf"{_HARMLESS['sections']}\..*")
_LAST = re.compile("{beginnings}.*|.*{ends}|{words}".format_map(_HARMLESS))


def is_harmless(name: str) -> bool:
    """Return whether an option of a name is known to change no plan and no price."""
    last = name.rpartition(".")[2]
    return bool(_SECTION.fullmatch(name) or _LAST.fullmatch(last))


Form = Callable[[str, Launch], Settings]
"""Reads a text of one form into a launch, and returns its settings."""


@dataclass(frozen=True)
class Format:
    """A program whose launches are read, and the forms that its texts have."""

    kind: str
    title: str
    framework: str
    """The framework of its plans; empty where each file says it."""
    sign: str
    """A pattern that matches the start of its files, and of no other."""
    forms: Mapping[str, Form]
    """By a pattern of the text; the first that is found counts."""

    def parse(
        self,
        text: str,
        name: str,
        function: str | None = None,
        overrides: Sequence[Setting] = (),
    ) -> Launch:
        """Return the launch of a text.

        Args:
            text: A configuration, or a script that starts the program.
            name: The name of the file, for messages.
            function: The one that is meant of a file of Python that has several.
            overrides: Options of the command that names the file.

        Raises:
            SpecError: the text is of no form, contradicts itself, or a value is none
                that its option takes.
        """
        launch = Launch(self.kind, self.title, self.framework, name)
        launch.function, launch.overrides = function, overrides
        forms = self.forms.items()
        read = next(read for form, read in forms if re.search(form, text, re.M))
        launch.close(read(text, launch))
        return launch


def importers(*formats: Format) -> dict[str, LaunchImporter[Launch]]:
    """Return how the registry finds and reads programs, by their kinds."""
    return {one.kind: LaunchImporter(one.sign, one.parse) for one in formats}


_OR_ELSE = re.compile(r"\$\{\w{1,80}:([^{}]{0,80})\}")
"""A variable of the environment and its default, as Primus writes them."""


def _or_else(value: Any) -> Any:
    """Return a value with the defaults of its variables."""
    return _OR_ELSE.sub(r"\1", value) if isinstance(value, str) else value
