# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers beside requests that are cut, that fail, or that run with them."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import httpx
import pytest
from clients import KEY, Running

from dovetail_infer.server import app
from dovetail_infer.testing import ByteTokenizer

NEW = 16
HEADERS = {"Authorization": f"Bearer {KEY}"}
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": NEW, "ignore_eos": True}


def random_prompts(count: int, *, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefgh ", k=rng.randint(1, 30))) for _ in range(count)]


def expected(prompt: str, *, model: Any, count: int = NEW) -> str:
    """The greedy text, by whole forward passes."""
    return ByteTokenizer().decode(engines.greedy(model, [256, *prompt.encode()], count))


async def ask(client: httpx.AsyncClient, *, stop_after: int | None = None, **body: Any) -> Any:
    """Returns the text of a stream or of a whole answer, or its error.

    Args:
        client: Of the server.
        stop_after: Events of a stream before the connection is closed.
        body: The request.
    """
    text, events = "", 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if not body.get("stream"):
            values = json.loads(await response.aread())
            if "error" in values:
                return {**values["error"], "status": response.status_code}
            return values["choices"][0]["text"]
        async for line in response.aiter_lines():
            if events == stop_after:
                return text
            if line.startswith("data: {"):
                events += 1
                values = json.loads(line.removeprefix("data: "))
                if "error" in values:
                    return values["error"]
                text += values["choices"][0]["text"]
        assert line == "data: [DONE]" or not line
    return text


class Watched:
    """An application that knows its event loop."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await self._application(scope, receive, send)

    def state(self, engine: Any) -> dict[str, Any]:
        """All that a request may leave behind."""

        async def tasks() -> int:
            await asyncio.sleep(0)  # those that end now have ended
            return len(asyncio.all_tasks())

        assert self.loop is not None
        stats = engine.stats()
        return {
            "requests": stats.running + stats.waiting,
            "pages": [(pages.used, pages.cached + pages.free) for pages in stats.pages],
            "tasks": asyncio.run_coroutine_threadsafe(tasks(), self.loop).result(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        }


@pytest.fixture
def watched() -> Iterator[tuple[Running, Watched]]:
    engine = engines.text_engine()
    watch = Watched(app(engine, name="tiny", tokenizer=ByteTokenizer(), api_keys=[KEY]))
    server: Any = Running(engine, watch)  # pyright: ignore[reportArgumentType]
    yield server, watch
    server.close()


@contextlib.asynccontextmanager
async def client_of(server: Running) -> Any:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=server.url, headers=HEADERS, timeout=120, limits=limits
    ) as client:
        yield client


@pytest.mark.thorough("128 streams")
def test_streams_beside_streams_that_are_cut(watched):
    """64 streams, 32 of them cut after some events, twice. Nothing of them is left."""
    server, watch = watched
    prompts, model, rng = random_prompts(64, seed=1), engines.byte_decoder(), random.Random(2)
    cut = set(rng.sample(range(64), 32))
    moments = [rng.randrange(8) if i in cut else None for i in range(64)]
    counts = [2 * NEW if i in cut else NEW for i in range(64)]
    wanted = [expected(prompts[i], model=model, count=counts[i]) for i in range(64)]

    async def stream(client: httpx.AsyncClient, i: int) -> str:
        body = {**GREEDY, "prompt": prompts[i], "stream": True, "max_tokens": counts[i]}
        if moments[i] != 0:
            return await ask(client, stop_after=moments[i], **body)
        with contextlib.suppress(httpx.TimeoutException):  # before its first event
            await client.post("/v1/completions", json=body, timeout=rng.uniform(0.01, 0.2))
        return ""

    async def once() -> list[str]:
        async with client_of(server) as client:
            return await asyncio.gather(*(stream(client, i) for i in range(64)))

    httpx.post(f"{server.url}/v1/completions", json={**GREEDY, "prompt": "a"}, headers=HEADERS)
    before = watch.state(server.engine)
    for _ in range(2):
        for i, (text, want) in enumerate(zip(asyncio.run(once()), wanted, strict=True)):
            assert want.startswith(text) if i in cut else text == want
        wait_until(lambda: watch.state(server.engine) == before)
    assert server.engine.stats().finished["abort"] > 0
    assert server.engine.stats().failed_steps == 0


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.thorough("25 requests with all kinds of options")
def test_a_seeded_answer_is_the_same_beside_24_others(server):
    rng = random.Random(3)
    own = {**GREEDY, "prompt": "Hello", "temperature": 1.0, "seed": 5, "n": 2}
    others = [
        {
            **GREEDY,
            "prompt": prompt,
            "temperature": rng.choice([0, 0.7, 1.5]),
            "top_p": rng.choice([1.0, 0.8]),
            "top_k": rng.choice([-1, 5]),
            "presence_penalty": rng.choice([0, 0.5]),
            "max_tokens": rng.randint(1, NEW),
            "stream": rng.random() < 0.5,
        }
        for prompt in random_prompts(24, seed=4)
    ]

    async def texts(client: httpx.AsyncClient) -> list[str]:
        response = await client.post("/v1/completions", json=own)
        return [choice["text"] for choice in response.json()["choices"]]

    async def compare() -> tuple[list[str], list[str]]:
        async with client_of(server) as client:
            alone = await texts(client)
            server.engine.pause()  # so that all are there before the first step
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask(client, **body)) for body in others[:12]]
                beside = group.create_task(texts(client))
                asked += [group.create_task(ask(client, **body)) for body in others[12:]]
                while server.engine.stats().waiting < 26:
                    await asyncio.sleep(0.01)
                server.engine.resume()
            assert all(isinstance(task.result(), str) for task in asked)
            return alone, beside.result()

    alone, beside = asyncio.run(compare())
    assert alone == beside
    assert len(set(alone)) == 2


@pytest.mark.thorough("an engine of its own")
def test_a_failed_step_is_an_error_of_its_own_requests(start):
    server = start()
    model, prompts = engines.byte_decoder(), random_prompts(8, seed=6)
    steps = server.engine._steps
    count = iter(range(10**6))
    steps._executor = engines.Failing(steps._executor, lambda batch: next(count) == 2)

    async def run() -> list[Any]:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            server.engine.pause()
            tasks = []
            for i, prompt in enumerate(prompts):
                body = {**GREEDY, "prompt": prompt[:5], "stream": i % 2 == 0}
                tasks.append(group.create_task(ask(client, **body)))
                while server.engine.stats().waiting <= i:  # in this order: rows for the first four
                    await asyncio.sleep(0.001)
            server.engine.resume()
        return [task.result() for task in tasks]

    results = asyncio.run(run())
    assert [error.get("status") for error in results[:4]] == [None, 500, None, 500]
    for error in results[:4]:
        assert (error["type"], error["code"]) == ("server_error", "failed_step")
        assert "injected" in error["message"]
        assert error["param"] is None
    assert results[4:] == [expected(prompt[:5], model=model) for prompt in prompts[4:]]
    assert server.engine.stats().failed_steps == 1


def test_a_client_that_leaves_before_the_head_of_its_stream_aborts_it(server):
    """As after a pipelined request, whose answer the client has not read."""
    body = json.dumps({**GREEDY, "prompt": "a", "max_tokens": 50, "stream": True}).encode()
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
    scope |= {"headers": [(b"authorization", HEADERS["Authorization"].encode())]}

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        await asyncio.Event().wait()  # the connection takes no more

    def finished() -> int:
        return sum(server.engine.stats().finished.values())

    async def leave() -> None:
        server.engine.pause()
        await server.application(scope, receive, send)
        server.engine.resume()
        while finished() == before:
            await asyncio.sleep(0.01)

    before, aborted = finished(), server.engine.stats().finished.get("abort", 0)
    asyncio.run(asyncio.wait_for(leave(), 120))
    assert server.engine.stats().finished.get("abort", 0) == aborted + 1
