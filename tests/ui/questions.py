"""Questions that tests ask the page, and the messages that come back."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

Fields = dict[str, Any]

SMALL: Fields = {
    "model": "gpt-1.3b",
    "cluster": {"topology": "dgx-h100", "count": 1},
    "framework": "megatron",
    "training": {"seq_len": 2048, "global_batch": 64},
}
"""A spec that is solved in a tenth of a second."""

TIGHT: Fields = {
    "model": "llama3-70b",
    "cluster": {"topology": "dgx-a100"},
    "framework": "megatron",
    "training": {"seq_len": 4096, "global_batch": 128},
    "pins": {"zero": 0},
}
"""A spec that no plan fits."""


def ask(client: TestClient, spec: Fields, **more: Any) -> list[Fields]:
    """Return the messages that answer a question."""
    response = client.post("/api/solve", json={"spec": spec, **more})
    assert response.status_code == 200, response.text
    return messages(response.text)


def messages(text: str) -> list[Fields]:
    return [json.loads(line) for line in text.splitlines()]


def of_kind(told: list[Fields], kind: str) -> Fields:
    """Return the last message of a kind."""
    return [message for message in told if message["kind"] == kind][-1]
