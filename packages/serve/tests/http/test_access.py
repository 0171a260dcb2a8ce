# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Request ids, and the lines of the access log."""

import json
import logging

import pytest

INFER = "/v2/models/mlp/infer"


@pytest.mark.thorough
def test_request_ids_are_echoed_or_made(ask):
    response = ask("GET", "/v2", headers={"X-Request-Id": "abc-1.2"})
    assert response.headers["x-request-id"] == "abc-1.2"
    made = [ask("GET", path).headers["x-request-id"] for path in ("/v2", "/nope", INFER)]
    assert len(set(made)) == 3
    for strange in ("a b", "a" * 129, "<script>"):
        response = ask("GET", "/v2", headers={"X-Request-Id": strange})
        assert response.headers["x-request-id"] != strange


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_access_log_has_a_line_for_each_response(exported, serving, caplog, style):
    caplog.set_level(logging.INFO, "dovetail_serve.access")
    with serving(exported[0], http={"access_log": style}) as served:
        served.ask_asgi("GET", "/v2/a\nforged", headers={"X-Request-Id": "the-id"})
    (record,) = [r for r in caplog.records if r.name == "dovetail_serve.access"]
    line = record.getMessage()
    assert "\n" not in line
    if style == "json":
        fields = json.loads(line)
        assert 0 <= fields.pop("microseconds") < 30e6
        assert fields == {
            "request_id": "the-id",
            "client": "-",
            "method": "GET",
            "path": "/v2/a\nforged",
            "status": 404,
        }
    else:
        assert line.startswith(r'request_id=the-id client=- method=GET path="/v2/a\nforged" status')


@pytest.mark.parametrize("style", ["text", "json"])
def test_what_a_connection_refuses_is_counted_and_logged(exported, serving, caplog, style):
    caplog.set_level(logging.INFO, "dovetail_serve.access")
    with serving(exported[0], http={"access_log": style}) as served:
        with served.connect() as client:
            client.sendall(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n")
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 505 ")
        served.until(lambda: served.application._stages.responses == {505: 1})
    (record,) = [r for r in caplog.records if r.name == "dovetail_serve.access"]
    line = record.getMessage()
    if style == "json":
        fields = json.loads(line)
        assert (fields["client"], fields["path"], fields["status"]) == ("127.0.0.1", "-", 505)
    else:
        assert 'client=127.0.0.1 method=- path="-" status=505' in line
