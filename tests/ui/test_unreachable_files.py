"""No text that is sent to the page reaches the files of the machine."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from starlette.testclient import TestClient

from meshwright.deadline import Interrupt
from meshwright.errors import MeshwrightError, SpecError
from meshwright.imports.registry import kinds
from meshwright.ui import app as app_module
from meshwright.ui.answering import Message, answer
from meshwright.ui.app import Settings, create_app
from meshwright.ui.page_files import choices
from meshwright.ui.pool import END, Job, Pool, Tell
from meshwright.ui.question import paste, read_question
from tests.helpers.watched_files import watched_files
from tests.ui.every_field import names, others_with, spec_with
from tests.ui.questions import SMALL, Fields, ask, of_kind

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "data" / "config.json"
TOPO = ROOT / "tests" / "data" / "topo.txt"
TOPOLOGY = ROOT / "topologies" / "h100-nvlink-2.yaml"

PATHS = (
    *("/etc/passwd", "../../etc/passwd", "./config.json", "~/.ssh/id_rsa", "/", "."),
    *(str(CONFIG), str(CONFIG.parent), str(TOPO), str(TOPOLOGY), "file:///etc/passwd"),
)
"""Some of them are there, and hold what the field takes."""

Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

SECRET = "correct-horse-battery"


def specs_with(path: str) -> Iterator[Fields]:
    """Yield specs in which a path stands beside what makes it a file to be read."""
    gpu: dict[str, Any] = {"preset": path}
    for model in (path, {"preset": path}, {"hf_config": path}):
        yield {**SMALL, "model": model}
    topologies = (path, {"preset": path}, {"preset": "dgx-h100", "gpu": path})
    for topology in (*topologies, {"preset": "dgx-h100", "gpu": gpu}):
        for field in ("topology", "machine"):
            yield {**SMALL, "cluster": {field: topology}}
            yield {**SMALL, "cluster": {"choices": [{field: topology}]}}
            parts = [{field: topology}, {field: "dgx-a100"}]
            join = {"name": "spine", "gb_s": 10, "latency_us": 5}
            yield {**SMALL, "cluster": {"parts": parts, "join": join}}
    yield {**SMALL, "cluster": path}
    yield {**SMALL, "cluster": {"choices": [path, {"topology": "dgx-h100"}]}}
    both = {"machine": path, "topology": "dgx-h100"}
    yield {**SMALL, "cluster": both}
    yield {**SMALL, "cluster": {"machine": "dgx-h100", "topology": path}}
    for kind in kinds("machines", "fabrics"):
        yield {**SMALL, "cluster": {kind: path, "gpu": "h100-sxm-80gb"}}
        yield {**SMALL, "cluster": {kind: path, "machine": "dgx-h100"}}


class InProcess(Pool):
    """Answers where the question comes in, so that its files can be watched."""

    def __init__(self, workers: int, most_queued: int) -> None:
        super().__init__(0, most_queued)

    def submit(self, task: dict[str, Any], tell: Tell) -> Job:
        def send(message: Message) -> None:
            tell(message["kind"], json.dumps(message).encode() + b"\n")

        try:
            answer(task, send, Interrupt())
        except MeshwrightError as error:
            send({"kind": "failed", "text": str(error)})
        tell(END, b"")
        return Job(task, tell)


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    """Return the page, with its answers from this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "Pool", InProcess)
        app = create_app(Settings(workers=0))
        with TestClient(app, base_url="http://127.0.0.1:8321") as found:
            yield found


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a YAML file whose content nobody may learn."""
    path = tmp_path_factory.mktemp("home") / "private.yaml"
    path.write_text(f"{SECRET}: 1\nname: {SECRET}\nlevels: []\n")
    return str(path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """List the files that are opened or looked for outside the package."""
    read_question({"spec": SMALL})  # So that everything is imported.
    with watched_files(monkeypatch) as found:
        yield found


def test_files_elsewhere_are_noticed(opened: list[str], secret: str) -> None:
    assert os.path.isfile(secret)
    Path(secret).read_text()
    assert opened == [secret] * 2
    read_question({"spec": {**SMALL, "model": "llama3-8b"}})
    assert opened == [secret] * 2


def test_no_field_of_a_spec_opens_a_file(
    page: TestClient, secret: str, opened: list[str]
) -> None:
    known = {step for place in names() for step in place}
    files = {"hf_config", *kinds("machines", "fabrics")}
    assert {"choices", "parts", "preset", "that", "machine", *files} <= known
    alone = (spec_with(place, secret) for place in names())
    for spec in (*alone, *others_with(secret)):
        told = page.post("/api/solve", json={"spec": spec, "wanted": "files"})
        assert told.status_code in (200, 422), spec
        assert opened == [], spec
        assert SECRET not in told.text, spec


def test_no_edit_and_no_pasted_spec_opens_a_file(
    page: TestClient, secret: str, opened: list[str]
) -> None:
    choice = ("cluster", "choices", 0, "topology")
    once = [name for name in names() if name[:2] != choice[:2] or name == choice]
    for place in once:
        text = yaml.dump(spec_with(place, secret), Dumper=Dumper)
        path = ".".join(map(str, place))
        edited = {"spec": SMALL, "wanted": "files", "edits": [[path, secret]]}
        pasted = {"spec": SMALL, "text": text, "gpu": secret}
        for route, body in (("/api/solve", edited), ("/api/paste", pasted)):
            told = page.post(route, json=body)
            assert told.status_code in (200, 422), place
            assert opened == [], place
            assert SECRET not in told.text, place


def test_no_answer_to_texts_that_are_paths_opens_a_file(
    page: TestClient, secret: str, opened: list[str]
) -> None:
    """Titles may be paths: nothing that is made of them is one."""
    model = {"preset": "gpt-1.3b", "name": secret}
    gpu = {"preset": "h100-sxm-80gb", "name": secret}
    topology = {"preset": "dgx-h100", "name": secret, "gpu": gpu}
    rules = [{"that": "tp <= 8", "name": "mine", "because": secret}]
    spec = {**SMALL, "model": model, "cluster": {"topology": topology}}
    spec["rules"] = rules
    plan = of_kind(ask(page, spec), "answer")["plan"]
    for more in (
        {"wanted": "report"},
        {"wanted": "map", "plans": [plan]},
        {"wanted": "files", "plan": plan, "to": "trace"},
        {"wanted": "files", "plan": plan, "to": "megatron"},
        {"wanted": "files", "plan": plan, "to": secret},
        {"wanted": "files", "plan": {**plan, "framework": secret}},
        {"carried": {"schedule": secret}},
    ):
        told = ask(page, spec, **more)
        for message in told:
            if message["kind"] == "file" and message["name"].endswith(".zip"):
                with ZipFile(BytesIO(b64decode(message["base64"]))) as zipped:
                    names = zipped.namelist()
                assert all(PurePosixPath(name).name == name for name in names)
            assert "/" not in message.get("name", "")
        assert opened == [], more


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_a_spec_is_refused(path: str, opened: list[str]) -> None:
    for spec in specs_with(path):
        with pytest.raises(SpecError):
            read_question({"spec": spec})
        assert opened == [], spec


def test_a_path_in_an_edit_is_refused(opened: list[str]) -> None:
    for spec in specs_with(str(CONFIG)):
        edits = [[name, spec[name]] for name in ("model", "cluster")]
        with pytest.raises(SpecError):
            read_question({"spec": SMALL, "edits": edits})
        assert opened == [], spec


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "/etc/passwd"}, "model"),
        ({"model": {"hf_config": "/etc/passwd"}}, "model.hf_config"),
        ({"cluster": "/etc/passwd"}, "cluster.topology"),
        (
            {"cluster": {"choices": [{"topology": "/etc/passwd"}]}},
            "cluster.choices.0.topology",
        ),
        ({"cluster": {"nccl_xml": "/etc/passwd"}}, "cluster.nccl_xml"),
    ],
)
def test_a_refused_path_says_what_is_accepted(
    page: TestClient, change: Fields, field: str
) -> None:
    told = page.post("/api/solve", json={"spec": {**SMALL, **change}})
    error = told.json()["error"]
    assert error.startswith(f"fields: {field}: '/etc/passwd'"), error
    assert "the page takes names of bundled files" in error
    assert "paste what a file has" in error


@pytest.mark.parametrize("path", [str(CONFIG), "/etc/passwd"])
def test_a_path_that_is_pasted_is_text(client: TestClient, path: str) -> None:
    spec = f"model: {path}\ncluster: dgx-h100\ntraining: {{seq_len: 8}}\n"
    for text in (path, spec, f"# sbatch\ntorchrun --config {path}\n"):
        answer = client.post("/api/paste", json={"spec": SMALL, "text": text})
        assert answer.status_code == 422


def test_a_gpu_of_a_pasted_text_is_no_file(
    page: TestClient, secret: str, opened: list[str]
) -> None:
    text = TOPO.read_text() + f"\nGPU 0: {secret} (UUID: GPU-1)\n"
    opened.clear()
    told = page.post("/api/paste", json={"spec": SMALL, "text": text})
    assert told.status_code == 422
    assert "does not say which GPU it is" in told.json()["error"]
    assert opened == []


def test_files_beside_a_pasted_launch_are_not_read(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests" / "data")
    text = (ROOT / "tests" / "data" / "imports" / "deepspeed.1.txt").read_text()
    spec = read_question({"spec": SMALL}).spec
    opened.clear()
    paste(text, SMALL, spec, None)
    assert opened == []


@pytest.mark.parametrize(
    "name",
    ["../app.py", "..%2fapp.py", "%2e%2e%2fapp.py", "/etc/passwd", "play.html", "x"],
)
def test_only_files_of_the_page_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/files/{name}").status_code == 404


def test_every_bundled_spec_can_be_asked() -> None:
    for name, fields in choices()["specs"].items():
        assert read_question({"spec": fields}).spec.cluster.gpus > 0, name
