"""What the validators share: launches from stdin, one process each, verdicts to stdout.

This runs under the frameworks' Python and imports nothing of Meshwright.
"""

from __future__ import annotations

import abc
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_SECONDS = 300
"""Time for one launch, of which most take a tenth."""


@dataclass(frozen=True)
class Launch:
    """What a script of an export started, caught before it ran."""

    folder: Path
    words: list[str]
    """The command, `torchrun` or `accelerate` first."""
    environment: dict[str, str]
    gpus: int
    facts: dict[str, Any]
    """What Meshwright says of the plan, to compare with what the framework read."""

    def program_words(self) -> list[str]:
        """Return the words of the program behind torchrun, whose own are checked."""
        launcher, *words = self.words
        if launcher == "python":
            return words
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words)
        most = str(parsed.nnodes).split(":")[-1]  # 1:1 where it is not given
        world = int(most) * int(parsed.nproc_per_node)
        expect(
            world == self.gpus, f"torchrun starts {world} ranks for {self.gpus} GPUs"
        )
        return [parsed.training_script, *parsed.training_script_args]


UNAVAILABLE = os.EX_UNAVAILABLE
"""Exit status where the sources that a validator needs are not there."""


class MissingError(Exception):
    """Sources of a framework that are on no registry, and not on this machine."""


def expect(is_so: bool, otherwise: str) -> None:
    """Refuse what is not so."""
    if not is_so:
        raise AssertionError(otherwise)


def same(what: str, read: Any, meant: Any) -> None:
    """Refuse what the framework read otherwise than it was meant."""
    expect(read == meant, f"{what}: the framework reads {read}, the plan says {meant}")


def llama_config(facts: dict[str, Any], **others: Any) -> Any:
    """Return the configuration of a Llama of `transformers`, or a Mixtral, by sizes."""
    from transformers import LlamaConfig, MixtralConfig

    sizes = {
        "hidden_size": facts["d_model"],
        "intermediate_size": facts["d_ff"],
        "num_attention_heads": facts["n_heads"],
        "num_key_value_heads": facts["n_kv_heads"],
        "num_hidden_layers": facts["n_layers"],
        "vocab_size": facts["vocab"],
    }
    if moe := facts.get("moe"):
        sizes |= {
            "num_local_experts": moe["n_experts"],
            "intermediate_size": moe["d_ff"],
        }
        return MixtralConfig(**sizes | others)
    return LlamaConfig(**sizes | others)


EASIER = {
    "STEPS = 10": "STEPS = 3",
    "config.vocab_size, (": "16, (",
    "lr=1e-5": "lr=1e-3",
}
"""Steps, tokens and rate with which a loss falls at once."""


def run_program(facts: dict[str, Any]) -> dict[str, Any]:
    """Run the exported `train.py` on a small Llama; return what it holds at the end."""
    import torch
    from transformers import AutoModelForCausalLM

    rank = os.environ["RANK"]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(llama_config(facts))
    model.save_pretrained(f"model-{rank}")
    os.environ["MODEL"] = f"model-{rank}"
    program = Path("train.py").read_text()
    for written, ours in EASIER.items():
        if written not in program:
            raise ValueError(f"train.py does not say {written}")
        program = program.replace(written, ours)
    path = Path(f"train-{rank}.py")
    path.write_text(program)
    return runpy.run_path(str(path))


def local_part(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds: all that is not distributed."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class _Nothing(abc.ABCMeta):
    """A class of a package that is not there, which has any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Nothing(name, (), {})

    def __call__(cls, *_given: Any, **_named: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls


class _Package(types.ModuleType):
    """A package that is not there."""

    __version__ = "2.9.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds empty packages in place of those that need a GPU to be built."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the place of an empty package, None for others."""
        if any(f"{name}.".startswith(f"{one}.") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """Return an empty package."""
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def stand_in_for(*packages: str) -> None:
    """Let packages be imported that are not there, and that no check calls."""
    sys.meta_path.insert(0, _Finder(packages))


def main(check: Callable[[Launch], None], prepare: Callable[[], None]) -> None:
    """Check all launches of stdin, each in a process of its own, after imports."""
    jobs = [Launch(Path(job.pop("folder")), **job) for job in json.load(sys.stdin)]
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        with nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            prepare()
    except MissingError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UNAVAILABLE) from None
    verdicts = [_verdict(check, job) for job in jobs]
    print(json.dumps(verdicts))


def _verdict(check: Callable[[Launch], None], job: Launch) -> str:
    """Return what is wrong, empty where nothing is."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_checked, args=(check, job, theirs))
    process.start()
    theirs.close()
    try:
        has_ended = ours.poll(MOST_SECONDS)
        verdict = str(ours.recv()) if has_ended else f"no end after {MOST_SECONDS} s"
    except EOFError:
        verdict = "the process died"
    process.kill()
    process.join()
    return verdict


def _checked(check: Callable[[Launch], None], job: Launch, verdict: Any) -> None:
    said = Path(os.devnull).open("w")  # noqa: SIM115
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.stdout = sys.stderr = said
    try:
        check(job)
    except SystemExit as error:
        verdict.send(f"exit {error.code}" if error.code else "")
    except BaseException as error:
        where = traceback.format_exc()
        verdict.send(f"{type(error).__name__}: {error}\n{where}")
    else:
        verdict.send("")
    os._exit(0)
