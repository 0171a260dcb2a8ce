# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve` against vLLM's server on a CPU, on one directory and the same requests.

A random Llama (`random_llamas`) in float32 with a tokenizer of words. Both servers are alive, and
one works at a time, in rounds. They have the first core and the client another, because threads of
OpenMP wait for each other in barriers: on both cores of a busy machine vLLM had a twentieth of its
tokens. --cores gives them more. The client, a process of its own (that of dovetail-infer's
benchmarks), sends prompts of 64 random ids for 64 greedy tokens without an end of text, streamed,
over 1, 4 and 16 connections in a closed loop. Prompts are new in every round, so the prefix cache,
on in both, has none of them. `same_ids` is the share of tokens before the first that differs from
the peer's.

- tokens_per_s: tokens of all requests over the seconds of the load.
- itl_p99_s: 99th percentile of the times between two events of an answer.
- ttft_s: median of the times from a request to its first event; `p99_s` and `peer_p99_s` beside it.
- http_cpu_us: CPU microseconds of the HTTP side per token. Ours is that of Python's threads but the
  engine's; vLLM's is that of its first process, which has no part of the model. vLLM makes the text
  of tokens there, and ours does in the engine's thread: `with_engine_us` has that thread too.
- cpu_us: CPU microseconds of all threads and processes of the server per token.
- start_s (with --starts): from the start of the command to the answer to a completion of one token;
  `cold` without compiled programs on disk, `warm` with those of the last start, by JAX's
  compilation cache and vLLM's own. The files are in the page cache. start_cpu_s: CPU seconds of all
  processes of the server until then.

vLLM has the environment of generation.py, build/peers/vllm, and its defaults; no library
is preloaded for it.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from random_llamas import CONFIGS, saved, write_words

from measure import ROOT, report, rounds

CLIENT = ROOT / "packages/infer/benchmarks/programs/streams.py"
VLLM = ROOT / "build/peers/vllm/bin"
PROMPT, NEW, ROWS, LENGTH = 64, 64, 16, 512
CONNECTIONS = {1: 4, 4: 12, 16: 32}  # and requests of a round
REPEATS, STARTS = 3, 1
SPIN_S = 0.4  # after an answer the threads of OpenMP spin for 0.2 s
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Server:
    """A server on a free port, started and answering. `start_s` is the time that it took.

    Args:
        who: "ours" or "vllm".
        directory: The model.
        cache: Folder of compiled programs. None: nothing is kept.
    """

    def __init__(self, who: str, directory: Path, cache: Path | None = None):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.who, self.name = who, "random"
        command, settings = (_ours if who == "ours" else _vllm)(directory, self.port, cache)
        kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 -- open as long as the process
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env={**kept, **settings},
            stdout=self.log,
            stderr=self.log,
            preexec_fn=lambda: os.sched_setaffinity(0, CORES),
        )
        self._wait()
        self.start_s = time.perf_counter() - begin

    def _wait(self) -> None:
        body = {"model": self.name, "prompt": [2, 3], "max_tokens": 1, "temperature": 0}
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        for _ in range(24000):
            with contextlib.suppress(OSError):
                request = urllib.request.Request(url, data, headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.log.seek(0)
        raise RuntimeError(self.log.read().decode(errors="replace")[-4000:])

    def cpu_s(self) -> tuple[dict[int, float], float]:
        """CPU seconds of the HTTP side's threads, which may include the engine's, and of all."""
        pid = self.process.pid
        whole = sum(_ticks(Path(f"/proc/{member}/stat")) for member in _family(pid))
        if self.who == "vllm":
            return {pid: _ticks(Path(f"/proc/{pid}/stat"))}, whole
        # Python gives its threads the name of the process; XLA and LLVM name theirs.
        tasks = {int(task.name): task for task in Path(f"/proc/{pid}/task").iterdir()}
        name = (tasks[pid] / "comm").read_text()
        own = {i: task for i, task in tasks.items() if (task / "comm").read_text() == name}
        return {i: _ticks(task / "stat") for i, task in own.items()}, whole

    def close(self) -> None:
        """Ends the server."""
        self.process.terminate()
        self.process.wait(60)


def _ours(
    directory: Path, port: int, cache: Path | None
) -> tuple[Sequence[object], Mapping[str, str]]:
    line = [sys.executable, "-m", "dovetail_stack", "serve", directory, "--http", str(port)]
    line += ["--name", "random", "--max-rows", str(ROWS), "--max-length", str(LENGTH)]
    settings = {"JAX_PLATFORMS": "cpu"}
    if cache is not None:
        settings["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax")
        # JAX writes only programs that took a second, unless it is told otherwise.
        settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return line, settings


def _vllm(
    directory: Path, port: int, cache: Path | None
) -> tuple[Sequence[object], Mapping[str, str]]:
    # `vllm serve` of the distribution vllm-cpu does not start: it looks for one named vllm.
    line = [VLLM / "python", "-m", "vllm.entrypoints.openai.api_server", "--model", directory]
    line += ["--port", str(port), "--host", "127.0.0.1", "--served-model-name", "random"]
    line += ["--dtype", "float32", "--max-num-seqs", str(ROWS), "--max-model-len", str(LENGTH)]
    line += ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    line += ["--generation-config", "vllm"]
    kept = {"VLLM_DISABLE_COMPILE_CACHE": "1"}
    if cache is not None:
        kept = {"VLLM_CACHE_ROOT": str(cache / "vllm")}
    return line, {**SETTINGS, **kept, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES))}


