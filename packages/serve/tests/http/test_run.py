# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run` in a process of its own: ports, signals, exit codes; `start_http` on both event loops."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import uvloop

from dovetail_serve import Server
from dovetail_serve.http.run import _serve, run, start_http

PROGRAM = """
import logging, signal, sys
from dovetail_serve import Batching, Server
from dovetail_serve.http import run
# Of its own, whether or not nohup runs these tests.
signal.signal(signal.SIGHUP, signal.SIG_IGN if "nohup" in sys.argv else signal.SIG_DFL)
logging.basicConfig(level=logging.INFO, format="%(message)s")
server = Server(sys.argv[1], batching=Batching(max_delay_ms=float(sys.argv[2])))
run(server, http=0, grpc=0 if "grpc" in sys.argv else None)
"""
LIMIT_S = 300  # only a hang takes so long
READY = "loaded model=mlp version=2"


@contextlib.contextmanager
def running(root, delay_ms, *options):
    """Yields a process that serves `root` once it is ready, and its port."""
    line = [sys.executable, "-c", PROGRAM, str(root), str(delay_ms), *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            log = ""
            while READY not in log:
                log += (text := process.stderr.readline())
                assert text, log
            assert ("listening for gRPC on port" in log) == ("grpc" in options)
            yield process, int(re.search(r"listening for HTTP on port (\d+)", log)[1])
        finally:
            process.kill()


def ask(port, path):
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    ) as client:
        client.request("GET", path)
        return client.getresponse().status


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_readiness_answers_the_queue_and_exits_with_0(exported, bodies, number):
    """The request waits for more rows until its server stops; then it is answered."""
    body = bodies.json(bodies.rows(1))
    head = f"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    with running(exported[0], 60_000.0, "grpc") as (process, port):
        while ask(port, "/v2/health/ready") != 200:
            pass
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
            client.sendall(head.encode() + body)
            while not queued(port):
                pass
            process.send_signal(number)
            with client.makefile("rb") as stream:
                answer = stream.read()
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert process.wait(LIMIT_S) == 0
        log = process.stderr.read()
        assert f"got {number.name}" in log
        assert log.rstrip().endswith("stopped")
        assert "Traceback" not in log


@pytest.mark.thorough
def test_nohup_disables_sighup(exported):
    with running(exported[0], 0.0, "nohup") as (process, port):
        process.send_signal(signal.SIGHUP)
        assert ask(port, "/v2/health/live") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert "SIGHUP" not in process.stderr.read()


def test_another_thread_than_the_main_one_is_refused(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        error = pool.submit(run, Server(tmp_path), http=0).exception()
    assert isinstance(error, RuntimeError)
    for part in ("on the main thread", "got thread='ThreadPool", "write start_http"):
        assert part in str(error)


@pytest.mark.thorough
def test_a_second_signal_ends_the_process_at_once(exported):
    with (
        running(exported[0], 0.0) as (process, port),
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client,
    ):
        # Its body never comes, so that the first signal alone would wait for it.
        client.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\n")
        client.sendall(b"Content-Length: 9\r\n\r\n")
        while ask(port, "/v2/health/ready") != 200:
            pass
        process.send_signal(signal.SIGINT)
        while "got SIGINT" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM


@pytest.mark.thorough
def test_a_stop_has_one_deadline(exported):
    """A server takes its whole grace, so that none is left for the connections."""

    class Slow(Server):
        async def stop(self, grace_s=30.0):
            await asyncio.sleep(grace_s)
            await super().stop(0.0)

    class Web:
        port, graces = 0, []

        def drain(self):
            pass

        async def stop(self, grace_s):
            self.graces.append(grace_s)

    async def main():
        async def start_web():
            return Web()

        server = Slow(exported[0])
        serving = asyncio.create_task(_serve(server, start_web, None, 0.1))
        while not server.ready:
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(main())
    assert Web.graces == [0.0]


def queued(port):
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    ) as client:
        client.request("GET", "/status")
        return sum(v["queued"] for v in json.loads(client.getresponse().read())["versions"])


@pytest.mark.thorough
def test_a_repository_that_cannot_be_served_ends_it(tmp_path):
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "absent"), "0"]
    result = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 1
    assert "absent" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_serves_on_both_event_loops(exported, loop):
    async def main():
        async with Server(exported[0]) as server:
            web = await start_http(server, port=0)
            status = await asyncio.to_thread(ask, web.port, "/v2/models/mlp/ready")
            await web.stop(1.0)
            return status, web.port

    with asyncio.Runner(loop_factory=loop) as runner:
        status, port = runner.run(main())
    assert status == 200
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/v2")


def test_a_port_that_is_taken_is_an_error(tmp_path):
    async def main(port):
        await start_http(Server(tmp_path), port=port)

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        asyncio.run(main(taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "token": "t"}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
    ],
)
def test_other_machines_without_a_token_are_warned_of(exported, caplog, options, warned):
    async def main():
        web = await start_http(Server(exported[0]), port=0, **options)
        await web.stop(1.0)

    asyncio.run(main())
    assert ("without a token all of them; set one, or listen on 127" in caplog.text) == warned


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"http": 70000}, ("a port from 0 to 65535", "got http=70000", "write http=0")),
        ({"grpc": 65536}, ("a port from 0 to 65535", "got grpc=65536", "write grpc=0")),
        ({"grace_s": -1.0}, ("seconds from 0", "got grace_s=-1.0", "write grace_s=30")),
        ({"grace_s": float("nan")}, ("seconds from 0", "got grace_s=nan", "write grace_s=30")),
    ],
)
def test_options_out_of_range_are_refused_before_anything_opens(tmp_path, options, parts):
    with pytest.raises(ValueError, match="must be") as error:
        run(Server(tmp_path / "absent"), **({"http": 0} | options))
    for part in parts:
        assert part in str(error.value)


def test_a_port_out_of_range_and_an_absent_certificate_are_refused(tmp_path):
    async def main(**options):
        await start_http(Server(tmp_path), **options)

    with pytest.raises(ValueError, match="got port=70000"):
        asyncio.run(main(port=70000))
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    with pytest.raises(FileNotFoundError, match=r"chain\.pem"):
        asyncio.run(main(port=0, tls=(chain, key)))
    chain.touch()
    with pytest.raises(FileNotFoundError, match=r"key\.pem"):
        asyncio.run(main(port=0, tls=(chain, key)))
