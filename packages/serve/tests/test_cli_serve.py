# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`serve`: options in words and values, and a server in a process."""

import concurrent.futures
import dataclasses
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request

import jax
import numpy as np
import pytest

from dovetail_serve import HostFunction, Tensor, export
from dovetail_serve.command import serve as _cli_serve
from dovetail_serve.testing import save_mlp

TOKEN = "a-token-of-the-test"
LIMIT_S = 300  # only a hang takes so long


def parse(arrays, assets):
    """A host function; the command imports it from a module of the current directory."""
    assert not jax.config.read("jax_cpu_enable_async_dispatch")
    return {"x": np.array([[float(text)] for text in arrays["text"]], "float32")}


@pytest.fixture(scope="module")
def others(repository):
    """`log`, whose stored example is wrong, and `texts`, which has a host function."""
    bundle = export(
        lambda p, *, x: {"y": jax.numpy.log(x)},
        {},
        inputs={"x": Tensor(("batch", 1), "float32")},
        example={"x": np.array([[2.0], [3.0]], "float32")},
        platforms=("cpu",),
        batch_sizes=(1, 4),
    )
    inputs, outputs = bundle.golden
    wrong = {"y": np.asarray(outputs["y"]) + 0.5}
    dataclasses.replace(bundle, golden=(inputs, wrong)).save(repository[0] / "repo/log/1")
    before = HostFunction("parse", {"text": Tensor(("batch",), "bytes")})
    dataclasses.replace(bundle, before=before).save(repository[0] / "repo/texts/1")
    shutil.copy(__file__, repository[0] / "module_of_parse.py")


@pytest.mark.thorough
@pytest.mark.usefixtures("others")
def test_serve_answers_until_a_signal(here, repository, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    options = (
        *("--http", "0", "--grpc", "0", "--versions", "mlp=1,2", "--versions", "log=1"),
        *("--versions", "texts=1"),
        *("--label", "mlp:old=1", "--poll", "60", "--verify", "files", "--finite", "--control"),
        *("--function", "parse=module_of_parse:parse", "--max-batch", "4", "--no-split"),
        *("--token-file", str(tmp_path / "token"), "--access-log", "json", "--max-body", "2000"),
    )
    # Not a pipe: a line for each question whether the server is ready would fill it.
    with open(tmp_path / "log", "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail_serve", "serve", "repo", *options], stderr=file
        )
    try:
        deadline = time.monotonic() + LIMIT_S
        # gRPC is the later of the two.
        while "listening for gRPC on port" not in (tmp_path / "log").read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
        log = (tmp_path / "log").read_text()
        port = re.search(r"listening for HTTP on port (\d+)", log)
        assert port, log
        url = f"http://127.0.0.1:{port[1]}/v2"
        while fetch(f"{url}/health/ready")[0] != 200:
            assert process.poll() is None
            assert time.monotonic() < deadline
        x = np.random.default_rng(5).normal(size=(3, 6)).astype("float32")
        assert fetch(f"{url}/models/mlp/infer", body_of(x), token=None)[0] == 401
        for path, version in (("mlp", 2), ("mlp/versions/1", 1), ("mlp/versions/old", 1)):
            status, answer = fetch(f"{url}/models/{path}/infer", body_of(x))
            assert status == 200
            y = np.reshape(answer["outputs"][0]["data"], (3, 3))
            # float32 sums of at most 6 terms.
            np.testing.assert_allclose(y, repository[1][version - 1](x), rtol=1e-5, atol=1e-6)
            assert answer["model_version"] == str(version)
        five = np.zeros((5, 6), "float32")
        assert fetch(f"{url}/models/mlp/infer", body_of(five))[0] == 400  # --no-split
        assert fetch(f"{url}/models/mlp/infer", b" " * 2001)[0] == 413
        for second, expected in ((20.0, 200), (-1.0, 500)):  # --finite
            row = np.array([[1.0], [second]])
            assert fetch(f"{url}/models/log/infer", body_of(row))[0] == expected
        texts = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["1", "20"]}
        _, answer = fetch(f"{url}/models/texts/infer", json.dumps({"inputs": [texts]}).encode())
        # float32, 1 unit in the last place of 3.
        np.testing.assert_allclose(answer["outputs"][0]["data"], np.log([1, 20]), atol=3e-7)
        _, metadata = fetch(f"{url}/models/texts")
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert fetch(f"{url}/repository/models/log/unload", b"{}")[0] == 200
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=LIMIT_S)
        rest = (tmp_path / "log").read_text()
        assert process.returncode == 0, rest
        lines = [json.loads(line) for line in rest.splitlines() if '"time"' in line]
        assert {200, 401, 413, 500} <= {line["status"] for line in lines if "status" in line}
        assert any("listening for HTTP" in line.get("message", "") for line in lines)
    finally:
        process.kill()
        process.wait()


