# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of a request and its 99th percentile, against MLServer, LitServe and BentoML.

All servers compute the same multilayer perceptron (64 to 64 to 10) on one row, with batching, for
32 connections in a closed loop. The peers compute it in NumPy, which costs them less than JAX. Each
server has a core and the client has another. CPU time is that of the server's processes, user and
system. `bare` is an ASGI application on the same uvicorn that answers a constant: the limit.

The peers do not install beside the tested set. Make an environment for each and name their folder:

    for p in litserve bentoml mlserver; do
        uv venv DIR/$p && uv pip install -p DIR/$p/bin/python $p numpy
    done
    PYTHONPATH=scripts python packages/serve/benchmarks/peers.py DIR
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dovetail_serve import Tensor, export
from measure import report, rounds

HERE = Path(__file__).resolve().parent
SERVERS = HERE / "peer_servers"
CONNECTIONS, SECONDS, REPEATS = 32, 5.0, 3
X = np.random.default_rng(1).normal(size=(1, 64)).astype("float32")
OIP = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": X[0].tolist()}]}


def main() -> None:
    """Runs every server in rounds and prints a line for each peer and metric."""
    environments = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        save_bundle(root / "repository" / "mlp" / "1")
        servers = {
            "ours": Server("/v2/models/mlp/infer", OIP, ours(root)),
            "mlserver": Server("/v2/models/mlp/infer", OIP, mlserver(environments, root)),
            "litserve": Server("/predict", {"x": X.tolist()}, litserve(environments)),
            "bentoml": Server("/predict", {"x": X.tolist()}, bentoml(environments)),
            "bare": Server("/", OIP, [sys.executable, str(SERVERS / "bare.py"), "{port}"]),
        }
        servers["again"] = servers["mlserver"]
        results = rounds(
            {n: lambda s=s: measured(s, root) for n, s in servers.items()}, repeats=REPEATS
        )
    for peer in ("mlserver", "litserve", "bentoml", "bare"):
        for metric, unit in (("cpu_us", "us"), ("p50_us", "us"), ("p99_us", "us")):
            report(
                f"1x64 MLP, {CONNECTIONS} connections, against {peer}",
                metric=metric,
                unit=unit,
                values=[figures[metric] for figures in results["ours"]],
                peer="uvicorn" if peer == "bare" else peer,
                peer_version=version(environments, peer),
                peer_values=[figures[metric] for figures in results[peer]],
                peer_again=[figures[metric] for figures in results["again"]]
                if peer == "mlserver"
                else None,
                requests_per_s=min(figures["requests_per_s"] for figures in results["ours"]),
                peer_requests_per_s=min(figures["requests_per_s"] for figures in results[peer]),
            )


class Server:
    """A command line with `{port}`, and the request that its server answers."""

    def __init__(self, path: str, body: Mapping[str, object], command: list[str]) -> None:
        self.path, self.body, self.command = path, json.dumps(body).encode(), command


def save_bundle(path: Path) -> None:
    """Saves the multilayer perceptron of peer_servers/mlp.py as a bundle."""
    sys.path.insert(0, str(SERVERS))
    import jax.numpy as jnp
    import mlp

    first, second = mlp.weights()
    export(
        lambda p, *, x: {"y": jnp.tanh(x @ p["first"]) @ p["second"]},
        {"first": first, "second": second},
        inputs={"x": Tensor(("batch", 64), "float32")},
        example={"x": np.random.default_rng(2).normal(size=(3, 64)).astype("float32")},
        batch_sizes=(1, 4, 16, 64),
        platforms=("cpu",),
    ).save(path)


def ours(root: Path) -> list[str]:
    line = [sys.executable, "-m", "dovetail_serve", "serve", str(root / "repository")]
    return [*line, "--http", "{port}"]


def litserve(environments: Path) -> list[str]:
    return [str(environments / "litserve/bin/python"), str(SERVERS / "litserve_mlp.py"), "{port}"]


