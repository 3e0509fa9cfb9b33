"""Bundled models are what their config.json files say, and new rows are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import models

CONFIG = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
"""Of huggingface.co/Qwen/Qwen3-0.6B, cut to the fields that say its shape."""


def printed(
    hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], **changed: object
) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG | changed))
    models.main([f"{hub}={file}"])
    return capsys.readouterr().out


def test_a_bundled_model_is_held_against_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = "Qwen/Qwen3-0.6B"
    assert "as qwen3-0.6b has it" in printed(hub, tmp_path, capsys)
    told = printed(hub, tmp_path, capsys, rope_theta=10_000)
    assert "details.rope_theta: 1000000.0, and 10000.0 in config.json" in told


def test_a_row_is_written_under_the_family_that_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed("me/small", tmp_path, capsys, num_hidden_layers=20)
    assert "  qwen3: ['me/small', 20, 1024, 16, 8, 3072, True, 1000000.0, None]" in told
    told = printed("me/small", tmp_path, capsys, attention_bias=True)
    assert "no family agrees" in told


@pytest.mark.parametrize("argument", ["config.json", "me/small=missing.json"])
def test_other_arguments_are_refused(argument: str) -> None:
    with pytest.raises(SystemExit, match=r"HUB=FILE|missing\.json"):
        models.main([argument])