def stuck(arrays, assets):
    """A host function without an end."""
    sys.stderr.write("stuck\n")
    threading.Event().wait()


@pytest.mark.thorough
@pytest.mark.usefixtures("others")
def test_the_process_ends_after_the_grace_though_a_host_function_does_not(here):
    options = ("--http", "0", "--versions", "texts=1", "--function", "parse=module_of_parse:stuck")
    line = [sys.executable, "-m", "dovetail_serve", "serve", "repo", *options, "--grace", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log = ""
            while "loaded model=texts" not in log:
                log += (text := process.stderr.readline())
                assert text, log
            port = re.search(r"listening for HTTP on port (\d+)", log)
            assert port, log
            texts = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["1"]}
            request = (
                f"http://127.0.0.1:{port[1]}/v2/models/texts/infer",
                json.dumps({"inputs": [texts]}).encode(),
            )
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(fetch, *request)
                while "stuck" not in process.stderr.readline():
                    assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                _, rest = process.communicate(timeout=LIMIT_S)
                assert answer.result()[0] == 503
            assert process.returncode == 0
            assert "stopped" in rest
            assert "left a busy thread=dovetail-serve" in rest
        finally:
            process.kill()


def body_of(x):
    shape = list(x.shape)
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": x.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def fetch(url, body=None, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["repo/mlp/1"], ["got the bundle PATH='repo/mlp/1'", "type serve ", "--versions mlp=1"]),
        (["repo/mlp"], ["got the model PATH='repo/mlp'", "type serve "]),
        (["absent"], ["is a directory with a bundle at NAME/VERSION", "PATH='absent'"]),
        (["repo", "--max-batch", "0"], ["--max-batch must be", "got --max-batch 0", "write"]),
        (["repo", "--queue", "0"], ["--queue must be", "got --queue 0", "write --queue 256"]),
        (
            ["repo", "--versions", "newest"],
            ["or numbers for each model to", "got --versions 'newest'"],
        ),
        (["repo", "--max-body", "0"], ["from 1, got --max-body 0; write --max-body 67108864"]),
        (["repo", "--versions", "mlp=x"], ["got mlp=x", "type --versions mlp=3,5"]),
        (["repo", "--versions", "all", "--versions", "mlp=1"], ["got 'all'", "--versions mlp=3,5"]),
        (["repo", "--label", "mlp=3"], ["got mlp=3", "type --label mlp:stable=3"]),
        (["repo", "--label", "stable"], ["got 'stable'", "type --label mlp:stable=3"]),
        (["repo", "--label", "mlp:2=3"], ["differ from every version, got '2' for 'mlp'; write"]),
        (
            ["repo", "--poll", "-1"],
            ["--poll must be a number of seconds from 0", "got --poll -1.0"],
        ),
        (
            ["repo", "--function", "f=json:no"],
            ["got f=json:no", "type --function tokenize=package"],
        ),
        (["repo", "--function", "f=json"], ["got f=json;", "type --function tokenize=package"]),
        (
            ["repo", "--function", "f=no_such_module:f"],
            ["must name a module that", "No module named 'no_such_module'; start the server in"],
        ),
        (["repo", "--tls-key", "key.pem"], ["got one of them", "type --tls-certificate FILE"]),
        (["repo", "--token-file", "empty"], ["got nothing in 'empty'", "openssl rand -hex 32"]),
        (["repo", "--token-file", "blank"], ["got nothing in 'blank'", "openssl rand -hex 32"]),
        (["repo", "--token-file", "two"], ["--token-file must have", "got 2 lines in 'two'"]),
        (["repo", "--token-file", "spaced"], ["ASCII without spaces, got other characters in 's"]),
        (["repo", "--http", "70000"], ["from 0 to 65535, got --http 70000; write --http 0"]),
        (["repo", "--grpc", "-1"], ["from 0 to 65535, got --grpc -1; write --grpc 0"]),
        (["repo", "--grace", "-1"], ["seconds from 0, got --grace -1.0; write --grace 30"]),
        (["repo", "--token-file", "absent"], ["a path must exist, got 'absent'"]),
    ],
)
def test_serve_refuses_in_the_words_of_the_command(command, here, argv, parts):
    for name, text in (("empty", ""), ("blank", " \n"), ("two", "a\nb\n"), ("spaced", "a b")):
        (here / name).write_text(text)
    # An address of no machine: a server that is not refused fails too, and with another message.
    code, out, err = command("serve", "--host", "192.0.2.1", *argv)
    assert (code, out) == (2, "")
    message = err.splitlines()[0]
    for part in parts:
        assert part in message