def _ticks(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    members = [pid]
    for member in members:  # grows while it is read
        members += children.get(member, ())
    return members


class Figures(NamedTuple):
    """Of one round of a server."""

    tokens_per_s: float
    itl_p99_s: float
    ttft_s: float
    ttft_p99_s: float
    http_cpu_us: float
    with_engine_us: float
    cpu_us: float
    texts: list[str]


class Client:
    """The process that sends the requests."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}),
        )

    def load(self, server: Server, connections: int, seeds: Iterator[int]) -> Figures:
        """Figures of a load with new prompts."""
        time.sleep(SPIN_S)
        count = CONNECTIONS[connections]
        rng = np.random.default_rng([connections, next(seeds)])
        body = {"model": server.name, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        size = CONFIGS[MODEL].vocab_size
        prompts = rng.integers(2, size, (count, PROMPT)).tolist()
        bodies = [{**body, "prompt": prompt} for prompt in prompts]
        load = {"port": server.port, "path": "/v1/completions", "bodies": bodies}
        before = server.cpu_s()
        print(json.dumps({**load, "connections": connections}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        tokens = count * NEW
        after = server.cpu_s()
        threads = {i: after[0][i] - before[0].get(i, 0) for i in after[0]}
        side = sum(threads.values())
        # Of all but the main thread, the engine's works most; the others encode prompts.
        engine = max((v for i, v in threads.items() if i != server.process.pid), default=0.0)
        costs = [x / tokens * 1e6 for x in (side - engine, side, after[1] - before[1])]
        result = json.loads(line)
        answers = result["answers"]
        assert all(answer["tokens"] == NEW for answer in answers), server.who
        first = [answer["events_s"][0] for answer in answers]
        gaps = np.concatenate([np.diff(answer["events_s"]) for answer in answers])
        return Figures(
            tokens / result["seconds"],
            float(np.quantile(gaps, 0.99)),
            statistics.median(first),
            float(np.quantile(first, 0.99)),
            *costs,
            [answer["text"] for answer in answers],
        )

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def same_ids(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of words before the first difference of each answer."""
    equal = [
        sum(itertools.takewhile(bool, map(str.__eq__, a.split(), b.split())))
        for a, b in zip(ours, theirs, strict=True)
    ]
    return sum(equal) / sum(len(text.split()) for text in theirs)


def contest(servers: Mapping[str, Server], client: Client, connections: int) -> None:
    """Prints the lines of a number of connections."""
    calls: dict[str, Any] = {}
    for name, server in {**servers, "again": servers["vllm"]}.items():
        seeds = itertools.count(1000 * (name == "again"))
        calls[name] = functools.partial(client.load, server, connections, seeds)
    results = rounds(calls, repeats=REPEATS)
    figures = {who: Figures(*zip(*values, strict=True)) for who, values in results.items()}
    ours, theirs, again = (figures[who] for who in ("ours", "vllm", "again"))
    texts = zip(ours.texts, theirs.texts, strict=True)
    same = statistics.mean(same_ids(a, b) for a, b in texts)
    median = statistics.median
    more: dict[str, dict[str, Any]] = {
        "ttft_s": {"p99_s": median(ours.ttft_p99_s), "peer_p99_s": median(theirs.ttft_p99_s)},
        "http_cpu_us": {"with_engine_us": median(ours.with_engine_us)},
    }
    units = {"tokens_per_s": "tokens/s", "itl_p99_s": "s", "ttft_s": "s"}
    for metric in ("tokens_per_s", "itl_p99_s", "ttft_s", "http_cpu_us", "cpu_us"):
        report(
            f"{MODEL}, {len(CORES)} cores, {connections} connections",
            metric=metric,
            unit=units.get(metric, "us/token"),
            values=getattr(ours, metric),
            peer=PEER,
            peer_values=getattr(theirs, metric),
            peer_again=getattr(again, metric),
            same_ids=same,
            **more.get(metric, {}),
        )


def start(who: str, directory: Path, cache: Path | None) -> tuple[float, float]:
    """Seconds and CPU seconds of a start."""
    server = Server(who, directory, cache)
    _, cpu_s = server.cpu_s()
    server.close()
    return server.start_s, cpu_s


def contest_starts(directory: Path, folder: Path) -> None:
    """Prints the lines of cold and warm starts."""
    for case, cache in (("cold", None), ("warm", folder)):
        calls = {who: functools.partial(start, who, directory, cache) for who in ("ours", "vllm")}
        results = rounds(calls, repeats=STARTS)  # the round thrown away fills the caches
        ours, theirs = (list(zip(*results[who], strict=True)) for who in ("ours", "vllm"))
        for metric, values, peers in zip(("start_s", "start_cpu_s"), ours, theirs, strict=True):
            report(
                f"{MODEL}, {len(CORES)} cores, {case} start",
                metric=metric,
                unit="s",
                values=values,
                peer=PEER,
                peer_values=peers,
            )


def contest_loads(directory: Path) -> None:
    """Prints the lines of all numbers of connections."""
    client = Client()
    servers = {who: Server(who, directory) for who in ("ours", "vllm")}
    for connections in CONNECTIONS:
        contest(servers, client, connections)
    for server in servers.values():
        server.close()
    client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=CONFIGS, default="5M")
    parser.add_argument("--starts", action="store_true", help="measure the starts alone")
    parser.add_argument("--cores", type=int, default=1, help="of the servers (1)")
    options = parser.parse_args()
    MODEL = options.model
    CORES = sorted(os.sched_getaffinity(0))[: options.cores]
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    PEER = f"vllm {subprocess.check_output([VLLM / 'python', '-c', code], text=True).strip()}"
    with tempfile.TemporaryDirectory() as name:
        directory = saved(MODEL, Path(name))
        write_words(directory)
        if options.starts:
            contest_starts(directory, Path(name) / "compiled")
        else:
            contest_loads(directory)