def bentoml(environments: Path) -> list[str]:
    line = [str(environments / "bentoml/bin/bentoml"), "serve", "bentoml_mlp:MLP"]
    return [*line, "--host", "127.0.0.1", "--port", "{port}"]


def mlserver(environments: Path, root: Path) -> list[str]:
    """Writes its settings: no worker processes, batches, its own defaults else."""
    model = {"name": "mlp", "implementation": "mlserver_mlp.MLP"}
    model |= {"max_batch_size": 64, "max_batch_time": 0.0005}
    (root / "model-settings.json").write_text(json.dumps(model))
    settings = {"parallel_workers": 0, "host": "127.0.0.1", "debug": False}
    (root / "settings.json").write_text(json.dumps(settings))
    variables = [f"MLSERVER_{name}_PORT={free_port()}" for name in ("GRPC", "METRICS")]
    line = ["env", *variables, "MLSERVER_HTTP_PORT={port}"]
    return [*line, str(environments / "mlserver/bin/mlserver"), "start", str(root)]


def measured(server: Server, root: Path) -> dict[str, float]:
    """Starts a server, loads it, stops it. Returns the client's figures and the CPU time."""
    body = root / "body.json"
    body.write_bytes(server.body)
    with running(server, root) as (process, port):
        before, load = cpu_s(process.pid), [sys.executable, str(SERVERS / "load.py")]
        load += ["--port", str(port), "--path", server.path, "--body", str(body)]
        load += ["--connections", str(CONNECTIONS), "--seconds", str(SECONDS)]
        output = subprocess.check_output(["taskset", "-c", "1", *load])
        used = cpu_s(process.pid) - before
    figures = json.loads(output)
    if figures["statuses"].keys() != {"200"} or figures["lost"]:
        raise RuntimeError(f"{server.command} answered {figures}")
    # The load's first second is in the CPU time and not in its requests.
    requests = figures["requests"] * (SECONDS + 1.0) / SECONDS
    return figures | {"cpu_us": used / requests * 1e6}


@contextlib.contextmanager
def running(server: Server, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yields a server that has answered 50 requests, and its port; stops it afterwards."""
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in server.command]
    environment = {**os.environ, "PYTHONPATH": str(SERVERS), "BENTOML_DO_NOT_TRACK": "1"}
    environment["JAX_PLATFORMS"] = "cpu"
    with open(root / "server.log", "wb") as log:
        process = subprocess.Popen(
            ["taskset", "-c", "0", *command],
            cwd=SERVERS,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        answered, until = 0, time.monotonic() + 60
        while answered < 50:
            try:
                answered += request(port, server)
            except OSError:
                if time.monotonic() > until or process.poll() is not None:
                    raise RuntimeError((root / "server.log").read_text()) from None
                time.sleep(0.1)
        yield process, port
    finally:
        for member in family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.wait()


def request(port: int, server: Server) -> bool:
    """Returns whether one request was answered with 200."""
    url, headers = f"http://127.0.0.1:{port}{server.path}", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, server.body, headers)) as answer:
        return answer.status == 200 and bool(answer.read())


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process and its descendants, user and system."""
    return sum(family(pid).values()) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> dict[int, int]:
    """Returns the clock ticks of a process and of each descendant, also in other sessions."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks[int(stat.parent.name)] = int(fields[11]) + int(fields[12])
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    members = [pid]
    for member in members:  # grows while it is read
        members += children.get(member, ())
    return {member: ticks.get(member, 0) for member in members}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def version(environments: Path, peer: str) -> str | None:
    """Returns the version of a peer in its environment."""
    if peer == "bare":
        import uvicorn

        return uvicorn.__version__
    code = f"import importlib.metadata as m; print(m.version('{peer}'))"
    python = environments / peer / "bin/python"
    return subprocess.check_output([python, "-c", code], text=True).strip()


if __name__ == "__main__":
    main()
