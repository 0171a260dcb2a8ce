# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail serve`: the library's own action, and a language model."""

import contextlib
import datetime
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_data import Pretrained
from dovetail_models import load, lora
from dovetail_serve.command.cli import ACTIONS
from dovetail_stack import cli
from dovetail_stack._command import Parser
from dovetail_stack.commands.serve import is_model, keys_of
from dovetail_stack.recipes.record_options import Dialogue
from dovetail_stack.recipes.serving import chat


def options_of(parser):
    return {option for action in parser._actions for option in action.option_strings}


def test_it_takes_what_the_action_of_the_library_takes():
    own = Parser()
    ACTIONS["serve"].declare(own)
    mounted = cli.parser(["serve"])._subparsers._group_actions[0].choices["serve"]
    assert options_of(mounted) > options_of(own)
    assert {"--host", "--http", "--grpc", "--versions", "--token-file"} <= options_of(own)


def test_what_a_path_holds_decides(tmp_path, source):
    assert is_model(source)
    assert is_model(Path("Qwen/Qwen3-0.6B"))  # of the Hub
    (tmp_path / "run" / "hf").mkdir(parents=True)
    assert not is_model(tmp_path / "run")
    (tmp_path / "run" / "hf" / "config.json").touch()
    assert is_model(tmp_path / "run")
    assert not is_model(tmp_path)  # perhaps of bundles
    assert not is_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("option", "other"),
    [
        (["--grpc", "1"], "--grpc must be left out for a language model"),
        (["--max-batch", "4"], "--max-batch must be left out for a language model"),
        (["--api", "bundles", "--max-rows", "4"], "--max-rows must be left out for bundles"),
        (["--template", "absent.jinja"], "absent.jinja"),
        (["--max-length", "0"], "max_length"),
        (["--api", "bundles", "--adapter", "a=b"], "--adapter must be left out for bundles"),
        (
            ["--api", "bundles", "--adapter-rank", "4"],
            "--adapter-rank must be left out",
        ),
        (["--key-requests", "0"], "got --key-requests 0"),
        (["--key-tokens", "-1"], "got --key-tokens -1"),
        (["--tls-key", "absent.pem"], "type --tls-certificate FILE"),
        (["--tls-key", "a.pem", "--tls-certificate", "absent.pem"], "absent.pem"),
        (["--access-log-file", "absent/log"], "absent/log"),
        (["--access-log", "json"], "--access-log must be left out for a language model"),
        (["--api", "bundles", "--key-tokens", "4"], "--key-tokens must be left out for bundles"),
    ],
)
def test_an_option_of_the_other_server_is_refused(capsys, source, option, other):
    assert cli.main(["serve", str(source), *option]) == 2
    assert other in capsys.readouterr().err.replace("max-length", "max_length")


@pytest.mark.parametrize("typed", ["poet", "=dir", "poet="])
def test_an_adapter_has_a_name_and_a_directory(capsys, typed):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["serve", ".", "--adapter", typed])
    assert f"--adapter must be NAME=DIR, got --adapter {typed}: corr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--adapter", "a b=dir"], "--adapter must have a name of at most 128 ASCII letters"),
        (["--adapter", "hf=dir"], "name of its own, got 'hf', that of the base model"),
        (["--adapter", "a=DIR", "--adapter", "a=DIR"], "got 'a', that of another adapter"),
        (["--adapter", "a=absent"], "This is --adapter a=absent"),
        (["--adapter", "a=DIR"], "This is --adapter a="),
        (
            ["--adapter-rank", "4"],
            "for --adapter or --allow-adapters, got --adapter-rank 4 alone",
        ),
        (["--max-adapters", "4"], "got --max-adapters 4 alone: leave it out"),
        (["--allow-adapters", "absent"], "--allow-adapters must be a folder, got --allow-adapters"),
        (["--allow-adapters", ".", "--max-adapters", "0"], "got --max-adapters 0: leave it out"),
        (["--allow-adapters", ".", "--adapter-rank", "0"], "got --adapter-rank 0: leave it out"),
    ],
)
def test_a_wrong_adapter_is_refused_before_weights_are_read(
    capsys, source, tmp_path, monkeypatch, options, words
):
    monkeypatch.setattr("dovetail_stack.recipes.engine.load", None)  # calling it would fail
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LOHA"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    typed = [option.replace("DIR", str(tmp_path)) for option in options]
    assert cli.main(["serve", str(source), "--http", "0", *typed]) == 2
    assert words in capsys.readouterr().err


