"""The base of every answer: data with one JSON form, and how it is shown."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ValidationError

from meshwright.results.answer_json import refused
from meshwright.spec.base import SpecModel

M = TypeVar("M", bound=BaseModel)

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""How much is proven about the best plan."""


class Result(SpecModel):
    """An answer, as frozen data."""

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `--format json` prints."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return the text that `--format json` prints."""
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the answer that was printed as a JSON text.

        `to_dict` of it is the same data again. Fields that are not printed have their
        defaults: clusters (`cluster`), plans that do not fit (`nearest`) and how far
        step times may be off (`band`).

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        return read_json(cls, text, cls.__name__)

    def __str__(self) -> str:
        """Return what the command line prints, on one screen of 80 columns."""
        # By its name: results know nothing of how they are told.
        told = import_module("meshwright.report.screen").screen_text(self)
        assert isinstance(told, str)
        return told

    def _repr_html_(self) -> str:
        """Return what notebooks show: the page of the answer, or its text."""
        shown = import_module("meshwright.report.pages.notebook").notebook_html(self)
        assert isinstance(shown, str)
        return shown


def json_text(data: Any) -> str:
    """Return data as the command line prints it."""
    return json.dumps(data, indent=2) + "\n"


def read_json(model: type[M], text: str | bytes, kind: str) -> M:
    """Return a model from the JSON text of a `kind` of answer.

    Raises:
        SpecError: the text is no JSON, or not of the model; tells the first problem.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise refused(kind, error) from None
