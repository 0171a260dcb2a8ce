# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A server that is killed while it answers, and its campaigns in small sizes."""

import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
import httpx
import openai
import pytest

from dovetail_infer.testing import ByteTokenizer

PACKAGE = Path(__file__).parents[2]
PROMPTS = ["Hello", "ab", "a longer one of a few pages", "?"]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
GREEDY |= {"extra_body": {"ignore_eos": True}}


@contextlib.contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    """A server in a process of its own, and its client."""
    line = [sys.executable, str(PACKAGE / "tests" / "programs" / "served.py")]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            matches = (re.search(r"serving at (http://[\d.:]+)", x) for x in process.stderr)
            url = next(match[1] for match in matches if match)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield process, openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        finally:
            process.kill()


def texts(client: openai.OpenAI) -> list[str]:
    answer = client.completions.create(prompt=PROMPTS, **GREEDY)
    return [choice.text for choice in answer.choices]


@pytest.mark.thorough("two processes")
def test_a_killed_server_ends_its_connections_and_answers_as_before_after_a_start():
    model = engines.byte_decoder()
    ids = [engines.greedy(model, [256, *prompt.encode()], 8) for prompt in PROMPTS]
    expected = list(map(ByteTokenizer().decode, ids))
    answered = threading.Semaphore(0)

    def ask(client: openai.OpenAI, *, stream: bool) -> None:
        """Asks until the server is gone. Every answer before is whole."""
        while True:
            if stream:
                pieces = client.completions.create(prompt=PROMPTS[2], stream=True, **GREEDY)
                text = "".join(piece.choices[0].text for piece in pieces)
            else:
                text = client.completions.create(prompt=PROMPTS[2], **GREEDY).choices[0].text
            assert text == expected[2]
            answered.release()

    with served() as (process, client), concurrent.futures.ThreadPoolExecutor() as pool:
        assert texts(client) == expected
        asked = [pool.submit(ask, client, stream=i % 2 == 0) for i in range(6)]
        for _ in range(12):
            assert answered.acquire(timeout=120)
        process.kill()
        for each in asked:  # an error of the connection, and no answer that is cut
            error = each.exception(timeout=120)
            assert isinstance(error, openai.APIConnectionError | httpx.TransportError), repr(error)
    with served() as (_, client):
        assert texts(client) == expected


def lines_of(script: str, *options: str) -> list[dict[str, Any]]:
    """Returns the lines of a campaign."""
    program = [sys.executable, str(PACKAGE / "benchmarks" / script), *options]
    paths = [str(PACKAGE.parents[1] / "scripts"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, paths))}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.mark.thorough("300 requests, in a process of their own")
def test_a_sample_of_malformed_requests():
    (bodies,) = lines_of("fuzz_server.py", "--requests", "300", "--sockets", "0")
    assert (bodies["requests"], bodies["faults"]) == (300, 0)
    assert {"200", "400"} <= set(bodies["statuses"])


@pytest.mark.slow
def test_a_sample_of_overload():
    options = ["--seconds", "0.5", "--repeats", "1", "--step-s", "0.01"]
    lines = lines_of("overload_server.py", *options)
    assert {line["metric"] for line in lines} == {"p50_ms", "p99_ms", "goodput"}
    for line in lines:
        assert line["accepted"] > 0
        assert line["refused"] > 0
        assert line["retry_after_s"][0] >= 1
