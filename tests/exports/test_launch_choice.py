"""Which plans `benchmarks.launch` takes, and what it says of runs that fail."""

from __future__ import annotations

from collections import Counter

from benchmarks.launch import Case, in_turn, some
from benchmarks.launch_specs import cases
from benchmarks.run_exported import first_error

import meshwright as mw
from meshwright.exports import TARGETS


def test_targets_are_taken_in_turn_and_no_case_twice() -> None:
    every = [*cases()]
    turned = [*in_turn(every)]
    first = turned[: len(TARGETS)]
    assert {target for _, target, _ in first} == {*TARGETS}
    names = Counter((name, target) for name, target, _ in turned)
    assert {*names.values()} == {1}
    assert len(turned) == len(every)


def test_plans_are_taken_until_so_many_are_exported() -> None:
    spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec)
    files = mw.Export(target="megatron", version="", files=())
    done = [
        Case("a", "megatron", spec),
        Case("b", "megatron", spec, files=files),
        Case("c", "megatron", spec, refused=["zero: 0"]),
        Case("d", "megatron", spec, files=files),
        Case("e", "megatron", spec, files=files),
    ]
    assert [case.name for case in some(done, 2)] == ["a", "b", "c", "d"]
    assert len([*some(done, None)]) == len(done)


def test_error_of_a_rank_is_told_and_not_torchruns() -> None:
    said = """[rank1]: AssertionError: not split
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
ChildFailedError: program.py FAILED
"""
    assert first_error(said) == "AssertionError: not split"
    assert first_error("no end") == "no end"
