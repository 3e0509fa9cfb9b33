"""Only pages of the server itself may ask it anything."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from meshwright.ui.app import Settings, create_app
from meshwright.ui.question import MOST_BYTES
from tests.ui.questions import SMALL

OWN = "http://127.0.0.1:8321"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8321", "localhost:8321", "127.0.0.1", "[::1]:8321", "LOCALHOST"]
)
def test_own_hosts_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8321", "127.0.0.1.evil.example", "10.0.0.5"),
        *("localhost@evil.example", "", "localhost:port", "[::1", "0.0.0.0"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/files/dom.js", "/api/solve", "/nowhere"])
def test_foreign_hosts_are_refused(client: TestClient, host: str, path: str) -> None:
    assert client.get(path, headers={"host": host}).status_code == 421
    asked = client.post(path, headers={"host": host}, json={"spec": SMALL})
    assert asked.status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:8321",
        "http://127.0.0.1:80",
        "",
    ],
)
def test_foreign_origins_are_refused(client: TestClient, origin: str) -> None:
    asked = client.post("/api/solve", headers={"origin": origin}, json={"spec": SMALL})
    assert asked.status_code == 403


def test_the_own_origin_is_answered(client: TestClient) -> None:
    asked = client.post("/api/stop", headers={"origin": OWN}, json={"job": "0"})
    assert asked.json() == {"stopped": False}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_across_sites_are_refused(client: TestClient, site: str) -> None:
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_only_json_is_read(client: TestClient, kind: str) -> None:
    """What a form of any page can send without asking is refused."""
    found = client.post("/api/solve", content="{}", headers={"content-type": kind})
    assert found.status_code == 415


def test_long_bodies_are_refused(client: TestClient) -> None:
    text = "x" * MOST_BYTES
    assert client.post("/api/paste", json={"text": text}).status_code == 413


def test_every_answer_has_a_policy(client: TestClient) -> None:
    for path in ("/", "/files/dom.js", "/nowhere"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_server_for_others_knows_its_addresses_alone() -> None:
    app = create_app(Settings(host="0.0.0.0"))
    client = TestClient(app, base_url="http://192.0.2.7:8321")
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
