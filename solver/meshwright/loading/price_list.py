"""Loads lists of prices, and the specs of a model on all that they offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.loading.asked import Asked, ask
from meshwright.loading.load import read_spec, refuse_inference
from meshwright.loading.open_question import open_spec
from meshwright.loading.sources import (
    USER_FILES,
    Files,
    Source,
    require_mapping,
    resolve_field,
)
from meshwright.reading.document import Document, FieldPath, Where, validated
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.cluster import usd_per_hour
from meshwright.spec.open_spec import (
    NO_CLOUD,
    Offer,
    OfferedSpec,
    OpenNumbers,
    Price,
    PriceGroup,
    PriceList,
)
from meshwright.spec.topology import Topology
from meshwright.surface import option

CLOUDS = "topologies/clouds"
"""The bundled lists of prices."""

USUAL_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Machines of each type that are looked at where nobody says how many."""


class PricedMachine(NamedTuple):
    """An offer and the machine that it is."""

    offer: Offer
    topology: Topology


class Offered(NamedTuple):
    """The specs of a question on all that is offered, and what was ruled out."""

    specs: list[OfferedSpec]
    errors: list[str]
    """Why the spec cannot be on the other machines, one for each choice."""


class _HasTopology(BaseModel):
    """A mapping with a topology."""

    topology: Topology


class _HasCount(BaseModel):
    """A mapping with numbers of machines."""

    count: OpenNumbers


def priced_machines(
    file: Path | None = None, files: Files = USER_FILES
) -> list[PricedMachine]:
    """Return the machines of a list of prices, or without a file, of the bundled lists.

    Machines that the list names are those of `files`.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    bundled = Path(str(catalog.folder(CLOUDS)))
    lists = (
        [file] if file else [bundled / f"{name}.yaml" for name in catalog.names(CLOUDS)]
    )
    return [machine for path in lists for machine in _machines(path, files)]


def _machines(file: Path, files: Files) -> list[PricedMachine]:
    document = read_yaml(file)
    require_mapping(document, (), "a list of prices")
    known = validated(document, PriceList)
    found = []
    for index, group in enumerate(known.prices):
        for instance, price in group.instances.items():
            offer = Offer(instance, group, price)
            at = document.where(("prices", index, "instances", instance))
            found.append(
                PricedMachine(offer, offer.priced(_topology(offer, at, files)))
            )
    if not found:
        raise SpecError(f"{document.where(('prices',))}: prices: expected at least one")
    return found


def _topology(offer: Offer, at: Where, files: Files) -> Topology:
    """Return the machine of an offer, in the file that it names or bundled."""
    renamed: dict[FieldPath, FieldPath] = {("topology",): ("machine",)}
    document = Document({"topology": offer.machine}, {(): at}, renamed=renamed)
    resolve_field(document, ("topology",), "topologies", files)
    resolve_field(document, ("topology", "gpu"), "topologies/gpus", files)
    return validated(document, _HasTopology).topology


def offered_specs(
    source: Source | None,
    asked: Asked,
    machines: Sequence[PricedMachine] | None,
    tokens: float | None,
    notes: list[str],
    files: Files = USER_FILES,
) -> Offered:
    """Return the spec of the source and the options, on every machine offered.

    Without machines, those of the source are offered, at the prices it gives.

    Raises:
        SpecError: a field is wrong, the run has no length, or no machine will do.
    """
    if machines is None:
        return _at_own_prices(_question(source, asked, tokens, notes, files))
    anywhere = replace(asked, cluster="dgx-h100", count=None)
    document = _question(source, anywhere, tokens, notes, files)
    counts = _counts(asked)
    found = Offered([], [])
    for offer, topology in machines:
        most = offer.price.most or counts[-1]
        numbers = [count for count in counts if count <= most]
        if not numbers:
            continue
        cluster = {"topology": topology, "count": numbers}
        document.graft(("cluster",), Document(cluster, {(): document.where(())}))
        try:
            question = open_spec(document)
        except SpecError as error:
            told = f"{offer.instance}: {error}"
            found.errors.extend([told] * len(numbers))
            continue
        found.specs.extend(OfferedSpec(offer, spec) for spec in question.choices)
        found.errors.extend([question.why_impossible] * question.impossible)
    if not found.specs:
        raise SpecError(
            found.errors[0] if found.errors else f"{option('count')}: none is offered"
        )
    return found


def _question(
    source: Source | None,
    asked: Asked,
    tokens: float | None,
    notes: list[str],
    files: Files,
) -> Document:
    """Return the spec, its names resolved and with the length of the run.

    Raises:
        SpecError: see `offered_specs`.
    """
    if source is None and asked.model is None:
        named = f"{option('model')} llama3-8b"
        raise SpecError(f"{option('model')}: missing; what will be trained? {named}")
    if source is None and asked.cluster is None:
        told = f"what is offered? say {option('clouds')}, or {option('prices')} FILE"
        raise SpecError(f"{option('model')} {printable(str(asked.model))}: {told}")
    document = read_spec(ask(source, asked, notes, files), notes=notes, files=files)
    refuse_inference(document)
    run, at = document.data.setdefault("run", {}), option("tokens")
    if tokens is not None and isinstance(run, dict):
        document.graft(("run", "tokens"), Document(tokens, {(): Where(at)}))
    if isinstance(run, dict) and run.get("tokens") is None:
        told = f"missing; how long is the run? {at} 2T, or run.tokens of a spec"
        raise SpecError(f"{at}: {told}")
    return document


def _at_own_prices(document: Document) -> Offered:
    """Return the choices of a spec with its machines and prices.

    Raises:
        SpecError: a field is wrong, or a price is not known.
    """
    question = open_spec(document)
    specs = []
    for spec in question.choices:
        usd = usd_per_hour(spec.cluster, spec.run.gpu_hour_price)
        if usd is None:
            told = "has no price; say hour_usd of its GPU, or run.gpu_hour_price"
            raise SpecError(f"{spec.cluster.topology.name}: {told}")
        price = Price(hour_usd=usd / spec.cluster.count)
        name = spec.cluster.topology.name
        group = PriceGroup(cloud=NO_CLOUD, instances={name: price})
        specs.append(OfferedSpec(Offer(name, group, price), spec))
    return Offered(specs, [question.why_impossible] * question.impossible)


def _counts(asked: Asked) -> tuple[int, ...]:
    """Return how many machines may be rented.

    Raises:
        SpecError: names the option and its value.
    """
    if asked.count is None:
        return USUAL_COUNTS
    document = Document({"count": asked.count}, {(): Where(option("count"))})
    return validated(document, _HasCount).count