def test_a_hugging_face_directory_is_answered_by_one_sentence(command, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    code, _, err = command("serve", str(tmp_path))
    assert code == 2
    assert (
        "serve a language model with dovetail serve, export an encoder with dovetail bundle" in err
    )
    # A repository that happens to have such a file is one.
    save_mlp(tmp_path / "mlp/1", batch_sizes=(1,))
    _cli_serve.check_repository(tmp_path)


def test_what_cannot_be_looked_at_keeps_no_repository_from_being_served(tmp_path, monkeypatch):
    save_mlp(tmp_path / "mlp/1", batch_sizes=(1,))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    closed, stat = tmp_path / "lost+found", os.stat
    closed.mkdir()

    def refuse(path, **options):  # as the system does for other users than root
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    _cli_serve.check_repository(tmp_path)


def test_a_bundle_outside_of_a_repository_is_told_where_to_go(command, tmp_path):
    save_mlp(tmp_path / "classifier/new", batch_sizes=(1,))
    _, _, err = command("serve", str(tmp_path / "classifier/new"))
    path = tmp_path / "classifier/new"
    wanted = f"mkdir -p repo/classifier, mv {path} repo/classifier/1, and serve repo"
    assert f"type {wanted}" in err


def test_options_of_serve_become_values():
    assert _cli_serve.versions_of([]) == "latest:1"
    assert _cli_serve.versions_of(["latest:2"]) == "latest:2"
    assert _cli_serve.versions_of(["a=3,5", "b.c=1"]) == {"a": (3, 5), "b.c": (1,)}
    with pytest.raises(ValueError, match="got a=2; type --versions a=3,5"):
        _cli_serve.versions_of(["a=1", "a=2"])
    labels = _cli_serve.labels_of(["a:stable=3", "a:next=4", "b:stable=1"])
    assert labels == {"a": {"stable": 3, "next": 4}, "b": {"stable": 1}}
    with pytest.raises(ValueError, match="got a:stable=4; type --label mlp:stable=3"):
        _cli_serve.labels_of(["a:stable=3", "a:stable=4"])


def test_functions_are_imported_by_name(monkeypatch):
    module = types.ModuleType("module_of_a_test")
    module.shout = lambda arrays, assets: arrays  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_of_a_test", module)
    functions = _cli_serve.functions_of(["shout=module_of_a_test:shout"])
    assert functions == {"shout": module.shout}
    with pytest.raises(ValueError, match="one function of a module to each name"):
        _cli_serve.functions_of(["a=module_of_a_test:shout", "a=module_of_a_test:shout"])


def test_the_soft_limit_of_descriptors_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(before[0], 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        _cli_serve.raise_descriptor_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert hard == before[1]
    assert soft == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))


def test_functions_may_be_in_the_current_directory(monkeypatch, tmp_path):
    """As after `dovetail serve`: an installed command leaves the directory out of the path."""
    installed = [path for path in sys.path if path not in ("", os.getcwd())]
    monkeypatch.setattr(sys, "path", installed)
    (tmp_path / "module_beside_a_server.py").write_text("def f(arrays, assets): return arrays\n")
    (tmp_path / "module_without_another.py").write_text("import absent_module\n")
    monkeypatch.chdir(tmp_path)
    functions = _cli_serve.functions_of(["f=module_beside_a_server:f"])
    assert functions["f"]({"a": 1}, {}) == {"a": 1}
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'absent_module'$"):
        _cli_serve.functions_of(["f=module_without_another:f"])
    monkeypatch.delitem(sys.modules, "module_beside_a_server")
