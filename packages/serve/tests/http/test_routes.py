# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Routes beside inference, over a socket and in process."""

import json
import shutil

import pytest


def test_health(ask):
    assert ask("GET", "/v2/health/live").document == {"live": True}
    assert ask("GET", "/v2/health/ready").document == {"ready": True}
    assert ask("GET", "/v2/models/mlp/ready").document == {"ready": True}
    assert ask("GET", "/v2/models/mlp/versions/stable/ready").status == 200
    assert ask("GET", "/v2/models/mlq/ready").status == 404


def test_a_server_that_has_not_started_is_not_ready(exported, serving):
    with serving(exported[0], start=False) as served:
        for ask in (served.ask, served.ask_asgi):
            ready = ask("GET", "/v2/health/ready")
            assert (ready.status, ready.document) == (503, {"ready": False})
            response = ask("POST", "/v2/models/mlp/infer", b'{"inputs": []}')
            # Before the body is parsed, which takes time.
            assert response.status == 503


def test_readiness_ends_before_the_server_does(exported, serving, bodies):
    with serving(exported[0]) as served:
        served.web.drain()
        assert served.ask("GET", "/v2/health/ready").status == 503
        assert served.ask("GET", "/v2/models/mlp/ready").status == 503
        assert served.ask("GET", "/v2/health/live").status == 200
        body = bodies.json(bodies.rows(1))
        assert served.ask("POST", "/v2/models/mlp/infer", body).status == 200
        served.run(served.server.stop())
        response = served.ask("POST", "/v2/models/mlp/infer", body)
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert served.ask("GET", "/v2/health/live").status == 503


def test_metadata(ask, mlp):
    assert ask("GET", "/v2").document["name"] == "dovetail-serve"
    assert "binary_tensor_data" in ask("GET", "/v2").document["extensions"]
    for path in ("/v2/models/mlp", "/v2/models/mlp/versions/2"):
        document = ask("GET", path).document
        assert document["versions"] == ["1", "2"]
        assert document["platform"] == "jax_stablehlo"
        assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 6]}]
        assert document["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
        assert document["digest"] == mlp.server.metadata("mlp").digest
    config = ask("GET", "/v2/models/mlp/config").document
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [6]}]


def test_statistics_of_one_version_a_model_and_all(ask, mlp, bodies):
    body = bodies.json(bodies.rows(3))
    ask("POST", "/v2/models/mlp/versions/1/infer", body)
    counts = mlp.server.statistics("mlp", "1")
    for path in ("/v2/models/mlp/versions/1/stats", "/v2/models/mlp/versions/stable/stats"):
        (one,) = ask("GET", path).document["model_stats"]
        assert (one["name"], one["version"]) == ("mlp", "1")
        assert one["inference_count"] == counts.rows
        assert one["inference_stats"]["success"]["count"] == counts.successes
        stages = ("queue", "compute_input", "compute_infer", "compute_output")
        total = sum(one["inference_stats"][stage]["ns"] for stage in stages)
        # Each is rounded to a nanosecond.
        assert total == pytest.approx(one["inference_stats"]["success"]["ns"], abs=4)
        batches = {b["batch_size"]: b["compute_infer"] for b in one["batch_stats"]}
        assert {size: b["count"] for size, b in batches.items()} == counts.batches
        seconds = {size: b["ns"] / 1e9 for size, b in batches.items()}
        assert seconds == pytest.approx(counts.batches_s, abs=1e-9)
    for path in ("/v2/models/mlp/stats", "/v2/models/stats"):
        versions = [s["version"] for s in ask("GET", path).document["model_stats"]]
        assert versions == ["1", "2"]
    assert ask("GET", "/v2/models/mlq/stats").status == 404


def test_the_repository_index(ask):
    index = ask("POST", "/v2/repository/index").document
    states = [(s["name"], s["version"], s["state"]) for s in index]
    assert states == [("mlp", "1", "READY"), ("mlp", "2", "READY")]
    assert all(s["digest"].startswith("sha256:") for s in index)
    assert ask("POST", "/v2/repository/index", b'{"ready": true}').document == index
    for body in (b'{"redy": true}', b'{"ready": 1}', b"[]", b"{"):
        response = ask("POST", "/v2/repository/index", body)
        assert response.status == 400
        assert "must be" in response.error


def test_clients_load_and_unload_only_if_allowed(ask, mlp):
    for action in ("load", "unload"):
        response = ask("POST", f"/v2/repository/models/mlp/{action}")
        assert response.status == 403
        for part in ("must be allowed by the server", "got a request without", "control=True"):
            assert part in response.error
    assert mlp.server.model_ready("mlp")


@pytest.mark.thorough
def test_models_are_unloaded_and_loaded(exported, serving, tmp_path):
    shutil.copytree(exported[0], tmp_path / "repository")
    root = tmp_path / "repository"
    with serving(root, http={"control": True}) as served:
        for ask in (served.ask, served.ask_asgi):
            assert ask("POST", "/v2/repository/models/mlp/unload").status == 200
            assert ask("GET", "/v2/models/mlp/ready").status == 503
            ready = ask("POST", "/v2/repository/index", b'{"ready": true}')
            assert ready.document == []
            # As tritonclient sends it.
            body = b'{"parameters":{"unload_dependents":false}}'
            assert ask("POST", "/v2/repository/models/mlp/unload", body).status == 200
            assert ask("POST", "/v2/repository/models/mlp/load").status == 200
            assert ask("GET", "/v2/models/mlp/ready").status == 200
            assert ask("POST", "/v2/repository/models/mlq/load").status == 404
            body = b'{"parameters":{"config":"{}"}}'
            response = ask("POST", "/v2/repository/models/mlp/load", body)
            assert response.status == 400
            assert "without parameters, got config; save a new version" in response.error
            for wrong in ([1], "config", True):
                body = json.dumps({"parameters": wrong}).encode()
                response = ask("POST", "/v2/repository/models/mlp/unload", body)
                assert response.status == 400
                assert f"must be an object, got '{wrong}'; leave them out" in response.error
        shutil.rmtree(root / "mlp" / "2")
        weights = root / "mlp" / "1" / "weights.safetensors"
        weights.chmod(0o644)  # weights are read-only
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
        served.ask("POST", "/v2/repository/models/mlp/unload")
        response = served.ask("POST", "/v2/repository/models/mlp/load")
        assert response.status == 400
        assert "weights.safetensors" in response.error


@pytest.mark.parametrize(
    "path",
    [
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/a/register",
        "/v2/trace/setting",
        "/v2/models/mlp/trace/setting",
        "/v2/logging",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_absent_extensions_are_501(ask, path, method):
    response = ask(method, path)
    assert response.status == 501
    for part in ("must keep to", "got one for", "send tensors in the body"):
        assert part in response.error


def test_other_paths_and_methods(ask):
    for path in ("/v3", "/v2/", "/v2/models/mlp/generate", "/v2/models/a/b/infer", "/v2/models//x"):
        response = ask("POST", path)
        assert response.status == 404
        assert f"got '{path}'; write one such as" in response.error
    response = ask("DELETE", "/v2/models/mlp")
    assert response.status == 405
    assert "GET" in response.headers["allow"]
    assert "got DELETE; send" in response.error


def test_the_page_has_no_outside_resources(ask):
    page = ask("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    text = page.body.decode()
    assert "http://" not in text
    assert "https://" not in text
    assert text.startswith("<!DOCTYPE html>")
    assert json.loads(ask("GET", "/status").body)["ready"] is True
