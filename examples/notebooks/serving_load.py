# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # A server under load, and a new version meanwhile
#
# Up to 64 clients ask a server for the outputs of an MLP, with batching and without. Then a damaged
# version arrives under load and is refused, and a good one replaces the version that serves. Each
# answer is compared with the bundle of its version.

# %% tags=["install"]
import importlib.util
import subprocess
import sys

needed = ("dovetail_stack", "matplotlib", "sklearn")
if not all(map(importlib.util.find_spec, needed)):
    pip = "-m pip install --quiet dovetail-stack[notebooks]"
    line = [sys.executable, *pip.split()]
    if subprocess.run(line, capture_output=True).returncode:
        sys.exit("Dovetail cannot be installed. In a clone, run scripts/notebooks")

# %%
import atexit
import contextlib
import http.client
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

from dovetail_serve import Tensor, export, load

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
grid = {
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}
plt.rcParams.update(grid | {"figure.dpi": 80, "figure.constrained_layout.use": True})
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)

# %% [markdown]
# ## Two versions
#
# Each has random weights of its own, so their answers differ. The weights take longer to read than
# one row takes to compute, which is when batching pays. Version 2 waits outside the repository.

# %%
WIDTH = 3072
SHAPES = {"first": (64, WIDTH), "second": (WIDTH, WIDTH), "third": (WIDTH, 10)}


def mlp(weights, *, x):
    x = jax.nn.relu(x @ weights["first"])
    x = jax.nn.relu(x @ weights["second"])
    return {"y": x @ weights["third"]}


paths = {"1": work / "repository/mlp/1", "2": work / "version-2"}
rows = np.random.default_rng(0).standard_normal((400, 64), np.float32)
digests, expected = {}, {}
for version, path in paths.items():
    draw = np.random.default_rng(int(version))
    bundle = export(
        mlp,
        {
            name: 0.03 * draw.standard_normal(shape, np.float32)
            for name, shape in SHAPES.items()
        },
        inputs={"x": Tensor(("batch", 64), "float32")},
        example={"x": rows[:3]},
        batch_sizes=(1, 4, 16, 64),
    )
    digests[version] = bundle.save(path)
    expected[version] = load(path)(x=rows)["y"]

# %% [markdown]
# ## Servers
#
# A server is a process of its own, as in production, and tells its port in its log. One turns
# batching off by `--max-batch 1`. The other looks at the repository every 0.2 s for new versions.


# %%
class Process:
    """`python -m dovetail_serve serve repository`, ready for requests."""

    def __init__(self, *options):
        line = [
            sys.executable,
            "-m",
            "dovetail_serve",
            "serve",
            "repository",
            "--http",
            "0",
        ]
        pipes = {"stderr": subprocess.PIPE, "text": True, "cwd": work}
        self.process = subprocess.Popen([*line, *options], **pipes)
        atexit.register(self.process.kill)  # if a cell below fails
        self.port = next(
            int(x.split()[-1]) for x in self.process.stderr if "for HTTP" in x
        )
        threading.Thread(
            target=self.process.communicate, daemon=True
        ).start()  # reads the log
        self.wait("1", "READY")

    def ask(self, path, body=None):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/v2/{path}", body
        ) as response:
            return json.load(response)

    def wait(self, version, state):
        """Returns the index of the repository once the version is in this state."""
        while True:
            index = {
                entry["version"]: entry for entry in self.ask("repository/index", b"{}")
            }
            if index.get(version, {}).get("state") == state:
                return index
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0


servers = {"off": Process("--max-batch", "1"), "on": Process("--poll", "0.2")}

# %% [markdown]
# ## Clients
#
# Each client is a thread that sends one row, waits for the answer, and sends the next, at once or
# after a pause. A status other than 200, or the answer to another request, ends the test with an
# error. So does an answer that differs from the bundle of its version.


# %%
class Answer(NamedTuple):
    ended_s: float
    latency_ms: float
    client: int
    version: str


TENSOR = {"name": "x", "shape": [1, 64], "datatype": "FP32"}
inputs = [[TENSOR | {"data": row.tolist()}] for row in rows]
bodies = [json.dumps({"id": str(i), "inputs": x}) for i, x in enumerate(inputs)]


