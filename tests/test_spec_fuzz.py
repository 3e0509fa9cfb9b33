"""Whatever is fed to the reader, the answer is data, a spec, or a SpecError."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.errors import SpecError
from meshwright.spec.load import load_spec
from meshwright.spec.source import parse_yaml
from tests.command import SPEC

PRESETS = """\
model: {preset: llama3-8b, n_layers: 16}
cluster: {topology: {preset: dgx-h100, gpu: h200-sxm-141gb}, count: 4}
training: {seq_len: 4096, global_batch: 64}
limits: {memory_margin: 0.1, tp_min_link_gb_s: 100 GB/s}
pins:
  tp: [2, 4]
  recompute_layers: [1, 2]
  layers: [8, 8]
  mesh: {tp: [4, 1]}
"""
GRAPH = SPEC.replace(
    "    levels:\n      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}\n",
    "    nodes: [{name: a}, {name: b, host: 1}, {name: s, kind: switch}]\n"
    "    links:\n"
    "      - {between: [a, s], gb_s: 9, latency_us: 1}\n"
    "      - {between: [b, s], gb_s: 9, latency_us: 1}\n",
)

FRAGMENTS = [
    "{", "}", "[", "]", ":", ": ", "- ", "? ", "\n", "\n  ", "\t", ",", "#", "&a ",
    "*a", "!!int ", "!!set ", "!", "|", ">", "%", "@", "`", "'", '"', "---\n", "...\n",
    "<<: ", "~", "null", "yes", ".nan", ".inf", "1e400", "-1", "0", "0x_", "0b_", "010",
    "1:30", "9" * 30, "9" * 5_000, "2024-01-01", "2024-99-99", "1_0.5", "._",
    "5 parsec", "GiB", "preset", "model", "nodes", "levels", "layers", "mesh", "min",
    "values", "\0", "\x85", "\u2028", "\ufeff", "\U0001f600", "\\ud800", '"\\ud800"',
    '"\\0"', "name", "count",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Return a good spec with a few pieces cut out, doubled, or put in."""
    text = draw(st.sampled_from([SPEC, PRESETS, GRAPH]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.sampled_from([0, 0, 1, 3, 20])))
        piece = draw(
            st.sampled_from(FRAGMENTS) | st.text(max_size=5) | st.just(text[start:stop])
        )
        text = text[:start] + piece + text[stop:]
    return text


@st.composite
def replaced(draw: st.DrawFn) -> str:
    """Return a good spec with the value of one field replaced."""
    lines = draw(st.sampled_from([SPEC, PRESETS, GRAPH])).splitlines()
    index = draw(st.integers(0, len(lines) - 1))
    field = lines[index].partition(":")[0]
    scalar = st.sampled_from([f for f in FRAGMENTS if f.isprintable()])
    value = draw(
        scalar
        | st.lists(scalar, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.tuples(scalar, scalar).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}")
    )
    lines[index] = f"{field}: {value}"
    return "\n".join(lines)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80) | mutated() | replaced())
@example("a: !!bool maybe")
@example("a: !!timestamp x")
@example("a: 0x_")
@example('a: "\\ud800"')
@example("a: \ud800")
@example("%YAML 3.0\n---\na: 1")
def test_reading_any_text_gives_data_or_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        document = parse_yaml(text, "text")
        assert all(where.line > 0 for where in document.places.values())


@settings(max_examples=300, deadline=None)
@given(mutated() | replaced())
def test_loading_any_spec_gives_a_spec_or_a_spec_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_bytes(text.encode(errors="surrogatepass"))
        with contextlib.suppress(SpecError):
            assert load_spec(str(path)).title


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["tp", "layers", "mesh", "recompute_layers", "schedule", "zero"]),
    st.text(max_size=20)
    | st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
)
def test_pinning_any_text_gives_a_spec_or_a_spec_error(field: str, text: str) -> None:
    with contextlib.suppress(SpecError):
        load_spec("llama3-8b-2xh100-nvlink", [f"{field}={text}"])