def test_an_address_that_is_taken_is_refused_before_loading(capsys, source, monkeypatch):
    monkeypatch.setattr("dovetail_stack.recipes.engine.engine", None)  # calling it would fail
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", str(source), "--http", port]) == 2
    told = capsys.readouterr().err
    assert f"got --host 127.0.0.1 and --http {port}" in told
    assert "type --http 0" in told
    assert cli.main(["serve", str(source), "--http", "70000"]) == 2
    assert "--http 70000" in capsys.readouterr().err


def test_keys_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "keys").write_text("one\n\ntwo\n")
    assert keys_of(tmp_path / "keys") == ["one", "two"]
    (tmp_path / "none").write_text("\n")
    with pytest.raises(ValueError, match="one in a line"):
        keys_of(tmp_path / "none")


def test_conversations_have_the_ids_of_the_template(talker):
    tokenizer = Pretrained(talker)
    ids = chat(talker, tokenizer, Dialogue())
    messages = [{"role": "user", "content": "say red </s>"}]
    text = "[user]say red </s>[assistant]"
    assert (
        tokenizer.decode(ids(messages, (), {})) == text
    )  # what a message says is no special token
    with pytest.raises(ValueError, match="role"):
        ids([{"content": "a"}], (), {})
    with pytest.raises(ValueError, match="assistant"):
        ids([*messages, {"role": "assistant", "content": "red"}], (), {})


def test_a_template_that_writes_the_date_has_that_of_the_request(talker, tmp_path):
    shutil.copytree(talker, tmp_path / "dated")
    source = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.role }}{{ m.content }}"
    (tmp_path / "dated" / "chat_template.jinja").write_text(source + "{% endfor %}")
    tokenizer = Pretrained(tmp_path / "dated")
    said = [{"role": "user", "content": "a"}]
    dated = chat(tmp_path / "dated", tokenizer, Dialogue(date="2020-02-29"))
    assert tokenizer.decode(dated(said, (), {})) == "2020-02-29usera"
    today = tokenizer.decode(chat(tmp_path / "dated", tokenizer, Dialogue())(said, (), {}))
    assert today == f"{datetime.date.today()}usera"


def test_a_directory_without_a_template_has_no_chat(source):
    assert chat(source, Pretrained(source), Dialogue()) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["nowhere"], "got PATH"),
        ([".", "--tls-key", "k"], "--tls-certificate FILE --tls-key FILE"),
        ([".", "--label", "x"], "--label"),
    ],
)
def test_a_wrong_line_is_answered_in_its_own_words(capsys, tmp_path, monkeypatch, line, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", *line]) == 2
    assert words in capsys.readouterr().err


def peft_of(directory, out, pattern, seed):
    """Writes a random adapter of rank 2. Returns the model with merged weights."""
    model = lora.insert(load(directory), pattern, rank=2, alpha=4, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(seed)

    def moved(x):
        return jnp.asarray(rng.normal(size=x.shape) * 0.4, x.dtype)

    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.LoRAParam)))
    lora.save_peft(model, out, base=None)
    return lora.merge(model)


