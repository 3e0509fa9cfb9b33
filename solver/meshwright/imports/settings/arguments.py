"""Settings from the words of command lines, and from assignments `a.b=c` among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.imports.settings.setting import Setting, canonical
from meshwright.imports.settings.shell_script import Argument
from meshwright.imports.settings.shell_values import unmarked
from meshwright.reading.document import Where

NODES = ("nnodes", "num_nodes", "num_machines")
RANKS = ("nproc_per_node", "num_gpus")
ALL = ("num_processes",)
"""Options of launchers that hold hosts, ranks of a host, and ranks of all hosts."""

LAUNCHER = (
    *NODES, *RANKS, *ALL, "node_rank", "master_addr", "master_port", "rdzv_id",
    "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "max_restarts", "machine_rank",
    "main_process_ip", "main_process_port", "tee", "log_dir", "redirects", "hostfile",
    "role", "local_ranks_filter", "monitor_interval", "start_method", "config_file",
)  # fmt: skip
"""Options of launchers, each of which takes one word; the program stands behind."""

FLAGS = ("standalone", "m", "no_python", "multi_gpu", "use_fsdp")
"""Options of launchers that take no word."""

_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(.*)", re.ASCII | re.S)


def options(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, `--name value ...` or `--name=value`.

    An option has all the words up to the next one as its value; one of a launcher has
    one word at most.
    """
    found: Argument | None = None
    values: list[str] = []
    for word in [*words, Argument("--end", 0)]:
        text, equals, value = word.text.partition("=")
        if not _OPTION.fullmatch(text):
            values += [word.text]
            continue
        if found is not None:
            short = canonical(found.text)
            most = 1 if short in LAUNCHER else 0 if short in FLAGS else len(values)
            yield option(found, values[:most], name)
        found, values = Argument(text, word.line), [value] if equals else []


def option(word: Argument, values: list[str], name: str) -> Setting:
    """Return an option with its values: none, one, or a list."""
    shown = [unmarked(value) for value in values]
    unset = tuple(dict.fromkeys(own for _, names in shown for own in names))
    texts = [text for text, _ in shown]
    value: Any = None if not texts else texts[0] if len(texts) == 1 else texts
    where = Where(name, word.line)
    return Setting(canonical(word.text), value, where, word.text, unset)


def assignments(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the words `a.b.c=value` of a command, as Hydra takes them."""
    for word in words:
        if found := _DOTTED.fullmatch(word.text):
            value, unset = unmarked(found[2])
            where = Where(name, word.line)
            yield Setting(canonical(found[1]), value, where, found[1], unset)
