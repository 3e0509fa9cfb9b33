"""Runs of one spec are priced together, and get what each of them gets alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from meshwright.calibration.responses import Response, responses_of
from meshwright.frameworks.base.switches import SWITCH
from tests.calibration.synthetic import PROFILE, site

SAID = frozenset(SWITCH) - {"gradients", "loss_chunks"}


def test_runs_among_others_respond_as_they_do_alone() -> None:
    flat, _, deep, *_ = (replace(one, said=SAID) for one in site()[0])
    chunked = replace(flat, spec=flat.spec.having("training", loss_chunks=8))
    runs = [flat, chunked, deep, replace(flat, said=SAID | {"gradients"})]
    together = responses_of(runs, PROFILE)
    for run, response in zip(runs, together, strict=True):
        (alone,) = responses_of([run], PROFILE)
        for field in fields(Response):
            found, expected = (getattr(one, field.name) for one in (response, alone))
            np.testing.assert_equal(found, expected, err_msg=field.name)