def client(n, port, stop, pause_s):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    answers = []
    for i in itertools.cycle(np.roll(np.arange(len(rows)), -7 * n)):
        if stop.wait(pause_s):
            break
        began_s = time.perf_counter()
        connection.request("POST", "/v2/models/mlp/infer", bodies[i])
        response = connection.getresponse()
        answer = json.load(response)
        ended_s = time.perf_counter()
        assert response.status == 200, answer
        assert answer["id"] == str(i)
        y, version = answer["outputs"][0]["data"], answer["model_version"]
        assert (
            np.abs(y - expected[version][i]).max() < 1e-4
        )  # float32 sums in another order
        answers.append(Answer(ended_s, 1e3 * (ended_s - began_s), n, version))
    connection.close()
    return answers


@contextlib.contextmanager
def load_by(clients, server, pause_s=0.0):
    """Runs clients during the block. After it, the list has the answers by time."""
    answers, stop = [], threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        futures = [
            pool.submit(client, n, server.port, stop, pause_s) for n in range(clients)
        ]
        try:
            yield answers
        finally:
            stop.set()
    answers += sorted(itertools.chain(*(future.result() for future in futures)))


# %% [markdown]
# ## Batching
#
# The server counts as well: nanoseconds by stage, and batches by size. The names are those of
# Triton: `compute_input` is joining and padding, `compute_output` is splitting. Each server is
# measured three times. Other programs on the machine only add time, so the best run counts.

# %%
STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


def counts(server):
    (stats,) = server.ask("models/mlp/versions/1/stats")["model_stats"]
    totals = stats["inference_stats"]
    times_ms = Counter({stage: totals[stage]["ns"] / 1e6 for stage in STAGES})
    sizes = {x["batch_size"]: x["compute_infer"]["count"] for x in stats["batch_stats"]}
    return totals["success"]["count"], times_ms, Counter(sizes)


def measure(server, clients):
    before = counts(server)
    began_s = time.perf_counter()
    with load_by(clients, server) as answers:
        time.sleep(0.4)
    requests, times_ms, sizes = (
        b - a for a, b in zip(before, counts(server), strict=True)
    )
    assert requests == len(answers)
    latency_ms = [answer.latency_ms for answer in answers]
    stages = {stage: times_ms[stage] / requests for stage in STAGES}
    stages["HTTP and client"] = np.mean(latency_ms) - sum(stages.values())
    per_s = requests / (answers[-1].ended_s - began_s)
    label = f"{per_s:.0f}/s\np99 {np.quantile(latency_ms, 0.99):.0f} ms"
    return {"per_s": per_s, "stages": stages, "sizes": sizes, "label": label}


CLIENTS = (1, 4, 16, 64)
runs = {mode: [] for mode in servers}
for clients, mode in itertools.product(CLIENTS, servers):
    rounds = [measure(servers[mode], clients) for _ in range(3)]
    runs[mode].append(max(rounds, key=lambda run: run["per_s"]))
servers["off"].stop()

# %% [markdown]
# With one client there is nothing to join. With more, the server without batching answers hardly
# more requests per second, so the queue grows. With batching, a batch takes the requests that came
# while the last one ran. Servers and clients share two cores: much of the rest is the clients' own
# time. Above the bars are answers per second, and the latency that 1% of them exceed.

# %%
assert set(runs["off"][-1]["sizes"]) == set(runs["on"][0]["sizes"]) == {1}
assert max(runs["on"][-1]["sizes"]) > 8
ratio = runs["on"][-1]["per_s"] / runs["off"][-1]["per_s"]
print(f"64 clients: {ratio:.1f} times as many answers per second with batching")
assert ratio > 1.5

figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
for panel, (mode, measured) in zip(panels, runs.items(), strict=True):
    base = np.zeros(len(CLIENTS))
    for stage in measured[0]["stages"]:
        height = np.array([run["stages"][stage] for run in measured])
        bars = panel.bar([str(n) for n in CLIENTS], height, bottom=base, label=stage)
        base += height
    panel.bar_label(bars, [run["label"] for run in measured])
    panel.set(xlabel="clients", title=f"batching {mode}", ymargin=0.15)
panels[0].set_ylabel("mean latency (ms)")
panels[0].legend(loc="upper left", frameon=False)
plt.show()

# %% [markdown]
# Sizes of the batches that ran, before padding. They follow the load: no client waits for a batch
# to fill. Clients that were answered together send again together, so some sizes are frequent.

