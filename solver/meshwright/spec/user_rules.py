"""The `rules` section: what the user's plans must keep, in his own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from meshwright.reading.expression import Node
from meshwright.spec.base import Problem, SpecModel
from meshwright.spec.rule_kinds import fields_of, read_rule
from meshwright.spec.rule_names import DECISIONS

MOST_RULES = 100
"""Rules of one spec."""

LONGEST_REASON = 300
"""Characters of why there is a rule."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}", re.ASCII)


def _named(value: Any) -> Any:
    if isinstance(value, str) and value and not _NAME.fullmatch(value):
        raise ValueError("expected up to 60 letters, digits, - and _, a letter first")
    return value


def _reason(value: Any) -> Any:
    if isinstance(value, str) and not (
        len(value) <= LONGEST_REASON and (value.isprintable())
    ):
        accepted = f"expected up to {LONGEST_REASON} characters that can be printed"
        raise ValueError(accepted)
    return value


def _expression(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    read_rule(value)
    line = " ".join(value.split())
    if not line.isprintable():
        raise ValueError("expected characters that can be printed")
    return line


class UserRule(SpecModel):
    """A rule of the user: plans that break it are left out.

    Example:
        >>> import meshwright as mw
        >>> rules = [{"that": "tp <= 2 and max(memory_gib) <= 60"}]
        >>> spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec, rules=rules)
        >>> spec.rules[0].name
        'rule_1'
    """

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "if": "write `not (this) or that`",
        "then": "write `not (this) or that`",
    }

    name: Annotated[str, BeforeValidator(_named)] = Field(
        "",
        description="What answers call it; default: rule_1, rule_2, ...",
        json_schema_extra={"pattern": f"^({_NAME.pattern})?$"},
    )
    that: Annotated[str, BeforeValidator(_expression)] = Field(
        description="What must hold: comparisons of decisions, stages, links, parts of "
        "the step and money, joined by and, or, not.",
        json_schema_extra={"pattern": "[a-z]"},
    )
    because: Annotated[str, BeforeValidator(_reason)] = Field(
        "", description="Why; answers repeat it."
    )

    @property
    def tree(self) -> Node:
        """Return the parsed expression."""
        return read_rule(self.that)

    @property
    def sentence(self) -> str:
        """Return the rule and why it is there, in one line."""
        return f"{self.that}; {self.because}" if self.because else self.that

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all values that the rule compares."""
        return frozenset(field.name for field in fields_of(self.tree))

    @property
    def is_of_decisions(self) -> bool:
        """Return whether the rule holds or not whatever the stages hold."""
        return self.names <= {*DECISIONS}


def with_names(rules: Iterable[UserRule]) -> tuple[UserRule, ...]:
    """Return rules of which those without a name have one by their place."""
    return tuple(
        rule if rule.name else rule.model_copy(update={"name": f"rule_{number}"})
        for number, rule in enumerate(rules, start=1)
    )


def rule_problems(
    rules: tuple[UserRule, ...], has_price: bool, has_tokens: bool
) -> Iterator[Problem]:
    """Yield names that two rules have, and prices and runs that are not known."""
    if len(rules) > MOST_RULES:
        sentence = f"rules; expected at most {MOST_RULES}"
        yield Problem(("rules",), len(rules), sentence)
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in seen:
            sentence = "is the name of another rule; expected a name of its own"
            yield Problem(("rules", index, "name"), rule.name, sentence)
        seen.add(rule.name)
        if "usd_per_mtoken" in rule.names and not has_price:
            sentence = "compares usd_per_mtoken, and no price is known; expected "
            sentence += "run.gpu_hour_price beside it"
            yield Problem(("rules", index, "that"), rule.that, sentence)
        if "train_days" in rule.names and not has_tokens:
            sentence = "compares train_days, and the run has no length; expected "
            sentence += "run.tokens beside it"
            yield Problem(("rules", index, "that"), rule.that, sentence)
