# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Inference requests over a socket and in process: answers, refusals, clients that go away."""

import gzip
import json
import zlib

import numpy as np
import pytest

from dovetail_serve import Batching

INFER = "/v2/models/mlp/infer"
# float32 sums of at most 6 terms.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def values(response):
    """The output of a JSON response."""
    output = response.document["outputs"][0]
    return np.array(output["data"]).reshape(output["shape"])


@pytest.mark.parametrize("count", [1, 3, 11])
def test_json_rows_are_answered(ask, mlp, bodies, count):
    x = bodies.rows(count)
    response = ask("POST", INFER, bodies.json(x, id="a-1"))
    assert response.status == 200, response.body
    assert response.headers["content-type"] == "application/json"
    document = response.document
    assert (document["model_name"], document["model_version"]) == ("mlp", "2")
    assert document["id"] == "a-1"
    assert document["outputs"][0]["datatype"] == "FP32"
    np.testing.assert_allclose(values(response), mlp.expected["2"](x), **CLOSE)


@pytest.mark.capability("HTTP with JSON and binary tensors")
def test_binary_rows_are_answered_in_binary(ask, mlp, bodies):
    x = bodies.rows(5)
    body, headers = bodies.binary(x, parameters={"binary_data_output": True})
    response = ask("POST", INFER, body, headers)
    assert response.status == 200, response.body
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers["inference-header-content-length"])
    output = json.loads(response.body[:length])["outputs"][0]
    assert output == {
        "name": "y",
        "datatype": "FP32",
        "shape": [5, 3],
        "parameters": {"binary_data_size": 60},
    }
    y = np.frombuffer(response.body[length:], "<f4").reshape(5, 3)
    np.testing.assert_allclose(y, mlp.expected["2"](x), **CLOSE)


def test_an_output_overrides_the_form_of_all(ask, bodies):
    outputs = [{"name": "y", "parameters": {"binary_data": False}}]
    body = bodies.json(bodies.rows(1), outputs=outputs, parameters={"binary_data_output": True})
    response = ask("POST", INFER, body)
    assert "inference-header-content-length" not in response.headers
    assert values(response).shape == (1, 3)


@pytest.mark.parametrize("version", ["1", "2", "stable"])
def test_a_path_may_name_a_version_or_a_label(ask, mlp, bodies, version):
    x, number = bodies.rows(2), {"stable": "1"}.get(version, version)
    response = ask("POST", f"/v2/models/mlp/versions/{version}/infer", bodies.json(x))
    assert response.document["model_version"] == number
    np.testing.assert_allclose(values(response), mlp.expected[number](x), **CLOSE)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_bodies_may_be_compressed(ask, mlp, bodies, encoding, pack):
    x = bodies.rows(70)  # a response that is worth compressing
    headers = {"Content-Encoding": encoding, "Accept-Encoding": f"br, {encoding};q=0.5"}
    response = ask("POST", INFER, pack(bodies.json(x)), headers)
    assert response.status == 200
    assert response.headers["content-encoding"] == encoding
    unpacked = gzip.decompress if encoding == "gzip" else zlib.decompress
    plain = response._replace(body=unpacked(response.body))
    np.testing.assert_allclose(values(plain), mlp.expected["2"](x), **CLOSE)


def test_non_finite_results_are_written_as_python_and_tritonclient_read_them(ask, bodies):
    x = bodies.rows(2)
    x[1, 2] = np.nan
    body = bodies.json(x)
    assert b"NaN" in body
    response = ask("POST", INFER, body)
    assert b"NaN" in response.body
    assert np.isnan(values(response)[1]).all()
    assert np.isfinite(values(response)[0]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "z"}, "z"),
        ({"datatype": "FP64"}, "64"),
        ({"shape": [2, 3]}, "2, 3"),
    ],
)
def test_wrong_inputs_are_refused_with_what_came(ask, bodies, change, message):
    document = json.loads(bodies.json(bodies.rows(1)))
    document["inputs"][0].update(change)
    response = ask("POST", INFER, json.dumps(document).encode())
    assert response.status == 400
    assert message in response.error


def test_an_unknown_output_is_refused_before_the_model_runs(ask, mlp, bodies):
    before = mlp.server.statistics("mlp").successes
    response = ask("POST", INFER, bodies.json(bodies.rows(1), outputs=[{"name": "z"}]))
    assert response.status == 400
    for part in ("among y", "got 'z'", "leave out `outputs`"):
        assert part in response.error
    assert mlp.server.statistics("mlp").successes == before


def test_unknown_models_and_versions_are_404(ask, bodies):
    body = bodies.json(bodies.rows(1))
    for path in ("/v2/models/mlq/infer", "/v2/models/mlp/versions/7/infer"):
        response = ask("POST", path, body)
        assert response.status == 404, response.body
        assert "mlp" in response.error
        # Parsing takes time, so it comes later.
        assert ask("POST", path, b"no JSON").status == 404


def test_other_methods_are_405(ask):
    response = ask("GET", INFER)
    assert response.status == 405
    assert response.headers["allow"] == "POST"
    assert "must be POST, got GET; send POST" in response.error


@pytest.mark.thorough
def test_a_full_queue_is_429_and_a_late_answer_504(exported, serving, bodies):
    """A model that waits a minute for more rows holds one request, and its deadline passes."""
    batching = Batching(max_delay_ms=60_000.0, queue=1)
    body = bodies.json(bodies.rows(1))
    with serving(exported[0], batching=batching) as served, served.connect() as waiting:
        waiting.sendall(request_bytes(body))
        served.until_queued(1)
        for ask in (served.ask, served.ask_asgi):
            response = ask("POST", INFER, body)
            assert response.status == 429
            assert int(response.headers["retry-after"]) >= 1
        waiting.close()
        served.until_queued(0)
        # Microseconds, as in Triton.
        response = served.ask("POST", INFER, bodies.json(bodies.rows(1), parameters={"timeout": 1}))
        assert response.status == 504, response.body


def request_bytes(body):
    head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
