"""What a law is, and what comes out when it is held against a spec."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import yaml
from hypothesis.strategies import SearchStrategy

Data = dict[str, Any]
"""A spec as plain data, as YAML holds it."""

Checks = Iterator[tuple[bool, str]]
"""Whether each check holds, and what was compared."""


@dataclass(frozen=True)
class Law:
    """A sentence about all specs, and how to check it on one of them."""

    name: str
    sentence: str
    specs: SearchStrategy[Data]
    checks: Callable[[Data, Random], Checks]
    """Of a spec; the random choices that it makes follow from the spec alone."""
    tested: int
    """Specs that pytest holds it against, all of them."""
    always: tuple[Data, ...] = ()
    """Specs that are looked at in every run."""


@dataclass(frozen=True)
class Finding:
    """What a law says of one spec."""

    checks: int
    failures: tuple[str, ...]


def hold(law: Law, data: Data) -> Finding:
    """Return what a law says of a spec; an error of the product is a failure too."""
    checks, failures = 0, []
    try:
        for holds, sentence in law.checks(plain(data), Random(as_yaml(data))):
            checks += 1
            if not holds:
                failures.append(sentence)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
        failures.append(told)
    return Finding(checks, tuple(failures))


def plain(data: Data) -> Data:
    """Return a copy of a spec's data that shares nothing with it."""
    copy: Data = json.loads(json.dumps(data))
    return copy


def as_yaml(data: Data) -> str:
    """Return a spec as YAML."""
    return yaml.safe_dump(plain(data), sort_keys=False)
