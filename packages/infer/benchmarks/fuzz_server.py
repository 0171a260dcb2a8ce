# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Malformed requests to the OpenAI-compatible server: no failure of its own, no hang, no leak.

    PYTHONPATH=scripts python packages/infer/benchmarks/fuzz_server.py
        [--requests 100000] [--sockets 10000] [--seconds 900] [--seed 7]

Bodies go to the application in this process. They are valid ones with fields of other types and
names, or with bytes changed: NaN, huge numbers, lone surrogates, invalid UTF-8, repeated keys, deep
nesting. Some come in pieces, and some clients leave before the end or before the answer. Each
refusal must be an error of OpenAI's form. If the body is an object of JSON, `param` must name a
field of it or an absent one that is required. Each 100th request is valid, and its text is compared
with that of the engine.

`--sockets` requests go to a server in a process of its own, over connections of their own: lengths
that contradict each other, several requests at once, slow bodies, cut ones.

At the end no request, page, task or descriptor may be left. Memory is compared with that after the
first tenth. A failure of a claim ends the program with an error; `--seconds` bounds each part.
"""

import argparse
import asyncio
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx
from fuzzed.bodies import PROMPT, Json, body_of, fault_of, text_of, valid_body
from fuzzed.connections import Connections

from dovetail_infer import Engine, Sampling
from dovetail_infer.server import app
from dovetail_infer.testing import ByteTokenizer, TinyDecoder
from measure import report

CLIENTS, MAX_BODY = 16, 1 << 20
HANG_S = 30.0  # on a busy machine; the longest answer is reported
SERVER = """
import logging
from dovetail_infer.server import run
from fuzz_server import application_of, engine_of
logging.basicConfig(level=logging.INFO)
run(application_of(engine_of()), port=0)
"""


def engine_of() -> Engine:
    """An engine of one size of steps, whose programs are compiled."""
    sizes: Json = {"page_size": 4, "step_tokens": 32, "max_rows": 4, "max_length": 64}
    model, tokenizer = TinyDecoder(rngs=nnx.Rngs(3)), ByteTokenizer()
    engine = Engine(model, tokenizer=tokenizer, kv_bytes=2**20, invariant=True, **sizes)
    engine.warmup()
    return engine


def application_of(engine: Engine) -> Any:
    return app(engine, name="tiny", tokenizer=ByteTokenizer(), chat=chat, max_body=MAX_BODY)


def chat(messages: Sequence[Json], tools: Sequence[Json], variables: Json) -> list[int]:
    """A template: the roles' first letters and the contents."""
    return [256, *"".join(f"<{m['role'][0]}>{m['content']}" for m in messages).encode()]


class Campaign:
    """Requests of one part.

    Attributes:
        sent: Number so far.
        faults: Broken claims, with route and body.
        statuses: Number of answers by status; 0 for none.
        longest_s: Of an answer.
        grown_bytes: Of memory since the first tenth of the requests.
    """

    def __init__(self, requests: int, seconds: float, rss: Callable[[], int]) -> None:
        self.sent, self.longest_s = 0, 0.0
        self.faults: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._requests, self._until = requests, time.monotonic() + seconds
        self._rss, self.grown_bytes = rss, 0

    async def run(self, ask: Callable[[int], Any]) -> None:
        """Sends all requests, by some clients at once."""

        resident = 0

        async def client() -> None:
            nonlocal resident
            while self.sent < self._requests and time.monotonic() < self._until:
                self.sent += 1
                if self.sent == self._requests // 10:
                    resident = self._rss()
                began, number = time.monotonic(), self.sent
                try:
                    fault = await asyncio.wait_for(ask(number), HANG_S)
                except TimeoutError:
                    fault = "a hang"
                except Exception as error:
                    fault = repr(error)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                if fault is not None:
                    self.faults.append(f"request {number}: {fault}")

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        self.grown_bytes = self._rss() - resident

    def report(self, case: str, wall_s: float, *, left: Mapping[str, int]) -> None:
        """Prints the line. Ends the program if a claim is broken.

        Args:
            case: Of the line.
            wall_s: Seconds of all requests.
            left: Numbers of things that must be gone.
        """
        if any(left.values()):
            self.faults.append(f"nothing may be left, got {left}")
        report(
            case,
            metric="wall_us",
            unit="us",
            values=[wall_s / self.sent * 1e6],
            requests=self.sent,
            faults=len(self.faults),
            statuses={str(status): n for status, n in sorted(self.statuses.items())},
            longest_s=self.longest_s,
            grown_bytes=self.grown_bytes,
            left=left,
        )
        if self.faults:
            sys.exit("\n".join(self.faults[:20]))


