"""Files that are not a spec at all: each is refused at once, with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.loading.load import load_spec
from meshwright.spec.model import Model
from tests.helpers.command import refusal

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
"""A billion values by anchors of anchors."""

TEXTS = {
    "empty": ("", ": empty; expected YAML fields"),
    "only comments": ("# nothing\n\n", ": empty; expected YAML fields"),
    "a number": ("5", ":1: 5: expected a spec with model, cluster and training"),
    "a script": ("#!/bin/sh\nset -e\n" + "run it\n" * 99,
                 ":2: text alone; expected YAML fields"),
    "a list": ("[1, 2]", ":1: [1, 2]: expected a spec with model"),
    "no fields": ("{}", ":1: model: missing; expected a name, or a mapping with"),
    "prose": ("train it fast", ":1: 'train it fast': expected a spec with model"),
    "open bracket": ("a: 1\nb: [1", ":2: not valid YAML: "),
    "open quote": ("a: 'b\n", ":1: not valid YAML: "),
    "tabs": ("a:\n\tb: 1", ":2: not valid YAML: "),
    "control character": ("a: 1\nb: \x01", ":2: not valid YAML: "),
    "two documents": ("a: 1\n---\nb: 2", ":2: a second document starts; expected one"),
    "billion laughs": (LAUGHS, ":1: expected at most 20,000 values"),
    "deep lists": ("[" * 100_000, ":1: expected at most 40 levels of nesting"),
    "deep mappings": ("{" * 100_000, ":1: expected at most 40 levels of nesting"),
    "deep dashes": ("- " * 100_000, ":1: expected at most 40 levels of nesting"),
    "deep keys": ("? " * 100_000, ":1: expected at most 40 levels of nesting"),
    "many values": (f"a: [{'1,' * 300_000}]", ":1: expected at most 20,000 values"),
    "huge": ("a: " + "x" * 2_000_000, ": expected at most 1,000,000 bytes"),
    "itself": ("a: 1\nb: &b [*b]", ":2: expected at most 40 levels of nesting"),
    "unknown alias": ("a: *b", ":1: not valid YAML: "),
    "twice": ("a: 1\na: 2", ":2: a: already given at "),
    "twice below": ("a: {b: 1,\n b: 2}", ":2: a.b: already given at "),
    "list as key": ("? [a]\n: b", ":1: a key is a list or mapping; expected text"),
    "python tag": ("a: !!python/object/apply:os.getcwd []", ":1: the tag 'tag:"),
    "broken number tag": ("a: !!int ''", ":1: the tag 'tag:yaml.org,2002:int': "),
    "three wrong sections": ("model: [a]\ncluster: 5\ntraining: x",
                             ":1: model: ['a']: expected a name, or a mapping"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_text_that_is_no_spec_is_refused(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    message = refusal(str(path))
    assert message.startswith(f"{path}{expected}")
    assert len(message) < 1_300


def test_tabs_get_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("a:\n\tb: 1")
    assert refusal(str(path)).endswith("; indent with spaces, not with tabs")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", ": a picture; expected a YAML file"),
        (b"%PDF-1.7\n%\xe2\xe3", ": a PDF; expected a YAML file"),
        (b"\xfe\xfe\xfe\xfe", ":1: byte 0 is not UTF-8 text; expected a YAML file"),
        (b"a: 1\nb: caf\xe9\n", ":2: byte 11 is not UTF-8 text; expected a YAML file"),
        (b"a: 1\x00", ":1: not valid YAML: "),
        (
            "model: x\n".encode("utf-16-le"),
            ": UTF-16 without a byte order mark; expected a YAML file in UTF-8",
        ),
        (b"\xff\xfea", ":1: byte 2 is not UTF-16 text; expected a YAML file"),
    ],
    ids=["image", "PDF", "bytes", "latin-1", "zero byte", "UTF-16LE", "half"],
)
def test_bytes_that_are_no_text_are_refused(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    assert refusal(str(path)).startswith(f"{path}{expected}")


def test_utf16_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    # What PowerShell's `>` and Notepad's "Unicode" write.
    text = "model: gpt2-xl\r\ncluster: h100-nvlink-2\r\n" + TRAINING
    path = tmp_path / "spec.yaml"
    for encoding in ("utf-16", "utf-8-sig"):
        path.write_bytes(text.encode(encoding))
        assert load_spec(str(path)) == load_spec(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no/such.yaml", "'no/such.yaml': no such file; expected a YAML file"),
        ("dgx-h100.yaml", "'dgx-h100.yaml': no such file; expected a YAML file"),
        ("folder", "'folder': is a folder; expected a YAML file"),
        (".", "'.': is a folder; expected a YAML file"),
        ("", "'' is neither a file nor a bundled name; bundled: gpt-1.3b-2x3090"),
        ("x" * 5_000, f"{'x' * 60!r}... is neither a file nor a bundled name; bundled"),
        ("x/" * 5_000, f"{'x/' * 30!r}...: no such file; expected a YAML file"),
        ("a\0b", r"source: 'a\x00b': expected text without zero bytes"),
        ("llama3-8b-2xh100", "'llama3-8b-2xh100' is neither a file nor a bundled name; "
                             "did you mean llama3-8b-2xh100-nvlink"),
        ("llama3-8b-2xh100-nvlink.yaml", "'llama3-8b-2xh100-nvlink.yaml': no such "
         "file; expected a YAML file or a bundled name such as llama3-8b-2xh100"),
    ],
)  # fmt: skip
def test_a_spec_that_is_not_there_is_refused(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert refusal(name).startswith(expected)


TRAINING = "training: {seq_len: 1024, global_batch: 8}\n"

NAMES = {
    "model": ("model: llama3-9b\ncluster: dgx-h100\n",
              "1: model: 'llama3-9b' is neither a file nor a bundled name; did you "
              "mean llama3-8b or"),
    "topology": ("model: llama3-8b\ncluster: dgx-h10\n",
                 "2: cluster.topology: 'dgx-h10' is neither a file nor a bundled name; "
                 "did you mean dgx-h100 or"),
    "how many": ("model: llama3-8b\ncluster: RTX4090\n",
                 "2: cluster.topology: 'RTX4090' is a GPU; expected how many of them, "
                 "such as 8xRTX4090"),
    "gpu": ("model: gpt2-xl\ncluster:\n  topology:\n    preset: dgx-h100\n"
            "    gpu: h21\n",
            "5: cluster.topology.gpu: 'h21' is neither a file nor a bundled name; did "
            "you mean h20-sxm-96gb or h200-sxm-141gb"),
    "preset": ("model:\n  preset: 5\ncluster: dgx-h100\n",
               "2: model.preset: 5: expected a name or a file"),
    "file": ("model: ./mine.yaml\ncluster: dgx-h100\n",
             "1: model: './mine.yaml': no such file; expected a YAML file"),
    "folder": ("model: /\ncluster: dgx-h100\n",
               "1: model: '/': is a folder; expected a YAML file"),
    "precision": ("model: llama3-8b\ncluster:\n  topology: {preset: dgx-a100, "
                  "gpu: v100-sxm-32gb}\n",
                  "4: training.precision: 'bf16' has no peak on v100-sxm-32gb; "
                  "accepted: fp16, fp32"),
    "count": ("model: llama3-8b\ncluster:\n  topology: h100-nvlink-2\n  count: 4\n",
              "4: cluster.count: 4 copies, but 'h100-nvlink-2' has no scale_out"),
    "positions": ("model:\n  preset: gpt2-xl\n  learned_positions: 512\n"
                  "cluster: dgx-h100\n",
                  "5: training.seq_len: 1024 is above model.learned_positions"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), NAMES.values(), ids=NAMES)
def test_a_name_that_cannot_be_used_is_refused_on_its_line(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text + TRAINING, encoding="utf-8")
    assert refusal(str(path)).startswith(f"{path}:{expected}")


SHAPE = "n_layers: 8\nd_model: 512\nn_heads: 8\nd_ff: 2048\n"


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (SHAPE, "1: model.vocab: missing; expected rows of the embedding table"),
        (SHAPE + "vocab: -5\n", "5: model.vocab: -5: expected a whole number from 1"),
        (
            SHAPE + "vocab: 5\nvocabs: 5\n",
            "6: model.vocabs: unknown field; did you mean",
        ),
        (
            SHAPE + "vocab: 5\nffn: 5\n",
            "6: model.ffn: unknown field; did you mean model.d_ff?",
        ),
        ("n_layers: [", "1: not valid YAML: "),
        ("- n_layers\n", "1: ['n_layers']: expected the fields of model, as a mapping"),
        ("", " empty; expected YAML fields"),
    ],
)
def test_an_error_inside_a_preset_names_the_preset_file(
    preset: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(preset, encoding="utf-8")
    path = tmp_path / "spec.yaml"
    path.write_text(f"model: mine.yaml\ncluster: dgx-h100\n{TRAINING}")
    assert refusal(str(path)).startswith(f"{tmp_path / 'mine.yaml'}:{expected}")


def test_a_missing_section_is_told_what_it_needs_and_how_much_it_may_have(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("{}", encoding="utf-8")
    model, cluster, training = refusal(str(path)).splitlines()
    needed = (name for name, info in Model.model_fields.items() if info.is_required())
    assert f"with the fields {', '.join(needed)}, name, " in model
    assert model.endswith(f", qk_norm and {len(Model.model_fields) - 12} others")
    assert cluster.endswith("the fields parts, join, topology, count, overrides")
    assert "with the fields seq_len, global_batch, " in training
