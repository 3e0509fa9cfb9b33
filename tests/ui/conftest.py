"""One server for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="needs the extra [ui]")

from starlette.testclient import TestClient

from meshwright.ui.app import Settings, create_app


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    app = create_app(Settings(workers=2, most_queued=64))
    with TestClient(app, base_url="http://127.0.0.1:8321") as found:
        yield found
