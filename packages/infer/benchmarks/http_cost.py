# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of HTTP to the engine beside it, with 64 streams.

64 requests run three ways, in rounds: as 64 streaming completions over HTTP, read by a client in
another process (`programs/streams.py`); as `Engine.streams` of this process, read by one thread;
and as `Engine.generate`. Prompts, options and texts are the same, and the texts are compared. The
server shares the engine's process, as `dovetail serve` does. `deep` takes steps of tens of
milliseconds on two cores; `tiny` has one layer of width 32, so that its steps are nearly all host
work: no model is served like that, and it is the worst case.

- engine_cpu_us: CPU microseconds of the engine's thread per token, by the clock of that thread. The
  peer is `Engine.streams`. `host_ratio` is that of `Stats.host_s`; `over_generate` the ratio to
  `Engine.generate`, which makes no pieces of text.
  `control_ratio` is that of the CPU time of `Scheduler.plan` and `Batches.build` alone, which do
  the same work in both and know nothing of streams: as far as it is above 1, the thread was slowed
  by its neighbours on the processor and has not done more.
- lock_wait: share of the wall time in which the engine's thread waits for the interpreter lock. It
  is measured and not sampled: `programs/lock_waits.c` is preloaded and times each wait of
  CPython's `take_gil` by thread, also those that hide behind the wait for the device. On a busy
  machine it has the time in which the holder of the lock is without a core.
- http_cpu_us: CPU microseconds of all Python threads but the engine's per streamed token. The peer
  is the thread that reads `Engine.streams`.
- tokens_per_s: Tokens per second over HTTP. The peer is `Engine.streams`. The client shares the two
  cores with the engine, so the loss has its work too.

It needs a C compiler, `cc`.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL, c_longlong, c_ulong
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.completion import Tokens
from dovetail_infer.server import app
from dovetail_infer.testing import TinyDecoder
from measure import report, rounds

PROGRAMS = Path(__file__).parent / "programs"
PRELOADED = "DOVETAIL_LOCK_WAITS"
ROWS, PROMPT, VOCABULARY = 64, 16, 1024
# Size of the decoder, new tokens of each request, rounds.
CASES: dict[str, tuple[dict[str, int], int, int]] = {
    "deep": ({"embed": 512, "depth": 4, "heads": 8, "kv_heads": 4}, 48, 5),
    "tiny": ({"embed": 32, "depth": 1, "heads": 4, "kv_heads": 2}, 192, 7),
}


class Encoding(NamedTuple):
    """Ids of a text."""

    ids: list[int]


