"""CP-SAT is imported without pandas, and nobody who wants pandas notices."""

from __future__ import annotations

import pytest

from tests.cli.test_start import python

LATER = """
import sys
from meshwright.cpsat.ortools import cp_model
assert "pandas" not in sys.modules
model = cp_model.CpModel()
x, y = model.new_int_var(0, 9, "x"), model.new_bool_var("y")
model.add(x >= 4).only_enforce_if(y)
model.add_exactly_one(y, ~y)
model.minimize(x - 5 * y)
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL
assert (solver.value(x), solver.boolean_value(y)) == (4, True)
assert "pandas" not in sys.modules

import pandas
import pandas.api.types
from pandas import DataFrame
assert pandas.__version__ and DataFrame({"a": [1]}).shape == (1, 1)
assert sys.modules["pandas"] is pandas
many = model.new_bool_var_series("z", pandas.Index(["a", "b"]))
assert type(many) is pandas.Series
model.add(many.sum() == 2)
assert solver.solve(model) == cp_model.OPTIMAL
assert solver.boolean_values(many).tolist() == [True, True]
"""

EARLIER = """
import pandas
from meshwright.cpsat.ortools import cp_model
assert cp_model.pd is pandas
"""

ASKED_FOR_MORE = """
import sys
from meshwright.cpsat.ortools import pandas_left_out
with pandas_left_out():
    import pandas
    named = pandas.Index | pandas.Series
    assert not isinstance(1, named)
    assert sys.modules["pandas"] is pandas
    frame = pandas.DataFrame({"a": [1]})
    import pandas.testing as told
real = sys.modules["pandas"]
assert real is not pandas and type(frame) is real.DataFrame
assert pandas.Index is real.Index
"""

SUBMODULE = """
import sys
from meshwright.cpsat.ortools import pandas_left_out
with pandas_left_out():
    from pandas.api.types import is_integer
assert is_integer(1) and "pandas" in sys.modules
"""

DERIVED = """
import sys
from meshwright.cpsat.ortools import pandas_left_out
try:
    with pandas_left_out():
        import pandas
        class Own(pandas.Series): pass
except ImportError:
    assert "pandas" not in sys.modules
else:
    raise AssertionError("the stand-in is a class that can be derived from")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [LATER, EARLIER, ASKED_FOR_MORE, SUBMODULE, DERIVED],
    ids=["later", "earlier", "asked for more", "submodule", "derived"],
)
def test_pandas_is_itself_for_whoever_wants_it(code: str) -> None:
    python(code)


def test_an_ortools_that_derives_from_pandas_is_imported_with_it() -> None:
    python(
        """
import sys, types
class Finder:
    tries = 0
    def find_spec(self, name, path=None, target=None):
        if name == "ortools.sat.python.cp_model":
            Finder.tries += 1
            if Finder.tries == 1:
                import pandas
                class Own(pandas.Series): pass
sys.meta_path.insert(0, Finder())
from meshwright.cpsat.ortools import cp_model
assert Finder.tries == 2 and "pandas" in sys.modules
"""
    )
