# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run` in a process of its own: signals, open streams and exit codes."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dovetail_infer.server import run

# The engine is paused while the test sends a signal, and goes on after a line of input.
PROGRAM = """
import logging, sys, threading
from flax import nnx
from dovetail_infer import Engine
from dovetail_infer.server import app, run
from dovetail_infer.testing import ByteTokenizer, TinyDecoder
logging.basicConfig(level=logging.INFO, format="%(message)s")
sizes = {"page_size": 4, "step_tokens": 32, "max_rows": 4, "max_length": 64, "kv_bytes": 2**20}
tokenizer = ByteTokenizer()
with Engine(TinyDecoder(rngs=nnx.Rngs(3)), tokenizer=tokenizer, **sizes) as engine:
    engine.pause()
    def resume():
        sys.stdin.readline()
        engine.resume()
    threading.Thread(target=resume, daemon=True).start()
    run(app(engine, name="tiny", tokenizer=tokenizer), port=0, grace_s=int(sys.argv[1]))
print("after run")
"""
BODY = b'{"model":"tiny","prompt":"Hello","max_tokens":40,"ignore_eos":true,"stream":true}'
LIMIT_S = 120  # only a hang takes so long


class Serving:
    """A process that serves, and its port."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process, self.port, self._clients = process, port, contextlib.ExitStack()

    def ask(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        self._clients.callback(client.close)
        client.request(method, path, body)
        return client.getresponse()

    def drain(self, number: int) -> None:
        """Sends a signal, and returns once the server is not ready."""
        self.process.send_signal(number)
        while self.ask("GET", "/ready").status == 200:
            pass

    def close(self) -> None:
        self._clients.close()


@contextlib.contextmanager
def serving(grace_s: int = 60) -> Iterator[Serving]:
    """Yields a process once it serves."""
    line = [sys.executable, "-c", PROGRAM, str(grace_s)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(line, text=True, env=environment, **pipes) as process:
        try:
            log = ""
            while (match := re.search(r"serving at http://127.0.0.1:(\d+)", log)) is None:
                log += (text := process.stderr.readline())
                assert text, log
            with contextlib.closing(Serving(process, int(match[1]))) as served:
                yield served
        finally:
            process.kill()


@pytest.mark.thorough("a process of its own")
@pytest.mark.capability("a graceful end")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_end_whole_and_refuses_others(number):
    with serving() as served:
        stream = served.ask("POST", "/v1/completions", BODY)
        assert stream.status == 200
        served.drain(number)
        refused = served.ask("POST", "/v1/completions", BODY)
        assert refused.status == 503
        assert int(refused.getheader("retry-after")) >= 1
        assert refused.getheader("connection") == "close"
        assert served.ask("GET", "/health").status == 200
        process = served.process
        process.stdin.write("\n")
        process.stdin.flush()
        events = stream.read().split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        assert b'"finish_reason":"length"' in events[-3]
        assert process.wait(LIMIT_S) == 0
        assert process.stdout.read() == "after run\n"
        log = process.stderr.read()
        assert f"got {number.name}" in log
        assert log.rstrip().endswith("stopped")
        assert "Traceback" not in log


@pytest.mark.thorough("a process of its own")
def test_a_second_signal_ends_the_process_at_once():
    with serving() as served:
        assert served.ask("POST", "/v1/completions", BODY).status == 200
        served.drain(signal.SIGTERM)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(LIMIT_S) == 128 + signal.SIGTERM


@pytest.mark.thorough("a process of its own")
def test_a_stream_is_cut_after_the_grace():
    with serving(grace_s=1) as served:
        stream = served.ask("POST", "/v1/completions", BODY)
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            assert b"[DONE]" not in stream.read()
        assert served.process.wait(LIMIT_S) == 0


def test_options_out_of_range_are_refused(server):
    with pytest.raises(ValueError, match=r"port must be from 0 to 65535, got port=70000. Use"):
        run(server.application, port=70000)
    with pytest.raises(ValueError, match=r"grace_s must be seconds from 0, got grace_s=-1. Use"):
        run(server.application, grace_s=-1)
