"""Holds bundled models against config.json files, and writes the rows of new ones.

    python -m benchmarks.models                              # rows and their counts
    python -m benchmarks.models Qwen/Qwen3-8B=config.json    # one model, by its config

A model that is bundled is compared with its config.json, field by field. For another
one the row is printed under each family whose shared fields agree with the config, to
be completed with the published number of parameters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright import catalog
from meshwright.cost.whole_model import total_params
from meshwright.errors import SpecError
from meshwright.imports import hf
from meshwright.spec.model import Model

TABLE = Path(str(catalog.folder(catalog.MODELS))) / catalog.TABLE

NOT_READ = {"name", "published_params", "moe.router_bias"} | {
    f"details.{name}" for name in ("hub", "activation", "router_score")
}
"""Fields that a config.json does not have, or says in no field of its own."""


def flat(fields: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return fields by their dotted names, such as `moe.top_k`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name in ("moe", "details"):
            found |= flat(value, f"{name}.")
        else:
            found[before + name] = value
    return found


def differences(bundled: Model, read: Model) -> Iterator[str]:
    """Yield the fields in which a bundled model is not what its config.json says."""
    ours, theirs = (flat(model.model_dump()) for model in (bundled, read))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in NOT_READ and ours.get(name) != theirs.get(name):
            yield f"  {name}: {ours.get(name)}, and {theirs.get(name)} in config.json"


def rows(hub: str, read: Model) -> Iterator[str]:
    """Yield the row of a model under each family in which it has all of its fields."""
    known = flat(read.model_dump()) | {"details.hub": hub}
    for name, family in catalog.families(TABLE).items():
        row = [known.get(column) for column in family["columns"]]
        fields = catalog.row_fields({**family, "models": {hub: row}}, hub)
        try:
            is_same = not [*differences(Model.model_validate(fields), read)]
        except ValidationError:
            continue
        if is_same:
            yield f"  {name}: {row}"


def main(arguments: list[str]) -> None:
    """Print all bundled models, or compare those that are named.

    Raises:
        SystemExit: an argument is no HUB=FILE, or the file is no config.json.
    """
    for argument in arguments:
        hub, equals, file = argument.partition("=")
        if not equals:
            sys.exit(f"{argument}: expected HUB=FILE")
        try:
            fields = hf.parse(Path(file).read_text("utf-8"), file).fields
        except (OSError, SpecError) as error:
            sys.exit(str(error))
        read = Model.model_validate({"name": hub, **fields})
        print(f"{hub}: {total_params(read):,} parameters")
        try:
            path = catalog.bundled(catalog.MODELS, hub)
        except SpecError:
            print("\n".join(rows(hub, read)) or "  no family agrees; write a new one")
            continue
        bundled = Model.model_validate(catalog.read(path).data)
        print("\n".join(differences(bundled, read)) or f"  as {path.stem} has it")
    if not arguments:
        for family, data in catalog.families(TABLE).items():
            print(f"{family}: {', '.join(data['models'])}")
        print(f"{len(catalog.names(catalog.MODELS))} models")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("files", nargs="*", metavar="HUB=FILE", help="a config.json")
    main(parser.parse_args().files)
