"""The names that `framework` accepts, found without loading any framework.

They are the modules of `meshwright.frameworks`, and the entry points of a group of the
same name, so that a new file or another package adds a framework.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

PACKAGE = "meshwright.frameworks"
"""The package, and the group of entry points."""

NO_FRAMEWORKS = ("base",)
"""The modules of the package that are no frameworks."""


def bundled() -> list[str]:
    """Return the names of frameworks that are modules of the package, sorted."""
    package = find_spec(PACKAGE)
    folders = package.submodule_search_locations if package else None
    return _modules(tuple(folders or ()))


@cache
def _modules(folders: tuple[str, ...]) -> list[str]:
    modules = pkgutil.iter_modules(folders)
    return sorted(module.name for module in modules if module.name not in NO_FRAMEWORKS)


@cache
def added() -> dict[str, EntryPoint]:
    """Return the frameworks that other packages add, by name.

    To list them takes 20 ms, more than to price a run.
    """
    return {entry.name: entry for entry in entry_points(group=PACKAGE)}


def framework_names() -> list[str]:
    """Return every name that `framework` accepts, sorted."""
    return sorted({*bundled(), *added()})


def _known(name: str) -> str:
    if name in bundled() or name in added():
        return name
    *names, last = (repr(known) for known in framework_names())
    expected = f"{', '.join(names)} or {last}"
    raise PydanticKnownError("literal_error", {"expected": expected})


def _list_names(schema: dict[str, Any]) -> None:
    schema["enum"] = framework_names()


FrameworkName = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra=_list_names)
]
"""The name of a framework, one of `framework_names()`."""