class Words:
    """A tokenizer whose every id is a word, so that each token is a piece of text."""

    vocab_size, bos_id, eos_id = VOCABULARY, None, 0
    _words = tuple(f" w{i}" for i in range(VOCABULARY))

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        return [Encoding([int(w[1:]) if w[1:] else 0 for w in text.split()]) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([self._words[i] for i in ids])


class Figures(NamedTuple):
    """Costs of one run, per token where they are microseconds."""

    engine_us: float
    host_us: float
    lock_wait: float
    others_us: float
    tokens_per_s: float
    step_ms: float
    control_us: float


class Contest:
    """An engine, a server of it, and a client of the server."""

    def __init__(self, sizes: Mapping[str, int], new: int):
        model = TinyDecoder(vocab_size=VOCABULARY, rngs=nnx.Rngs(0), **sizes)
        options: dict[str, Any] = {"max_rows": ROWS, "max_length": PROMPT + new, "kv_bytes": 2**28}
        self.engine = Engine(model, tokenizer=Words(), prefix_cache=False, **options)
        self.new, self.control_s = new, 0.0
        steps: Any = self.engine._steps
        steps._scheduler.plan = self._timed(steps._scheduler.plan)
        steps._batches.build = self._timed(steps._batches.build)
        self.sampling = Sampling(max_tokens=new, temperature=0, ignore_eos=True)
        ids = np.random.default_rng(0).integers(1, VOCABULARY, (ROWS, PROMPT)).tolist()
        self.prompts = [Words().decode(row) for row in ids]
        application = app(self.engine, name="random", tokenizer=Words())
        options = {"http": "httptools", "lifespan": "off", "log_config": None, "access_log": False}
        self.server = uvicorn.Server(uvicorn.Config(application, port=0, **options))
        self.serving = threading.Thread(target=self.server.run)
        self.serving.start()
        while not self.server.started:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        body = {"model": "random", "max_tokens": new, "temperature": 0, "ignore_eos": True}
        bodies = [{**body, "stream": True, "prompt": prompt} for prompt in self.prompts]
        load = {"port": port, "path": "/v1/completions", "bodies": bodies, "connections": ROWS}
        self.load = json.dumps(load) + "\n"
        self.client = subprocess.Popen(
            [sys.executable, PROGRAMS / "streams.py"],
            env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        gc.collect()
        gc.freeze()  # as `dovetail serve`

    def http(self) -> str:
        """The client's line."""
        self.client.stdin.write(self.load)
        self.client.stdin.flush()
        return self.client.stdout.readline()

    def streams(self) -> list[str]:
        """Texts of the same streams in this process, read by this thread."""
        pieces: list[list[str]] = [[] for _ in self.prompts]
        with self.engine.streams(self.prompts, self.sampling) as streams:
            for index, piece in streams:
                if isinstance(piece, Tokens):
                    pieces[index].append(piece.text)
        assert {len(texts) for texts in pieces} == {self.new}
        return ["".join(texts) for texts in pieces]

    def generate(self) -> list[str]:
        """Texts of the same requests without pieces."""
        return [c.text for c in self.engine.generate(self.prompts, self.sampling)]

    def measured(self, run: Callable[[], Any]) -> tuple[Figures, Any]:
        """Costs and result of a run in which nothing was compiled.

        All requests begin with the same step, since otherwise those over HTTP come one by one and
        are computed in more steps.
        """
        self.engine.pause()
        self.control_s = 0.0
        begins = threading.Thread(target=self._resume)
        stats, before, begin = self.engine.stats(), self._clocks(), time.perf_counter()
        begins.start()
        result = run()
        begins.join()
        wall, after, last = time.perf_counter() - begin, self._clocks(), self.engine.stats()
        if last.late_compiles > stats.late_compiles:
            return self.measured(run)
        tokens = ROWS * self.new
        engine_s, waited_s, others_s = (b - a for a, b in zip(before, after, strict=True))
        figures = Figures(
            engine_us=engine_s / tokens * 1e6,
            host_us=(last.host_s - stats.host_s) / tokens * 1e6,
            lock_wait=waited_s / wall,
            others_us=others_s / tokens * 1e6,
            tokens_per_s=tokens / wall,
            step_ms=wall / (last.steps - stats.steps) * 1e3,
            control_us=self.control_s / tokens * 1e6,
        )
        return figures, result

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*args)
            finally:
                self.control_s += time.thread_time() - begin

        return call

    def _resume(self) -> None:
        while self.engine.stats().waiting < ROWS:
            time.sleep(0.001)
        self.engine.resume()

    def _clocks(self) -> tuple[float, float, float]:
        """CPU seconds of the engine's thread, its waits for the lock, CPU seconds of the others."""
        threads = {t.name: t for t in threading.enumerate()}
        seconds = {name: _cpu_s(t) for name, t in threads.items()}
        engine = threads["dovetail-infer"]
        waited = LOCK.lock_waited_ns(engine.ident) / 1e9
        return seconds.pop(engine.name), waited, sum(seconds.values())

    def close(self) -> None:
        """Ends the client, the server and the engine."""
        self.client.communicate()
        self.server.should_exit = True
        self.serving.join()
        self.engine.close()


def _cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def contest(name: str, sizes: Mapping[str, int], new: int, repeats: int) -> None:
    """Prints the lines of a case."""
    running = Contest(sizes, new)
    expected = running.generate()
    ways = {"http": running.http, "streams": running.streams, "generate": running.generate}
    ways["again"] = running.streams
    results = rounds(
        {way: lambda call=call: running.measured(call) for way, call in ways.items()},
        repeats=repeats,
    )
    running.close()
    figures = {way: Figures(*zip(*(f for f, _ in v), strict=True)) for way, v in results.items()}
    for way, values in results.items():
        for _, texts in values:
            assert (_texts(texts, new) if way == "http" else texts) == expected, way
    http, streams, generate, again = (figures[way] for way in ways)

    def line(metric: str, unit: str, field: str, **conditions: Any) -> None:
        ours, peers, noise = (getattr(x, field) for x in (http, streams, again))
        report(
            f"{name}, {ROWS} streams",
            metric=metric,
            unit=unit,
            values=ours,
            peer="Engine.streams",
            peer_values=peers,
            peer_again=noise,
            step_ms=statistics.median(http.step_ms),
            peer_step_ms=statistics.median(streams.step_ms),
            **conditions,
        )

    median = statistics.median
    ratios = {
        "host_ratio": (http.host_us, streams.host_us),
        "control_ratio": (http.control_us, streams.control_us),
        "over_generate": (http.engine_us, generate.engine_us),
    }
    ratios = {k: median(a / b for a, b in zip(*v, strict=True)) for k, v in ratios.items()}
    line("engine_cpu_us", "us/token", "engine_us", **ratios)
    line("lock_wait", "of wall", "lock_wait", generate=median(generate.lock_wait))
    line("http_cpu_us", "us/token", "others_us")
    line("tokens_per_s", "tokens/s", "tokens_per_s")


def _texts(line: str, new: int) -> list[str]:
    """Texts of the client's line; each token was a piece."""
    answers = json.loads(line)["answers"]
    assert {len(answer["events_s"]) for answer in answers} == {new}
    return [answer["text"] for answer in answers]


def main() -> None:
    """Runs the cases below the library that times the lock."""
    if PRELOADED in os.environ:
        for name in sys.argv[1:] or CASES:
            contest(name, *CASES[name])
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "lock_waits.so"
        line = ["cc", "-O2", "-shared", "-fPIC", "-o", library, PROGRAMS / "lock_waits.c", "-ldl"]
        subprocess.run(line, check=True)
        preloaded = {PRELOADED: str(library), "LD_PRELOAD": str(library)}
        subprocess.run([sys.executable, *sys.argv], env=os.environ | preloaded, check=True)


if __name__ == "__main__":
    if PRELOADED in os.environ:
        LOCK = CDLL(os.environ[PRELOADED])
        LOCK.lock_waited_ns.argtypes, LOCK.lock_waited_ns.restype = [c_ulong], c_longlong
    main()