@pytest.mark.thorough("the command until its signal, with the programs of a model with adapters")
def test_adapters_are_served_by_name_and_change_over_http(talker, tmp_path, forward):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    models = {
        "tiny": load(talker),
        "poet": peft_of(talker, outside, "**.{q,v}", seed=0),
        "team/clerk": peft_of(talker, folder / "clerk", "**.mlp.*", seed=1),
    }
    (folder / "out").symlink_to(outside)
    line = [sys.executable, "-m", "dovetail_stack", "serve", str(talker), "--http", "0"]
    line += ["--name", "tiny", "--adapter", f"poet={outside}", "--allow-adapters", str(folder)]
    line += ["--max-adapters", "2", "--max-rows", "1", "--max-length", "32"]
    ids = [3, 1, 4, 1, 5]

    def post(route, **body):
        request = urllib.request.Request(url + route, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def answer(name):
        options = {"prompt": ids, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        status, text = post("/v1/completions", model=name, **options)
        assert status == 200, text
        return json.loads(text)["choices"][0]["text"]

    def expected(name):
        tokens = list(ids)
        for _ in range(6):
            row = np.zeros((1, 16), np.int32)
            row[0, : len(tokens)] = tokens  # causal: padding behind changes nothing
            tokens.append(int(forward(models[name], row)[0, len(tokens) - 1].argmax()))
        return Pretrained(talker).decode(tokens[len(ids) :])

    said = []
    quick = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as this suite compiles
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=quick) as server:
        assert server.stderr is not None
        try:
            while not said or "serving at" not in said[-1]:
                said.append(server.stderr.readline())
                assert said[-1], said
            url = "http" + said[-1].strip().partition("http")[2]
            assert answer("poet") == expected("poet")
            assert answer("tiny") == expected("tiny") != expected("poet")
            for path in ("../outside", "out", str(outside), "clerk/../../outside", "/etc"):
                status, text = post("/v1/load_lora_adapter", lora_name="b", lora_path=path)
                assert (status, "beneath the folder" in text) == (400, True), text
            named = {"lora_name": "team/clerk"}
            assert post("/v1/load_lora_adapter", lora_path="clerk", **named)[0] == 200
            assert answer("team/clerk") == expected("team/clerk") != expected("tiny")
            assert post("/v1/unload_lora_adapter", **named)[0] == 200
            assert post("/v1/completions", model="team/clerk", prompt="a")[0] == 404
        finally:
            server.send_signal(signal.SIGTERM)
        said += server.stderr.readlines()
    places = "2 places for adapters, of rank 2 at most, on 7 matrices of the model; taken: 1"
    assert any(places in line for line in said)


# Serves, and then writes what JAX says of its compilation cache.
COUNTED = """
import collections, jax, json, sys
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.split("/")[-1]]))
from dovetail_stack import cli
code = cli.main(sys.argv[1:])
print(json.dumps(counts))
sys.exit(code)
"""


class Started:
    """`dovetail serve` in a process, over TLS; SIGTERM ends it."""

    def __init__(self, folder, line):
        environment = {k: v for k, v in os.environ.items() if "PERSISTENT" not in k} | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_ENABLE_COMPILATION_CACHE": "true",
        }
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", COUNTED, "serve", *map(str, line), "--http", "0"]
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)
        log = ""
        while "serving at" not in log or not re.search(r"all \d+ programs are compiled", log):
            log += (text := self._process.stderr.readline())
            assert text, log
        self._port = int(re.search(r"serving at https://127.0.0.1:(\d+)", log)[1])

    def ask(self, path, key, body=None):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = http.client.HTTPSConnection("127.0.0.1", self._port, context=context, timeout=60)
        with contextlib.closing(client):
            method = "GET" if body is None else "POST"
            client.request(method, path, body, {"Authorization": f"Bearer {key}"})
            response = client.getresponse()
            return response.status, response.headers, json.loads(response.read())

    def stop(self):
        """Returns the exit code and the counts."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=60)
        return self._process.returncode, json.loads(out)


@pytest.mark.thorough("two processes that compile a model")
def test_a_second_start_compiles_nothing(source, tmp_path):
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    line += ["-nodes", "-keyout", key, "-out", chain, "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run(line, check=True, capture_output=True)
    (tmp_path / "keys").write_text("sk-a\nsk-b\n")
    log = tmp_path / "access.jsonl"
    line = [source, "--name", "tiny", "--max-rows", "1", "--max-length", "16"]
    line += ["--tls-certificate", chain, "--tls-key", key, "--token-file", tmp_path / "keys"]
    line += ["--key-requests", "1", "--key-tokens", "10", "--access-log-file", log]
    first = Started(tmp_path, line)
    wanted = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True}
    body = json.dumps(wanted)
    status, headers, answer = first.ask("/v1/completions", "sk-a", body)
    assert (status, answer["usage"]["total_tokens"]) == (200, 11)
    assert headers["x-ratelimit-limit-tokens"] == "10"
    assert first.ask("/v1/completions", "sk-a", body)[0] == 429
    assert first.ask("/v1/completions", "sk-b", body)[0] == 200
    assert first.ask("/v1/models", "sk-c")[0] == 401
    code, counts = first.stop()
    assert code == 0
    assert counts["cache_misses"] > 0
    entries = [json.loads(entry) for entry in log.read_text().splitlines()]
    reasons = ["length", "rate_limit_exceeded", "length", "invalid_api_key"]
    assert [entry["reason"] for entry in entries] == reasons
    assert "sk-" not in log.read_text()
    code, again = Started(tmp_path, line).stop()
    assert code == 0
    assert again.get("cache_misses", 0) == 0
    assert again["cache_hits"] > 0
