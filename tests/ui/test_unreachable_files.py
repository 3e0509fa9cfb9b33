"""No text that is sent to the page reaches the files of the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from meshwright import catalog
from meshwright.ui.choices import choices
from meshwright.ui.pasted import paste
from meshwright.ui.question import read_question
from tests.ui.questions import SMALL, Fields

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "data" / "config.json"
TOPO = ROOT / "tests" / "data" / "topo.txt"
TOPOLOGY = ROOT / "topologies" / "h100-nvlink-2.yaml"

PATHS = (
    *("/etc/passwd", "../../etc/passwd", "./config.json", "~/.ssh/id_rsa", "/", "."),
    *(str(CONFIG), str(CONFIG.parent), str(TOPO), str(TOPOLOGY), "file:///etc/passwd"),
)
"""Some of them are there, and hold what the field takes."""


def specs_with(path: str) -> Iterator[Fields]:
    """Yield specs in which a path stands wherever a name or a file may."""
    gpu: dict[str, Any] = {"preset": path}
    for model in (path, {"preset": path}, {"hf_config": path}):
        yield {**SMALL, "model": model}
    topologies = (path, {"preset": path}, {"preset": "dgx-h100", "gpu": path})
    for topology in (*topologies, {"preset": "dgx-h100", "gpu": gpu}):
        for field in ("topology", "machine"):
            yield {**SMALL, "cluster": {field: topology}}
            parts = [{field: topology}, {field: "dgx-a100"}]
            join = {"name": "spine", "gb_s": 10, "latency_us": 5}
            yield {**SMALL, "cluster": {"parts": parts, "join": join}}
    yield {**SMALL, "cluster": path}
    both = {"machine": path, "topology": "dgx-h100"}
    yield {**SMALL, "cluster": both}
    yield {**SMALL, "cluster": {"machine": "dgx-h100", "topology": path}}
    for kind in ("nvidia_smi", "nccl_xml", "hwloc", "slurm", "ibnetdiscover"):
        yield {**SMALL, "cluster": {kind: path, "gpu": "h100-sxm-80gb"}}
        yield {**SMALL, "cluster": {kind: path, "machine": "dgx-h100"}}


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """List the files that are opened or looked for outside the package."""
    found: list[str] = []
    is_on = [True]
    own = {str(catalog.folder(kind)) for kind in ("topologies", "specs", "profiles")}

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        watched = ("open", "os.listdir", "os.scandir", "os.chdir", "subprocess.Popen")
        if not is_on[0] or event not in watched or not arguments:
            return
        path = str(arguments[0])
        if not any(path.startswith(folder) for folder in own):
            found.append(path)

    sys.addaudithook(listen)
    yield found
    is_on[0] = False


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_a_spec_is_refused(
    client: TestClient, path: str, opened: list[str]
) -> None:
    read_question({"spec": SMALL})  # So that everything is imported.
    for spec in specs_with(path):
        opened.clear()
        answer = client.post("/api/solve", json={"spec": spec})
        assert answer.status_code == 422, spec
        edits = [[name, spec[name]] for name in ("model", "cluster")]
        body = {"spec": SMALL, "edits": edits}
        assert client.post("/api/solve", json=body).status_code == 422, spec
        named = [own for own in opened if own.endswith(path) or own in PATHS]
        assert named == []


@pytest.mark.parametrize("path", [str(CONFIG), "/etc/passwd"])
def test_a_path_that_is_pasted_is_text(client: TestClient, path: str) -> None:
    spec = f"model: {path}\ncluster: dgx-h100\ntraining: {{seq_len: 8}}\n"
    for text in (path, spec, f"# sbatch\ntorchrun --config {path}\n"):
        answer = client.post("/api/paste", json={"spec": SMALL, "text": text})
        assert answer.status_code == 422


def test_files_beside_a_pasted_launch_are_not_read(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests" / "data")
    text = (ROOT / "tests" / "data" / "imports" / "deepspeed.1.txt").read_text()
    spec = read_question({"spec": SMALL}).spec
    paste(text, SMALL, spec, None)
    opened.clear()
    paste(text, SMALL, spec, None)
    package = str(ROOT / "solver")
    assert [own for own in opened if not own.startswith(package)] == []


@pytest.mark.parametrize(
    "name",
    ["../app.py", "..%2fapp.py", "%2e%2e%2fapp.py", "/etc/passwd", "play.html", "x"],
)
def test_only_files_of_the_page_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/files/{name}").status_code == 404


def test_every_bundled_spec_can_be_asked() -> None:
    for name, fields in choices()["specs"].items():
        assert read_question({"spec": fields}).spec.cluster.gpus > 0, name
