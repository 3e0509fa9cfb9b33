"""Requests that nobody meant are refused with a sentence: never a fault of ours."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.ui.questions import SMALL

JSON = {"content-type": "application/json"}

SCALARS: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e308, 2**80, 0.5, "", "x", "/etc/passwd", "\ud800", "tp"),
    *("\x00", "a" * 5000, "2%", "dgx-h100", [], {}, [[]], {"preset": 3}, {"": {}}),
)

NAMES = ("model", "cluster", "training", "pins", "limits", "rules", "run", "objective")


def anything(random: random.Random, depth: int = 0) -> Any:
    if depth > 4 or random.random() < 0.4:
        return random.choice(SCALARS)
    if random.random() < 0.5:
        return [anything(random, depth + 1) for _ in range(random.randrange(4))]
    keys = [*NAMES, "preset", "topology", "gpu", "count", "that", "tp", "spec"]
    return {
        random.choice(keys): anything(random, depth + 1)
        for _ in range(random.randrange(4))
    }


def changed(random: random.Random) -> Any:
    """Return a request in which something is wrong."""
    body: Any = {"spec": json.loads(json.dumps(SMALL))}
    if random.random() < 0.5:
        node: Any = body["spec"]
        name = random.choice(NAMES)
        if random.random() < 0.5 and isinstance(node.get(name), dict):
            node, name = node[name], random.choice([*node[name], "other"])
        node[name] = anything(random)
    elif random.random() < 0.5:
        body["edits"] = random.choice(
            [anything(random), [[anything(random), anything(random)]]]
        )
    else:
        body = anything(random)
    if isinstance(body, dict) and random.random() < 0.2:
        body[random.choice(["wanted", "text", "job", "gpu"])] = anything(random)
    return body


@pytest.mark.slow
def test_no_request_is_a_fault(client: TestClient) -> None:
    chance = random.Random(20)
    statuses = set()
    for _ in range(1000):
        path = chance.choice(["/api/paste", "/api/paste", "/api/stop", "/api/solve"])
        body = changed(chance)
        if path == "/api/solve" and isinstance(body, dict):
            body["wanted"] = "nothing" if "spec" in body else body.get("wanted")
        if path == "/api/paste" and isinstance(body, dict):
            body.setdefault("text", chance.choice(["x: 1", "model: gpt2-xl", "{"]))
        content = json.dumps(body)
        if chance.random() < 0.2:
            content = content[: chance.randrange(len(content) + 1)]
        response = client.post(path, content=content, headers=JSON)
        assert response.status_code < 500, (path, content, response.text)
        statuses.add(response.status_code)
        assert "Traceback" not in response.text
    assert {200, 400, 422} <= statuses


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b"1", b"NaN", b'{"spec": NaN}', b"null"),
        *(b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000),
    ],
)
@pytest.mark.parametrize("path", ["/api/solve", "/api/stop", "/api/paste"])
def test_what_is_no_object_is_refused(
    client: TestClient, path: str, content: bytes
) -> None:
    response = client.post(path, content=content, headers=JSON)
    assert response.status_code == 400


def test_deep_and_long_specs_are_refused(client: TestClient) -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    wide = {"rules": [1] * 50_000}
    for spec in (deep, wide):
        answer = client.post("/api/solve", json={"spec": spec})
        assert answer.status_code == 422
        assert "expected at most" in answer.json()["error"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/solve").status_code == 405


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".".join(["a"] * 5_000), 1),
        ("training" + "[0]" * 5_000, 1),
        (".".join(["a"] * 41), 1),
        (".".join(["a"] * 30), {"a": {"a": {"a": {"a": [[[[[[[[]]]]]]]]}}}}),
    ],
)
def test_a_long_path_of_an_edit_is_refused(
    client: TestClient, path: str, value: Any
) -> None:
    body = {"spec": SMALL, "edits": [[path, value]]}
    told = client.post("/api/solve", json=body)
    assert told.status_code == 422
    assert "expected at most 40" in told.json()["error"]


@pytest.mark.parametrize("levels", [200, 900])
@pytest.mark.parametrize("name", ["plan", "carried", "plans", "job", "text", "gpu"])
def test_deep_values_beside_the_spec_are_refused(
    client: TestClient, name: str, levels: int
) -> None:
    """A process of the pool was lost for good: pickle could not send it such a task."""
    deep = '{"a":' * levels + "1" + "}" * levels
    value = f"[{deep}]" if name == "plans" else deep
    body = f'{{"spec": {json.dumps(SMALL)}, "{name}": {value}}}'
    for path in ("/api/solve", "/api/stop", "/api/paste"):
        told = client.post(path, content=body, headers=JSON)
        assert told.status_code == 400
        assert "levels of nesting" in told.json()["error"]
