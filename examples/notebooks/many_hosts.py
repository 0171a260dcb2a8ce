# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # One job on many hosts, killed, stalled and resized
#
# A small language model trains on three hosts. One host is killed, another one stalls, then the job
# shrinks to two hosts and grows back to three. It ends with the losses of an undisturbed run, and a
# picture shows each second of it. The hosts are processes of this machine.

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
import itertools
import json
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_cluster import Cluster, Elastic, LocalTier
from dovetail_data import Bytes, Corpus, Text, batches, pack, text, write
from dovetail_train import Trainer

# The hosts inherit this. Small programs compile for longer than they run.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

plt.style.use("tableau-colorblind10")  # colours that everybody tells apart
plt.rcParams.update({"figure.dpi": 80, "figure.facecolor": "white"})

# %% [markdown]
# All hosts read the same text and write to the same store, here in one temporary folder. On real
# hosts both are on a file system that all of them mount.

# %%
folder = tempfile.TemporaryDirectory(prefix="dovetail-")
work = Path(folder.name)
files = sorted(Path(json.__file__).parent.glob("*.py"))
corpus = write(text(files), work / "corpus", encoder=Text(Bytes()))
print(f"{len(corpus)} documents, {corpus.text_bytes} bytes")

# %% [markdown]
# ## The model
#
# It predicts a byte from the eight bytes before it. Any Flax module and any loss would do.


# %%
class Model(nnx.Module):
    def __init__(self, vocab_size, rngs):
        self.embed = nnx.Embed(vocab_size, 16, rngs=rngs)
        self.hidden = nnx.Linear(8 * 16, 64, rngs=rngs)
        self.out = nnx.Linear(64, vocab_size, rngs=rngs)

    def __call__(self, tokens):
        length = tokens.shape[1]
        x = jnp.pad(self.embed(tokens), ((0, 0), (7, 0), (0, 0)))
        x = jnp.concatenate([x[:, i : i + length] for i in range(8)], axis=-1)
        return self.out(nnx.tanh(self.hidden(x)))


