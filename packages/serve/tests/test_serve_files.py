# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command as a process, while its files are damaged: all models answer to the end."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from dovetail_serve import Tensor, export

LIMIT_S = 300  # only a hang takes so long
WEIGHTS = "weights.safetensors"
X = np.random.default_rng(4).normal(size=(1, 128)).astype("float32")


def save(path):
    """Saves a bundle whose only weight, twice the identity, would be mapped."""
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        {"w": 2 * np.eye(128, dtype="float32")},
        inputs={"x": Tensor(("batch", 128), "float32")},
        example={"x": X},
        platforms=("cpu",),
        batch_sizes=(1,),
    ).save(path)


@contextlib.contextmanager
def running(root, *options, until):
    """Yields the log so far, the lines that follow, and the port of a server."""
    line = [sys.executable, "-m", "dovetail_serve", "serve", str(root), "--http", "0", *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            log = ""
            while not all(part in log for part in until):
                log += (text := process.stderr.readline())
                assert text, log
            port = int(re.search(r"listening for HTTP on port (\d+)", log)[1])
            yield log, process, port
            assert process.poll() is None, "the server has ended"
        finally:
            process.kill()


def ask(port, path, document=None):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    with contextlib.closing(client):
        client.request("GET" if document is None else "POST", path, json.dumps(document))
        response = client.getresponse()
        return response.status, json.loads(response.read())


def answer(port, model):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 128], "data": X[0].tolist()}
    status, document = ask(port, f"/v2/models/{model}/infer", {"inputs": [tensor]})
    assert status == 200, document
    return np.asarray(document["outputs"][0]["data"], "float32")


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, 100, 40_000])
def test_weights_cut_short_under_a_server_end_no_model(tmp_path, size):
    for name in ("m", "n"):
        save(tmp_path / name / "1")
    until = ("loaded model=m version=1", "loaded model=n version=1")
    with running(tmp_path, "--poll", "0.1", until=until) as (log, process, port):
        found = re.search(r"weights are read into memory limit_bytes=(\d+) machine_bytes=", log)
        assert int(found[1]) > 0
        file = tmp_path / "m" / "1" / WEIGHTS
        file.chmod(0o644)
        os.truncate(file, size)
        for _ in range(20):
            for name in ("m", "n"):
                np.testing.assert_array_equal(answer(port, name), 2 * X[0])
        while "failed model=m version=1" not in (text := process.stderr.readline()):
            assert text, "the server has ended"
        for name in ("m", "n"):
            np.testing.assert_array_equal(answer(port, name), 2 * X[0])
        assert ask(port, "/v2/health/ready")[0] == 200


@pytest.mark.thorough
@pytest.mark.parametrize(("option", "ready"), [("any", 200), ("all", 503)])
def test_one_damaged_model_and_the_readiness_of_the_server(tmp_path, option, ready):
    for name in ("m", "n"):
        save(tmp_path / name / "1")
    (tmp_path / "m" / "1" / WEIGHTS).chmod(0o644)
    os.truncate(tmp_path / "m" / "1" / WEIGHTS, 100)
    until = ("failed model=m version=1", "loaded model=n version=1")
    options = ("--ready", option, "--map-weights")
    with running(tmp_path, *options, until=until) as (log, _, port):
        assert "a program that cuts one short ends this server" in log
        answer(port, "n")
        deadline = time.monotonic() + LIMIT_S
        while (status := ask(port, "/v2/health/ready")[0]) != ready:  # the start may not have ended
            assert time.monotonic() < deadline, status
        assert ask(port, "/v2/models/m/ready")[0] == 503
        assert ask(port, "/v2/models/n/ready")[0] == 200
