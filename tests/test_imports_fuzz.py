"""Whatever text is imported, the answer is facts or a SpecError, and soon."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.errors import SpecError
from meshwright.imports.registry import KINDS, PARSERS, detect
from meshwright.imports.stacking import stack
from meshwright.imports.text import MAX_CHARS
from meshwright.spec.topology import Topology
from tests.import_gpus import A100, validated
from tests.test_imports_fabric import fabric
from tests.test_imports_hosts import NODE
from tests.test_imports_nvidia_smi import LEGEND, TABBED, as_table, uniform
from tests.test_imports_rocm_smi import HIVES, WEIGHTS, block, numa
from tests.test_imports_slurm import BLOCKS, TREE, YAML, gres
from tests.test_imports_xml import BRIDGED, distances, hwloc_xml
from tests.test_nccl_tests import HEADING, ROW

GOOD = {
    "nvidia_smi": [TABBED + LEGEND, as_table([0, 1, 2, 3, 4, 5]), uniform(4, "NV4")],
    "rocm_smi": [block("weight", WEIGHTS) + block("type", HIVES) + numa("0011")],
    "nccl_xml": [BRIDGED],
    "hwloc": [hwloc_xml(distances(["OSDev:60", "OSDev:61"], [0, 9, 9, 0]))],
    "slurm": [TREE, YAML, BLOCKS],
    "slurm_gres": [gres(["-1,4,0", "4,-1,0", "0,0,-1"])],
    "scontrol": [NODE.format(gres="gpu:a100:8(S:0-1)", tres="gres/gpu=8")],
    "ibnetdiscover": [fabric()],
    "ibstat": ["VM_hostname a\n0f0000000001\nCA 'x'\nPort GUID: 0x1\n"],
    "hostfile": ["worker-1 slots=8\nworker-[2-4]\nb:2 # c\n"],
    "nccl_tests": [HEADING + ROW],
}

FRAGMENTS = [
    "\n", "\t", " ", "  ", ",", "[", "]", "[0-9]", "[0-999999999]", "|", "...", "#",
    "GPU0", "GPU999", "GPU", "X", "NV0", "NV999", "SYS", "N/A", "NIC0", "-1", "0",
    "9" * 30, "\u00b2", "\u0663", "<a>", "</a>", "<!DOCTYPE a>", "&lt;", "&a;", "<pci>",
    "<gpu/>", "<nic><net/></nic>", 'class="0x030200"', "\0", "\ud800", "\ufeff",
    "\x1b[4m", "XGMI", "====== Hops between two GPUs ======", "Links=", "Nodes=",
    "Switches=s0", "SwitchName=", "BlockSizes=8", "NodeName=", "Gres=gpu:", "Name=gpu",
    "Count=9G", "- topology:", "{", ":", '"S-1"[1]', "Switch 1 ", "4xHDR", "slots=",
    "\\t", "\\n", "\u2028", "\u2026",
]  # fmt: skip


_GPUS = [{"name": f"gpu{i}"} for i in range(2)]
_NIC = {"name": "nic0", "kind": "nic"}
SWITCHED = Topology.model_validate(
    {"gpu": A100, "levels": [{"name": "nv", "size": 8, "gb_s": 300, "latency_us": 1}]}
)
ROUTED = Topology.model_validate(
    {
        "gpu": A100,
        "nodes": [*_GPUS, _NIC],
        "links": [
            {"between": [own["name"], "nic0"], "gb_s": 10, "latency_us": 1}
            for own in _GPUS
        ],
    }
)
"""Machines that imported levels are put above."""


@st.composite
def mutated(draw: st.DrawFn, kind: str) -> str:
    """Return a good file with a few pieces cut out, doubled, or put in."""
    text = draw(st.sampled_from(GOOD[kind]))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.sampled_from([0, 0, 1, 4, 40])))
        piece = draw(
            st.sampled_from(FRAGMENTS) | st.text(max_size=5) | st.just(text[start:stop])
        )
        text = text[:start] + piece + text[stop:]
    return text


def run(kind: str, text: str) -> None:
    """Import a text as far as it goes."""
    module = KINDS[kind]()
    facts = module.parse(text, "file")
    if hasattr(module, "to_topology"):
        assert validated(module.to_topology(facts, A100, "a100"), A100).gpus
    elif hasattr(module, "to_levels"):
        for machine in (SWITCHED, ROUTED):
            levels = stack(module.to_levels(facts), machine).fields["levels"]
            assert Topology.model_validate({**machine.model_dump(), "levels": levels})


def test_every_kind_has_a_good_file() -> None:
    assert set(GOOD) == set(PARSERS)
    for kind, texts in GOOD.items():
        for text in texts:
            run(kind, text)
            assert detect(text) == kind


@pytest.mark.parametrize("kind", PARSERS)
@settings(max_examples=200, deadline=2_000)
@given(data=st.data())
def test_any_text_gives_facts_or_a_spec_error(kind: str, data: st.DataObject) -> None:
    text = data.draw(
        mutated(kind)
        | st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)
        | st.text(max_size=60)
    )
    with contextlib.suppress(SpecError):
        run(kind, text)


@settings(max_examples=200, deadline=2_000)
@given(st.text(max_size=200) | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
@example("")
def test_any_text_is_of_a_kind_or_of_none(text: str) -> None:
    assert detect(text) in (*PARSERS, None)


LONG = {
    "one word": "a" * 1_000_000,
    "digits": "1" * 1_000_000,
    "blanks": " " * 1_000_000,
    "GPU rows": "GPU0 " * 200_000,
    "titles": "===== a " * 100_000,
    "keys": "NodeName=a" + " b=" * 200_000,
    "links": "Name=gpu Links=" + "-1," * 200_000,
    "brackets": "SwitchName=a Nodes=" + "[1]" * 200_000,
    "quotes": 'Switch 1 "' * 100_000,
    "open tags": "<a>" * 300_000,
    "pipes": "| GPU0 | X " * 100_000,
    "parentheses": "NodeName=a Gres=" + "gpu,(" * 100_000,
    "commas": "NodeName=a Gres=" + "," * 300_000,
    "lines": "GPU0 X\n" * 100_000,
    "escapes": "\x1b[" + "0;" * 300_000,
    "names": 'NodeName=a CfgTRES=' + "gres/gpu:" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_text_is_read_or_refused_soon(text: str) -> None:
    for kind in PARSERS:
        start = time.process_time()
        with contextlib.suppress(SpecError):
            run(kind, text)
        assert time.process_time() - start < 5, kind
    detect(text)


@pytest.mark.parametrize("kind", PARSERS)
def test_too_long_text_is_refused(kind: str) -> None:
    module = KINDS[kind]()
    most = getattr(module, "MOST_CHARACTERS", MAX_CHARS)
    with pytest.raises(SpecError, match=f"file: expected at most {most:,} characters"):
        module.parse(" " * (most + 1), "file")
