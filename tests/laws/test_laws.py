"""Every law on a few specs that stay the same; `python -m tests.laws` has new ones.

The gate holds a law against a fourth of its specs.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.helpers.extent import gate
from tests.laws.book import LAWS
from tests.laws.law import Data, Law, hold


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=lambda law: str(law.name))
def test_a_law_holds(law: Law) -> None:
    for data in law.always:
        assert hold(law, data).failures == ()

    @settings(
        max_examples=gate(max(2, law.tested // 4), everything=law.tested),
        deadline=None,
        # Specs are small: to shrink one takes minutes, and tells little more.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(law.specs)
    def holds(data: Data) -> None:
        assert hold(law, data).failures == ()

    holds()
