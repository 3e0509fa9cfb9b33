"""Resolves a spec with open numbers to all fixed specs that it may become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, explain, shown, validated
from meshwright.spec.cluster import Cluster
from meshwright.spec.open_spec import OpenNumbers, OpenSpec, is_open
from meshwright.spec.spec import Spec

MOST_CHOICES = 4_096
"""Most specs that one may become."""

CHOICES: FieldPath = ("cluster", "choices")
COUNT: FieldPath = ("cluster", "count")
BATCH: FieldPath = ("training", "global_batch")


class _OpenCluster(BaseModel):
    """The field of a cluster that may be open; others are ignored."""

    count: OpenNumbers = Field((1,), description="Copies of the topology.")


class _OpenTraining(BaseModel):
    """The field of training that may be open; others are ignored."""

    global_batch: OpenNumbers = Field(description="Sequences per optimizer step.")


class _OpenFields(BaseModel):
    """The fields of a spec that may be open; others are ignored."""

    cluster: _OpenCluster
    training: _OpenTraining


class _Found(NamedTuple):
    """The specs that one cluster leaves open, and what was ruled out."""

    specs: list[Spec]
    errors: list[str]


def open_fields(document: Document) -> list[FieldPath]:
    """Return the fields that a spec leaves open."""
    cluster, training = (_section(document, name) for name in ("cluster", "training"))
    asked = {
        CHOICES: "choices" in cluster,
        COUNT: is_open(cluster.get("count")),
        BATCH: is_open(training.get("global_batch")),
    }
    return [path for path, values in asked.items() if values]


def refuse_open(document: Document, accepted: str) -> None:
    """Refuse a spec that leaves numbers open where only fixed ones will do.

    Raises:
        SpecError: names the first open field.
    """
    for path in open_fields(document):
        at, name = document.where(path), document.name(path)
        value = shown(document.value(path))
        raise SpecError(f"{at}: {name}: {value} leaves it open; {accepted}")


def open_spec(document: Document) -> OpenSpec:
    """Return all specs that one with open fields may become.

    Raises:
        SpecError: a field is wrong, or every choice is ruled out by another field.
    """
    _refuse_parts(document)
    _refuse_beside_choices(document)
    found = [_fixed(one) for one in _clusters(document)]
    specs = [spec for choices in found for spec in choices.specs]
    errors = [error for choices in found for error in choices.errors]
    if not specs:
        raise SpecError(errors[-1])
    specs.sort(key=lambda spec: (spec.cluster.gpus, spec.training.global_batch))
    return OpenSpec(tuple(specs), len(errors), errors[0] if errors else "")


def _section(document: Document, name: str) -> dict[str, Any]:
    data = document.data if isinstance(document.data, dict) else {}
    section = data.get(name)
    return section if isinstance(section, dict) else {}


def _refuse_parts(document: Document) -> None:
    cluster = _section(document, "cluster")
    chosen = cluster.get("choices")
    paths: dict[FieldPath, Any] = {("cluster",): cluster}
    for index, choice in enumerate(chosen if isinstance(chosen, list) else ()):
        paths[*CHOICES, index] = choice
    for path, cluster in paths.items():
        if isinstance(cluster, dict) and "parts" in cluster:
            path = (*path, "parts")
            at, name = document.where(path), document.name(path)
            told = "given beside open numbers; unlike parts take fixed ones"
            raise SpecError(f"{at}: {name}: {told}")


def _refuse_beside_choices(document: Document) -> None:
    """Refuse `cluster.choices` that is no list of clusters, or not alone.

    Raises:
        SpecError: names the field, its value and what is accepted.
    """
    cluster = _section(document, "cluster")
    if "choices" not in cluster:
        return
    at, several = document.where(CHOICES), cluster["choices"]
    is_list = isinstance(several, list) and several
    if not is_list or not all(isinstance(choice, dict) for choice in several):
        told = "expected a list of clusters, such as [{topology: dgx-h100, count: 4}]"
        raise SpecError(f"{at}: cluster.choices: {shown(several)}: {told}")
    for name in cluster:
        if name != "choices":
            told = "given beside cluster.choices; say it of each choice"
            raise SpecError(f"{at}: cluster.{name}: {told}")


def _clusters(document: Document) -> Iterator[Document]:
    """Yield the spec with each of the clusters of `cluster.choices`, or as it is."""
    cluster = _section(document, "cluster")
    if "choices" not in cluster:
        yield document
        return
    for index, chosen in enumerate(cluster["choices"]):
        path: FieldPath = (*CHOICES, index)
        data = {**document.data, "cluster": chosen}
        size = len(path)
        below = {
            ("cluster", *place[size:]): where
            for place, where in document.places.items()
            if place[:size] == path
        }
        renamed: dict[FieldPath, FieldPath] = {("cluster",): path}
        yield Document(data, {**document.places, **below}, renamed=renamed)


def _fixed(document: Document) -> _Found:
    """Return the specs with each open number, and why the others cannot be.

    Raises:
        SpecError: an open field is wrong.
    """
    fields = validated(document, _OpenFields)
    pairs = list(product(fields.cluster.count, fields.training.global_batch))
    if len(pairs) > MOST_CHOICES:
        at, name = document.where(COUNT), document.name(COUNT)
        told = f"{len(pairs):,} choices with training.global_batch"
        raise SpecError(f"{at}: {name}: {told}; accepted: up to {MOST_CHOICES:,}")
    base: Spec | None = None
    clusters: dict[int, Cluster] = {}
    found = _Found([], [])
    for count, batch in pairs:
        closed = _closed(document, count, batch)
        try:
            if base is None:
                spec = base = Spec.model_validate(closed.data)
            if count not in clusters:
                clusters[count] = _with_count(base.cluster, count)
            spec = _changed(base, clusters[count], batch)
        except ValidationError as error:
            found.errors.append(explain(closed, error, Spec))
            continue
        found.specs.append(spec)
    return found


def _closed(document: Document, count: int, batch: int) -> Document:
    """Return the document with its open numbers decided."""
    data = {**document.data}
    data["cluster"] = {**data["cluster"], "count": count}
    data["training"] = {**data["training"], "global_batch": batch}
    return replace(document, data=data)


def _with_count(cluster: Cluster, count: int) -> Cluster:
    """Return a cluster with another number of machines.

    Raises:
        ValidationError: the machines cannot be so many.
    """
    given = {name: getattr(cluster, name) for name in cluster.model_fields_set}
    return Cluster.model_validate({**given, "count": count})


def _changed(base: Spec, cluster: Cluster, batch: int) -> Spec:
    """Return a spec with another cluster and batch, checked again as a whole.

    Raises:
        ValidationError: some other field rules them out.
    """
    training = base.training.model_copy(update={"global_batch": batch})
    given = {name: getattr(base, name) for name in base.model_fields_set}
    return Spec.model_validate({**given, "cluster": cluster, "training": training})