def loss(model, batch, *, key):
    del key
    logits = model(batch["tokens"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return jnp.sum(losses * batch["mask"]), jnp.sum(batch["mask"], dtype=jnp.float32)


# %% [markdown]
# ## The function
#
# Every host calls `train`. It is an ordinary training program that uses `ctx` for five things:
#
# - `ctx.mesh` makes a mesh of the devices of all hosts.
# - `ctx.rank` and `ctx.hosts` give each host its rows of the batch. The batch is the same for any
#   number of hosts.
# - `ctx.stop` tells all hosts at the same step to stop.
# - `ctx.progress` reports completed steps, so a hang is noticed.
# - `LocalTier(ctx, ...)` saves to the memory of the hosts, here every fourth step. The store behind
#   it gets the last step, and those of agreed stops.
#
# After a failure the function is called again, and `fit` continues from the newest checkpoint.

# %%
STEPS = 48


class Log:
    """A sink that writes a line for each step, on the first host."""

    everywhere = True  # the trainer calls it on all hosts, for the sleep

    def __init__(self, ctx, file, step_s):
        self.ctx, self.file, self.step_s = ctx, file, step_s

    def write(self, step, scalars):
        if "loss" not in scalars:
            return
        time.sleep(self.step_s)
        if self.ctx.rank == 0:
            line = {"step": step, "loss": scalars["loss"], "time_s": time.monotonic()}
            line |= {"generation": self.ctx.generation, "hosts": self.ctx.hosts}
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")


def train(ctx, work, name, step_s):
    corpus = Corpus(work / "corpus")
    model = nnx.jit(lambda: Model(corpus.vocab_size, nnx.Rngs(0)))()
    with Store(work / name) as store, LocalTier(ctx, store, store_every=1000) as tier:
        Trainer(optax.adamw(1e-2), loss, mesh=ctx.mesh(data=-1)).fit(
            model,
            batches(
                pack(corpus, length=64),
                global_batch=12,
                seed=0,
                shard=(ctx.rank, ctx.hosts),
            ),
            steps=STEPS,
            store=tier,
            save_every=4,
            stop=ctx.stop,
            sinks=[Log(ctx, work / f"{name}.jsonl", step_s), ctx.progress],
        )


# %% [markdown]
# ## The hosts
#
# `Cluster.local` starts a daemon for each host. It imports the `preload` modules once, so a restart
# need not. The cluster writes its log by Python's `logging`; a list keeps the messages for later.

# %%
messages = []


class Keep(logging.Handler):
    def emit(self, record):
        messages.append((time.monotonic(), record.getMessage()))


logger = logging.getLogger("dovetail_cluster")
logger.handlers = [Keep()]
logger.propagate = False
logger.setLevel(logging.INFO)

preload = (
    "optax",
    "flax.nnx",
    "dovetail_checkpoint",
    "dovetail_data",
    "dovetail_train",
)
cluster = Cluster.local(hosts=3, preload=preload, logs="none")
cluster.map(lambda: "ready")

# %% [markdown]
# First a run without disturbance, for comparison.


# %%
def read(name):
    """Lines of a run's log. The last one may still be incomplete."""
    file = work / f"{name}.jsonl"
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


calm = cluster.run(train, work, "calm", 0.0)
expected = {line["step"]: line["loss"] for line in read("calm")}
assert list(expected) == list(range(STEPS))
print(
    f"{calm.generations} generation, "
    f"loss {expected[0]:.3f} to {expected[STEPS - 1]:.3f}"
)

# %% [markdown]
# ## The faults
#
# The second job runs in a thread, and the faults strike it from here. It sleeps 0.2 s in each step,
# as if its model were larger. `reached` waits for a step of the job, after the restart that the
# fault before has caused. `Elastic` allows two or three hosts, and takes five seconds without a
# step for a hang.
#
# - `kill` sends SIGKILL to the host's process.
# - `stall` lets it sleep. The other hosts then wait for it in a collective.
# - `resize` asks for another number of hosts. All stop at an agreed step first.

# %%
faults = []


def reached(step, generation):
    while not any(
        x["step"] >= step and x["generation"] >= generation for x in read("faulty")
    ):
        if job.done():
            raise RuntimeError(f"the job ended before step {step}") from job.exception()
        time.sleep(0.02)


def strike(label, fault):
    faults.append((time.monotonic(), label))
    fault()


with ThreadPoolExecutor() as pool:
    elastic = Elastic(hosts=(2, 3), stall_s=5.0)
    job = pool.submit(cluster.run, train, work, "faulty", 0.2, elastic=elastic)
    reached(9, generation=0)
    strike("host 1 is killed", cluster.host(1).kill)
    reached(18, generation=1)
    strike("host 2 stalls", lambda: cluster.host(2).stall(600))
    reached(27, generation=2)
    strike("resize(2)", lambda: cluster.resize(2))
    reached(36, generation=3)
    strike("resize(3)", lambda: cluster.resize(3))
result = job.result()
cluster.close()

# %% [markdown]
# Each start is a generation. It begins at the newest save, so a crash or a hang costs the steps
# since then, and an agreed stop costs none.

# %%
lines = read("faulty")
for generation, group in itertools.groupby(lines, key=lambda line: line["generation"]):
    group = list(group)
    first, last = group[0]["step"], group[-1]["step"]
    print(
        f"generation {generation}: {group[0]['hosts']} hosts, steps {first} to {last}"
    )

# %% [markdown]
# The log has the reason of each start. The report on the hang has the Python stacks of all hosts;
# here is the first line of each message.

# %%
begin = result.timeline[0][1]
for time_s, message in messages:
    if time_s > begin:
        print(message.splitlines()[0])

# %% [markdown]
# ## The same losses
#
# On three hosts, until the first resize, the losses are those of the undisturbed run, bit for bit,
# also those of repeated steps. On two hosts sums are rounded in another order, so the last bits
# differ from there on.

# %%
resized = next(line["generation"] for line in lines if line["hosts"] == 2)
assert {line["step"] for line in lines} == set(range(STEPS))
assert all(
    line["loss"] == expected[line["step"]]
    for line in lines
    if line["generation"] < resized
)
off = max(abs(line["loss"] / expected[line["step"]] - 1) for line in lines)
# Sums of float32 in another order, carried on for 20 steps.
assert off < 1e-3
print(f"largest relative difference after the resize: {off:.1e}")

# %% [markdown]
# ## Where the time went
#
# `Result.states` has the seconds of each state, and they sum to the wall time of the job.

# %%
wall_s = result.timeline[-1][2] - begin
assert abs(sum(result.states.values()) - wall_s) < 1e-6
for state, seconds in sorted(result.states.items(), key=lambda item: -item[1]):
    print(f"{state:12}{seconds:7.1f} s {seconds / wall_s:8.1%}")
print(f"{'wall time':12}{wall_s:7.1f} s")

# %% [markdown]
# `Result.timeline` has the states in order, by the same clock as the log of losses. "running"
# includes the compilation before the first step of a generation.

# %%
colours = {
    "waiting": "#CFCFCF",
    "starting": "#FFBC79",
    "running": "#5F9ED1",
    "draining": "#A2C8EC",
    "stuck": "#C85200",
    "restarting": "#FF800E",
}
fig, (top, strip) = plt.subplots(
    2, 1, figsize=(9, 5.4), sharex=True, height_ratios=[5, 1], layout="constrained"
)
for generation, group in itertools.groupby(lines, key=lambda line: line["generation"]):
    group = list(group)
    hosts = group[0]["hosts"]
    seconds = [line["time_s"] - begin for line in group]
    colour, marker = ("C0", "o") if hosts == 3 else ("C5", "s")
    label = f"{hosts} hosts" if generation in (0, resized) else None
    top.plot(
        seconds,
        [line["loss"] for line in group],
        f"{marker}-",
        c=colour,
        ms=4,
        label=label,
    )
    above = max(line["loss"] for line in group) + 0.15
    top.text(seconds[-1], above, f"generation {generation}", color=colour, ha="center")
for time_s, label in faults:
    for ax in (top, strip):
        ax.axvline(time_s - begin, color="black", ls=":")
    top.text(time_s - begin, 0.5, f" {label}", transform=top.get_xaxis_transform())
for state, colour in colours.items():
    spans = [
        (since - begin, until - since)
        for s, since, until in result.timeline
        if s == state
    ]
    strip.broken_barh(spans, (0, 1), color=colour, label=state)
top.set(ylabel="loss (nats per byte)", title="A job on many hosts through four events")
top.margins(y=0.1)
top.legend(loc="upper right")
top.grid(True)
strip.set(xlabel="seconds since the job began", ylabel="state", yticks=[], ylim=(0, 1))
strip.set_xlim(0, wall_s)
fig.legend(
    *strip.get_legend_handles_labels(), loc="outside lower center", ncols=len(colours)
)
plt.show()
folder.cleanup()

# %% [markdown]
# ## What to try next
#
# - [From one machine to many](../../docs/many_hosts.md): the same on Ray, Slurm or a list of hosts,
#   and by one command.
# - [A killed run](damage_and_resume.ipynb) of one process, with a damaged checkpoint.
