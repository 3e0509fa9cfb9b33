"""The model that CP-SAT solved, in words: rows, variables, constraints, objectives."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import SpecModel


class ModelDecision(SpecModel):
    """A decision of the plan, and the values that some row of the model has."""

    name: str
    values: tuple[int | str | bool, ...]


class ModelQuantity(SpecModel):
    """A quantity of the plan, and its range over the rows of the model."""

    name: str
    least: float
    most: float
    unit: str


class ModelConstraint(SpecModel):
    """A constraint of the model."""

    name: str
    sentence: str
    equation: str = ""
    leaves_out: int | None = Field(
        None, description="Rows that this constraint alone leaves out, where it is one."
    )


class SolvedModel(SpecModel):
    """The model that chose the plan.

    Each row is one complete set of decisions; the layers of a row are split over its
    stages by an exact search of its own, whose results are cuts of this model.
    """

    rows: int
    decisions: tuple[ModelDecision, ...]
    quantities: tuple[ModelQuantity, ...]
    constraints: tuple[ModelConstraint, ...]
    objectives: tuple[str, ...] = Field(
        description="What is minimised, the most important first."
    )
    cuts: int = Field(description="Rows whose best split was proven and came back.")
