# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The access log: an entry for each request, whatever its end; lost lines harm no request."""

import datetime
import hashlib
import json
import logging
import os
import threading
import time
from typing import Any

import httpx
import pytest
from clients import KEY, Running

from dovetail_infer.server import AccessLog

BODY: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "ignore_eos": True}
HEADERS = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine"}


class Logged:
    """A server and its entries."""

    def __init__(self, server: Running, entries: list[dict[str, Any]]) -> None:
        self.server, self.entries = server, entries
        while server.application.running:  # of an earlier test
            time.sleep(0.001)
        entries.clear()

    def entry(self, number: int = 1) -> dict[str, Any]:
        """The only entry since the last call, which may come after the answer."""
        end = time.monotonic() + 30
        while len(self.entries) < number:
            assert time.monotonic() < end
            time.sleep(0.001)
        (entry,) = self.entries[number - 1 :]
        self.entries.clear()
        return entry

    def post(self, path: str = "/v1/completions", **change: Any) -> httpx.Response:
        rest = {"json": {**BODY, **change}, "headers": HEADERS, "timeout": 60}
        return httpx.post(f"{self.server.url}{path}", **rest)


@pytest.fixture
def logged(narrow, entries) -> Logged:
    return Logged(narrow, entries)


@pytest.mark.capability("an access log")
@pytest.mark.parametrize(
    "streamed, n", [(False, 1), pytest.param(True, 2, marks=pytest.mark.thorough("two rows"))]
)
def test_an_answer_has_its_entry(logged, streamed, n):
    before = datetime.datetime.now(datetime.UTC)
    began = time.monotonic()
    logged.post(stream=streamed, n=n)
    took = time.monotonic() - began
    entry = logged.entry()
    at = datetime.datetime.fromisoformat(entry.pop("time"))
    assert before <= at + datetime.timedelta(seconds=0.001)
    assert at <= datetime.datetime.now(datetime.UTC)
    times = [entry.pop(name) for name in ("queued_s", "first_token_s", "total_s")]
    assert 0 < times[0] < times[1] <= times[2] <= took
    assert entry == {
        "request_id": "mine",
        "key": hashlib.sha256(KEY.encode()).hexdigest()[:8],
        "route": "/v1/completions",
        "model": "tiny",
        "status": 200,
        "prompt_tokens": 6,
        "drawn_tokens": 5 * n,
        "reason": "length",
    }


@pytest.mark.parametrize(
    ("path", "change", "status", "reason"),
    [
        ("/v1/completions", {"max_tokens": -1}, 400, "refused"),
        ("/v1/completions", {"prompt": "a" * 80}, 400, "context_length_exceeded"),
        ("/v1/completions", {"model": "another"}, 404, "model_not_found"),
        ("/v1/nothing", {}, 404, "refused"),
        ("/health", {}, 405, "refused"),
    ],
)
def test_a_refused_request_has_its_entry(logged, path, change, status, reason):
    assert logged.post(path, **change).status_code == status
    entry = logged.entry()
    assert (entry["route"], entry["status"], entry["reason"]) == (path, status, reason)
    assert entry["drawn_tokens"] == 0
    assert entry["first_token_s"] is None


def test_a_wrong_key_is_logged_without_it(logged):
    url = f"{logged.server.url}/v1/models"
    assert httpx.get(url, headers={"Authorization": "Bearer sk-wrong"}).status_code == 401
    entry = logged.entry()
    assert (entry["key"], entry["reason"]) == (None, "invalid_api_key")
    assert "sk-wrong" not in json.dumps(entry)
    assert httpx.get(f"{logged.server.url}/health").status_code == 200
    assert logged.entry()["route"] == "/health"


@pytest.mark.parametrize(("streamed", "status"), [(True, 200), (False, 499)])
def test_a_client_that_goes_away_has_its_entry(logged, streamed, status):
    engine = logged.server.engine
    engine.pause()
    try:
        with (
            pytest.raises(httpx.TimeoutException),
            httpx.stream(
                "POST",
                f"{logged.server.url}/v1/completions",
                json={**BODY, "stream": streamed},
                headers=HEADERS,
                timeout=0.3,
            ) as response,
        ):
            response.read()
        entry = logged.entry()
    finally:
        engine.resume()
    assert (entry["status"], entry["reason"]) == (status, "disconnect")
    assert (entry["prompt_tokens"], entry["drawn_tokens"]) == (6, 0)
    assert 0.2 < entry["total_s"] < 30


def test_lines_are_appended_as_json(tmp_path):
    file = tmp_path / "access.jsonl"
    for i in range(2):
        with AccessLog(str(file)) as log:
            log({"number": i, "text": "\n\u2028"})
    lines = file.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"number": i, "text": "\n\u2028"} for i in range(2)
    ]
    with AccessLog("-") as log:
        log({"to": "standard error"})


def test_standard_error_is_a_dash(capfd):
    with AccessLog("-") as log:
        log({"status": 200})
    assert capfd.readouterr().err == '{"status":200}\n'


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_loses_lines_and_says_so_once(caplog):
    with caplog.at_level(logging.WARNING), AccessLog("/dev/full") as log:
        for i in range(3):
            log({"number": i})
    assert log.lost == 3
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the access log loses lines"
    ]


def test_a_slow_file_holds_up_nobody():
    reader, writer = os.pipe()
    lines: list[bytes] = []

    def read() -> None:
        with os.fdopen(reader, "rb") as file:
            lines.extend(file)

    thread = threading.Thread(target=read, daemon=True)
    with AccessLog(f"/dev/fd/{writer}") as log:
        os.close(writer)
        began = time.monotonic()
        for _ in range(12_000):
            log({"text": "x" * 50})
        assert time.monotonic() - began < 20  # nobody reads the pipe, which has 64 KiB
        assert 500 < log.lost <= 2_000
        thread.start()
    thread.join(timeout=30)
    assert len(lines) == 12_000 - log.lost
    assert set(lines) == {b'{"text":"%b"}\n' % (b"x" * 50)}