# %%
figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True)
for panel, clients, run in zip(panels, CLIENTS[1:], runs["on"][1:], strict=True):
    sizes = list(run["sizes"].elements())
    assert max(sizes) <= clients
    bins = np.linspace(0.5, clients + 0.5, min(clients, 16) + 1)
    panel.hist(sizes, bins, weights=np.full(len(sizes), 100 / len(sizes)))
    panel.set(
        xlabel="rows of a batch", title=f"clients: {clients}", xticks=(1, clients)
    )
panels[0].set_ylabel("share of batches (%)")
plt.show()

# %% [markdown]
# ## A damaged version, then a good one
#
# While 16 clients ask about 25 times a second each, a copy of version 2 with one flipped bit
# arrives. The server refuses it, and version 1 goes on. Then the good bundle takes its place. A
# directory is moved in by one rename, so the server never sees half of a copy.

# %%
damaged = shutil.copytree(paths["2"], work / "damaged", copy_function=shutil.copyfile)
np.memmap(damaged / "weights.safetensors", np.uint8, "r+")[10**7] ^= 0b0000_0001
server, new = servers["on"], work / "repository/mlp/2"
events = {}
with load_by(16, server, pause_s=0.04) as answers:
    time.sleep(1)
    events["a damaged version 2 arrives"] = time.perf_counter()
    damaged.rename(new)
    index = server.wait("2", "UNAVAILABLE")
    events["it is refused"] = time.perf_counter()
    time.sleep(0.7)
    new.rename(work / "removed")
    events["a good version 2 arrives"] = arrival_s = time.perf_counter()
    paths["2"].rename(new)
    server.wait("2", "READY")
    time.sleep(1)

# %% [markdown]
# The index had the reason of the refusal while version 1 answered. Every request got its own
# answer, with status 200, from the weights of the version that it names: `client` asserts that.
# Each client saw version 1 first, then version 2 alone. The server has counted as many answers of
# version 2, and no failure.

# %%
print(index["2"]["reason"].replace(str(work), "."))
assert index["1"]["state"] == "READY"
for n in range(16):
    versions = [answer.version for answer in answers if answer.client == n]
    assert [version for version, _ in itertools.groupby(versions)] == ["1", "2"]
old, late = ([x for x in answers if x.version == version] for version in ("1", "2"))
assert late[0].ended_s > arrival_s
(stats,) = server.ask("models/mlp/versions/2/stats")["model_stats"]
assert stats["inference_stats"]["success"]["count"] == len(late)
assert stats["inference_stats"]["fail"]["count"] == 0
assert server.ask("models/mlp")["digest"] == digests["2"]
print(f"{len(old)} answers of version 1, {len(late)} of version 2, none lost")
print(
    f"the first answer of version 2 came "
    f"{late[0].ended_s - arrival_s:.2f} s after its files"
)
server.stop()

# %% [markdown]
# Each bar is a tenth of a second, each dot an answer. Answers are slower while a bundle is verified
# and warmed up beside the version that serves, and none is missing.

# %%
figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(10, 5), sharex=True, height_ratios=[3, 2]
)
start_s = answers[0].ended_s
ended = [[x.ended_s - start_s for x in group] for group in (old, late)]
top.hist(
    ended,
    np.arange(0, ended[1][-1], 0.1),
    stacked=True,
    label=["version 1", "version 2"],
)
for x, group in zip(ended, (old, late), strict=True):
    bottom.plot(x, [answer.latency_ms for answer in group], ".", ms=3)
for height, (label, time_s) in zip((0.96, 0.85, 0.74), events.items(), strict=True):
    for panel in (top, bottom):
        panel.axvline(time_s - start_s, color="black", ls=":")
    top.text(
        time_s - start_s,
        height,
        f" {label}",
        transform=top.get_xaxis_transform(),
        va="top",
    )
top.set(ylabel="answers per 0.1 s", ymargin=0.6)
top.legend(loc="lower left")
bottom.set(
    xlabel="seconds", ylabel="latency (ms)", xlim=(0, ended[1][-1]), ylim=(0, None)
)
plt.show()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - [A classifier, from its checkpoint to a server](serving.ipynb): bundles of a training run, and
#   the digests that lead back to it.
# - [Serving models](../../docs/serving.md) has the options of batching, by measured effect.
