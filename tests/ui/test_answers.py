"""Answers are those of the public functions, message by message."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from queue import SimpleQueue
from typing import Any
from zipfile import ZipFile

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

import meshwright as mw
from meshwright.ui.app import KeptAnswers, Settings, create_app
from meshwright.ui.pool import Job, Pool
from tests.report.pages import data_of
from tests.ui.questions import SMALL, TIGHT, Fields, ask, messages, of_kind

SLOW = {**TIGHT, "model": "gpt3-175b", "pins": {}}
SLOW |= {"cluster": {"topology": "dgx-a100", "count": 128}}
SLOW |= {"training": {"seq_len": 2048, "global_batch": 1536}}


def test_the_answer_is_that_of_solve(client: TestClient) -> None:
    told = ask(client, SMALL)
    answer = of_kind(told, "answer")
    expected = mw.solve(mw.load(SMALL, mw.Spec), by_kind=False)
    assert expected.best is not None
    assert answer["plan"] == expected.best.plan.model_dump(mode="json")
    plan = answer["page"]["plans"][0]
    assert plan["stepS"] == pytest.approx(expected.best.step_s, rel=1e-6)
    assert told[0]["kind"] == "question"
    assert told[0]["title"] == mw.load(SMALL).title
    assert mw.load(told[0]["yaml"]).title == mw.load(SMALL).title


def test_a_slider_changes_the_answer(client: TestClient) -> None:
    first = ask(client, SMALL)
    knob = next(one for one in first[0]["knobs"] if one["name"] == "gpus")
    more = round(knob["numbers"][knob["at"] + 3] / knob["per"])
    told = ask(client, SMALL, edits=[[knob["path"], more]])
    assert told[0]["gpus"] == 8 * more
    before, now = (of_kind(one, "answer")["plan"] for one in (first, told))
    assert now["dp_replicate"] * now["dp_shard"] > (
        before["dp_replicate"] * before["dp_shard"]
    )


def test_the_plan_before_is_told_first(client: TestClient) -> None:
    plan = of_kind(ask(client, SMALL), "answer")["plan"]
    told = ask(client, SMALL, edits=[["training.global_batch", 128]], carried=plan)
    kinds = [one["kind"] for one in told]
    assert kinds.index("carried") < kinds.index("answer")
    kept = of_kind(told, "carried")["plan"]
    assert (kept["tp"], kept["pp"], kept["zero"]) == (
        plan["tp"],
        plan["pp"],
        plan["zero"],
    )


@pytest.mark.parametrize("plan", [{"tp": 10**9}, {"tp": "x"}, {"zero": []}, {"pp": -1}])
def test_a_plan_before_that_is_none_is_left_out(
    client: TestClient, plan: Fields
) -> None:
    spec = {**SMALL, "training": {"seq_len": 2048, "global_batch": 72}}
    told = ask(client, spec, carried=plan)
    assert of_kind(told, "answer")["status"] == "optimal"


def test_reasons_follow_where_none_fits(client: TestClient) -> None:
    told = ask(client, TIGHT)
    assert of_kind(told, "answer")["status"] == "infeasible"
    reasons = of_kind(told, "reasons")
    assert any("pins.zero" in rule for rule in reasons["conflict"])
    repaired = ask(client, TIGHT, edits=reasons["repairs"][0]["edits"])
    assert of_kind(repaired, "answer")["status"] == "optimal"


def test_a_pin_is_kept(client: TestClient) -> None:
    told = ask(client, SMALL, edits=[["pins.tp", 2]])
    answer = of_kind(told, "answer")
    assert answer["plan"]["tp"] == 2
    pinned = {one["name"] for one in answer["pinnable"] if one["isPinned"]}
    assert pinned == {"tp"}


def test_going_back_is_answered_at_once(client: TestClient) -> None:
    ask(client, SMALL)
    kinds = [one["kind"] for one in ask(client, SMALL)]
    assert kinds == ["question", "answer"]


@pytest.mark.parametrize(
    ("wanted", "to", "name", "begins"),
    [
        ("files", "trace", "trace.json", b"{"),
        ("report", "", "report.html", b"<!doctype html>"),
    ],
)
def test_one_file_is_made(
    client: TestClient, wanted: str, to: str, name: str, begins: bytes
) -> None:
    plan = of_kind(ask(client, SMALL), "answer")["plan"]
    told = of_kind(ask(client, SMALL, wanted=wanted, to=to, plan=plan), "file")
    assert told["name"] == name
    assert b64decode(told["base64"]).lower().startswith(begins)


@pytest.mark.parametrize("to", ["", "megatron-bridge"])
def test_files_to_launch_come_in_one(client: TestClient, to: str) -> None:
    plan = of_kind(ask(client, SMALL), "answer")["plan"]
    told = of_kind(ask(client, SMALL, wanted="files", to=to, plan=plan), "file")
    exported = mw.export(mw.load(SMALL), mw.Plan.model_validate(plan), to=to or None)
    files = {file.name: file.text for file in exported.files}
    content = b64decode(told["base64"])
    if len(files) == 1:
        assert files == {told["name"]: content.decode()}
        return
    assert told["name"] == f"{to or 'launch'}.zip"
    with ZipFile(BytesIO(content)) as packed:
        assert {one: packed.read(one).decode() for one in packed.namelist()} == files


def test_the_map_is_that_of_the_report(client: TestClient) -> None:
    answer = of_kind(ask(client, SMALL), "answer")
    told = ask(client, SMALL, wanted="map", plans=answer["known"])
    spec = mw.load(SMALL, mw.Spec)
    page = mw.html_report(spec, mw.solve(spec, by_kind=False))
    assert of_kind(told, "map")["map"] == data_of(page)["map"]


@pytest.mark.parametrize("plans", [[{}], [[]], ["x"], [None, None, None], [{"tp": 1}]])
def test_maps_around_no_plan_are_refused(client: TestClient, plans: list[Any]) -> None:
    told = ask(client, SMALL, wanted="map", plans=plans)
    assert "expected the plan of an answer" in of_kind(told, "failed")["text"]


def test_a_task_that_cannot_be_sent_fails_alone() -> None:
    """The thread of the process ended with it, and later questions had no answer."""
    told: SimpleQueue[str] = SimpleQueue()
    pool = Pool(workers=1, most_queued=4)
    try:
        for _ in range(2):
            pool.submit({"spec": lambda: 0}, lambda kind, _: told.put(kind))
            kinds = iter(lambda: told.get(timeout=20), "end")
            assert [*kinds] == ["queued", "failed"]
    finally:
        pool.close()


def test_a_client_that_leaves_before_its_answer_begins_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[Job] = []
    monkeypatch.setattr(Pool, "drop", lambda _, job: dropped.append(job))
    app = create_app(Settings(workers=1, most_queued=2))
    # A thread of its own: Playwright's loop may run in this one.
    with TestClient(app, base_url="http://localhost"), ThreadPoolExecutor(1) as thread:
        thread.submit(anyio.run, _ask_and_leave, app).result()
    assert len(dropped) == 1


async def _ask_and_leave(app: ASGIApp) -> None:
    """Ask, and be gone before the first byte of the answer."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": "/api/solve",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    body = json.dumps({"spec": SLOW}).encode()
    told = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(told, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        await anyio.sleep(10)

    await app(scope, receive, send)


@pytest.mark.parametrize(
    "more",
    [
        {"wanted": "files", "to": "nobody", "plan": {"tp": 1}},
        {"wanted": "files", "plan": {"tp": 1}},
        {"wanted": "files", "to": "trace", "plan": {}},
    ],
)
def test_files_of_no_plan_are_refused(client: TestClient, more: Fields) -> None:
    told = ask(client, SMALL, **more)
    text = of_kind(told, "failed")["text"]
    assert "fault of ours" not in text


@pytest.mark.slow
def test_fifty_at_once_are_all_answered(client: TestClient) -> None:
    def batch(number: int) -> str:
        training = {"seq_len": 1024, "global_batch": 8 * (number + 1)}
        told = ask(client, {**SMALL, "training": training})
        assert of_kind(told, "question")["spec"]["training"] == training
        return str(of_kind(told, "answer")["status"])

    with ThreadPoolExecutor(50) as threads:
        assert set(threads.map(batch, range(50))) == {"optimal"}


@pytest.mark.slow
def test_a_full_queue_says_so_and_a_solve_can_be_stopped() -> None:
    app = create_app(Settings(workers=1, most_queued=2))
    with TestClient(app, base_url="http://localhost") as client:
        ask(client, SMALL)  # The process is started.
        statuses: list[int] = []
        texts: list[str] = []

        def solve(number: int) -> None:
            training = {"seq_len": 2048, "global_batch": 1536 + number}
            spec = {**SLOW, "training": training}
            response = client.post("/api/solve", json={"spec": spec})
            statuses.append(response.status_code)
            texts.append(response.text)

        threads = [threading.Thread(target=solve, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        for job in range(20):
            client.post("/api/stop", json={"job": str(job)})
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 503}
    assert "questions wait already" in texts[statuses.index(503)]
    ends = [messages(text)[-1] for text in texts if '"kind":"question"' in text]
    assert {end["kind"] for end in ends} <= {"answer", "failed"}
    assert any(end.get("isStopped") or "stopped" in str(end) for end in ends)


def test_kept_answers_are_bounded() -> None:
    kept = KeptAnswers(most_bytes=10_000)
    for number in range(100):
        kept.keep({"number": number}, (b"x" * 900,))
    assert kept.get({"number": 99}) == (b"x" * 900,)
    assert kept.get({"number": 0}) == ()
    known = [number for number in range(100) if kept.get({"number": number})]
    assert len(known) == 10
