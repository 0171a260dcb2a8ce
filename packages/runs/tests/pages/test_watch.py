# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The live page over HTTP: new lines and new runs appear, and strangers are refused."""

import contextlib
import json
import threading
import urllib.error
import urllib.request

import pytest

from dovetail_runs import Run, Watch, find


@pytest.fixture
def folder(tmp_path):
    with Run(tmp_path / "first").launch() as launch:
        launch.write(0, {"loss": 2.5})
    return tmp_path


@contextlib.contextmanager
def served(runs):
    with Watch(runs, every_s=1.0) as watch:
        thread = threading.Thread(target=watch.serve)
        thread.start()
        try:
            yield watch.address
        finally:
            watch.stop()
            thread.join()


def get(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_the_page_its_library_and_its_content(folder):
    with served(lambda: find(folder).runs) as address:
        status, kind, body = get(address)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert b'data-every="1"' in body
        status, kind, body = get(address + "plotly.js")
        assert (status, kind, b"Plotly" in body) == (200, "text/javascript", True)
        assert get(address + "etc/passwd")[0] == 404


@pytest.mark.capability("a live page of runs, from their files")
def test_new_lines_and_new_runs_appear(folder):
    with served(lambda: find(folder).runs) as address:
        with Run(folder / "first").launch() as launch:
            launch.write(1, {"loss": 1.5})
        with Run(folder / "second").launch() as launch:
            launch.write(0, {"loss": 3.5})
        content = json.loads(get(address + "content.json?again")[2])
    assert content["runs"] == ["first", "second"]
    assert [line["raw"] for line in content["charts"][0]["lines"]] == [
        [[0, 1], [2.5, 1.5]],
        [[0], [3.5]],
    ]


def test_a_page_of_elsewhere_cannot_read_it_under_another_name(folder):
    with served(lambda: find(folder).runs) as address:
        status, _, body = get(address, Host="attacker.example")
        assert (status, body) == (403, b"only 127.0.0.1 is served\n")
        port = address.rpartition(":")[2].strip("/")
        assert get(address + "content.json", Host=f"localhost:{port}")[0] == 200


def test_a_run_that_cannot_be_read_is_named_and_the_server_lives(folder):
    run = {"first": Run(folder / "first")}
    stored = (folder / "first" / "run.json").read_text()
    with served(lambda: run) as address:
        (folder / "first" / "run.json").write_text("{")
        status, _, body = get(address + "content.json")
        assert status == 500
        assert b"must be JSON with settings, got a damaged file" in body
        (folder / "first" / "run.json").write_text(stored)
        assert get(address + "content.json")[0] == 200