class Bodies:
    """The application in this process."""

    def __init__(self, engine: Engine, campaign: Campaign, seed: int) -> None:
        self._application, self._campaign, self._seed = application_of(engine), campaign, seed
        (completion,) = engine.generate([PROMPT], Sampling(max_tokens=3, temperature=0))
        self._expected = completion.text

    async def ask(self, number: int) -> str | None:
        """Sends one request. Returns the broken claim, or None."""
        rng = random.Random(f"{self._seed} {number}")
        route, raw = body_of(rng) if number % 100 else ("/v1/completions", valid_body())
        leaves = number % 100 != 0 and rng.random() < 0.03
        status, answer = await self._call(rng, route, raw, leaves=leaves)
        self._campaign.statuses[status] += 1
        if leaves:
            return f"status {status}" if status >= 500 else None
        if number % 100 == 0:
            right = status == 200 and text_of(answer) == self._expected
            return None if right else "a valid request must have the engine's text"
        fault = fault_of(raw, status, answer)
        return None if fault is None else f"{fault}: {route} {raw[:500]!r} -> {answer[:500]!r}"

    async def _call(
        self, rng: random.Random, route: str, raw: bytes, *, leaves: bool
    ) -> tuple[int, bytes]:
        cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.choice([0, 0, 0, 1, 5])))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        count = rng.randint(0, len(pieces)) if leaves else len(pieces)
        answered, status, answer = asyncio.Event(), 0, b""

        async def receive() -> Json:
            nonlocal count
            if count > 0:
                count -= 1
                piece = pieces.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
            if not leaves:
                await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Json) -> None:
            nonlocal status, answer
            status = message.get("status", status)
            answer += message.get("body", b"")
            await asyncio.sleep(0)

        scope = {"type": "http", "method": "POST", "path": route, "raw_path": route.encode()}
        scope |= {"query_string": b"", "headers": [(b"host", b"a")], "http_version": "1.1"}
        scope |= {"scheme": "http", "root_path": "", "server": ("a", 80), "client": ("b", 1)}
        await self._application(scope, receive, send)
        return status, answer


def rss_bytes(pid: int | str = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def open_files(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def of_bodies(options: argparse.Namespace) -> None:
    """Sends the bodies, and reports them."""
    engine = engine_of()
    campaign = Campaign(options.requests, options.seconds, rss_bytes)
    bodies = Bodies(engine, campaign, options.seed)
    tasks, files, began = len(asyncio.all_tasks()), open_files(), time.perf_counter()
    await campaign.run(bodies.ask)
    wall_s = time.perf_counter() - began
    async with asyncio.timeout(60):  # aborts take effect between two steps
        while (stats := engine.stats()).running + stats.waiting:
            await asyncio.sleep(0.01)
    left: dict[str, int] = {
        "pages": sum(pages.used for pages in stats.pages),
        "tasks": len(asyncio.all_tasks()) - tasks,
        "files": open_files() - files,
        "failed steps": stats.failed_steps,
    }
    campaign.report("malformed bodies", wall_s, left=left)
    engine.close()


async def of_connections(options: argparse.Namespace) -> None:
    """Sends the requests over connections, and reports them."""
    line = [sys.executable, "-c", SERVER]
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(
                int(match[1]) for x in process.stderr if (match := re.search(r":(\d+)$", x))
            )
            rest = asyncio.create_task(asyncio.to_thread(process.stderr.read))
            pid = process.pid
            campaign = Campaign(options.sockets, options.seconds, lambda: rss_bytes(pid))
            connections = Connections(port, campaign.statuses, options.seed)
            await connections.warm()
            files, began = open_files(pid), time.perf_counter()
            await campaign.run(connections.ask)
            wall_s = time.perf_counter() - began
            left = await connections.left()
            left |= {"files": open_files(pid) - files}
            if process.poll() is not None:
                campaign.faults.append("the server has ended")
        finally:
            process.kill()
        log = await rest
    if "Traceback" in log:
        campaign.faults.append(log[-3000:])
    campaign.report("malformed requests over connections", wall_s, left=left)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    logging.getLogger("dovetail_infer").setLevel(logging.ERROR)
    parts: dict[Callable[[argparse.Namespace], Coroutine[Any, Any, None]], int] = {
        of_bodies: options.requests,
        of_connections: options.sockets,
    }
    for part, count in parts.items():
        if count:
            asyncio.run(part(options))


if __name__ == "__main__":
    main()
