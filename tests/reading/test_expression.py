"""Expressions are read, never executed, and errors name the character."""

from __future__ import annotations

import pytest

from meshwright.reading.expression import (
    BadExpression,
    Call,
    Compared,
    Field,
    Joined,
    parse_expression,
)


def test_the_tree_has_what_is_written() -> None:
    tree = parse_expression("tp <= 8 and max(layers) < links['a -> b']")
    assert isinstance(tree, Joined)
    first, second = tree.operands
    assert isinstance(first, Compared)
    assert isinstance(second, Compared)
    call, link = second.operands
    assert isinstance(call, Call)
    assert (call.function, call.at) == ("max", 13)
    assert isinstance(link, Field)
    assert (link.name, link.index) == ("links", "a -> b")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tp <= 8 an pp", "at character 9: cannot be read"),
        ("  tp @ 2", "at character 3: has 'tp @ 2'"),
        ("tp <", "at character 4: cannot be read"),
        ("'ö' == 1 and nope(3)", "at character 14: no function 'nope'"),
        ("layers[tp] == 1", "at character 8: expected a whole number"),
        ("layers[0:1] == 1", "at character 8: expected a whole number"),
        ("1e999 < 2", "at character 1: expected a number up to 1e+18"),
        ("9" * 400 + " < 2", "at character 1: expected a number up to 1e+18"),
        ("tp if pp else cp", "at character 1: has 'tp if pp else cp'"),
        ("x" * 1_001, "in at most 1,000 characters"),
        ("not " * 200 + "tp", "at most 40 operations in each other"),
        ("tp is 2", "at character 1: has 'tp is 2'"),
        ("[x for x in [x for x in y]] == 1", "at character 1: has"),
        ("", "cannot be read"),
        (3, "expected comparisons"),
    ],
)
def test_errors_name_the_character(text: object, told: str) -> None:
    with pytest.raises(BadExpression) as error:
        parse_expression(text)
    assert told in str(error.value)
