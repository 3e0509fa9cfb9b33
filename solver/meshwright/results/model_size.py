"""The size of the model that an answer is about."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import SpecModel


class ModelSize(SpecModel):
    """Parameters of a model, all of them and those that a token uses."""

    name: str
    params: int = Field(description="All parameters.")
    active_params: int = Field(
        description="Those that one token uses: of routed experts, top_k."
    )

    @property
    def text(self) -> str:
        """Return the size in one line."""
        active = ""
        if self.active_params < self.params:
            active = f", {self.active_params:,} of them for a token"
        return f"{self.name} has {self.params:,} parameters{active}"
