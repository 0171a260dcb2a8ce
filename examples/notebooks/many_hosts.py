# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

# %% [markdown]
# # One job on many hosts, killed, stalled and resized
#
# A small language model trains on three hosts. One host is killed, another one stalls, then the job
# shrinks to two hosts and grows back to three. It ends with the losses of an undisturbed run, and a
# picture shows each second of it. The hosts are processes of this machine.

# %% tags=["install"]
try:
    import matplotlib  # noqa: F401

    import dovetail_stack  # noqa: F401
except ImportError as missing:
    # %pip install -q dovetail-stack matplotlib
    print(f"{missing.name} is missing: pip install dovetail-stack matplotlib")

# %%
import itertools
import json
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt

from dovetail_cluster import Cluster, Elastic
from dovetail_data import Bytes, Text, text, write

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
# ## The function
#
# Every host calls this function. It is an ordinary training program, with four places for `ctx`:
#
# - `ctx.mesh` makes a mesh of the devices of all hosts.
# - `ctx.rank` and `ctx.hosts` give each host its rows of the batch. The batch stays the same for any
#   number of hosts.
# - `ctx.stop` answers each host alike whether to stop.
# - `ctx.progress` reports completed steps, so a hang is noticed.
#
# After a failure the function is called again. `fit` then continues from the newest checkpoint.
# `LocalTier` keeps each save in the memory of the hosts, every fifth step. The store gets every
# thirtieth. Imports are inside the function, since it travels to the hosts by value.

# %%
STEPS = 60


def train(ctx, corpus, run):
    import json
    import time

    import optax

    from dovetail_checkpoint import Store
    from dovetail_cluster import LocalTier
    from dovetail_data import Bytes, Corpus, batches, pack
    from dovetail_models import init, llama
    from dovetail_train import Trainer, lm_loss

    class Log:
        """A sink. The trainer calls it on the first host alone."""
        everywhere = True
        def write(self, step, scalars):
            if "loss" in scalars:
                time.sleep(0.05)  # as if the model were larger
            if "loss" in scalars and ctx.rank == 0:
                line = {"step": step, "loss": scalars["loss"], "time_s": time.monotonic()}
                line |= {"generation": ctx.generation, "hosts": ctx.hosts}
                with open(f"{run}.jsonl", "a") as file:
                    file.write(json.dumps(line) + "\n")

    config = llama(vocab_size=Bytes().vocab_size, embed=48, depth=1, heads=2, mlp=96, tie=True)
    mesh = ctx.mesh(data=-1)
    rows = pack(Corpus(corpus), length=64)
    data = batches(rows, global_batch=12, seed=0, shard=(ctx.rank, ctx.hosts))
    with Store(run) as store, LocalTier(ctx, store, store_every=30) as tier:
        Trainer(optax.adamw(5e-3), lm_loss(), mesh=mesh).fit(
            init(config, mesh=mesh, seed=0),
            data,
            steps=STEPS,
            store=tier,
            save_every=5,
            stop=ctx.stop,
            sinks=[Log(), ctx.progress],
        )


# %% [markdown]
# ## The hosts
#
# `Cluster.local` starts a daemon for each host. Daemons import the `preload` modules once, so a
# restart imports nothing. The cluster logs by Python's `logging`; a list keeps the messages for
# later.

# %%
messages = []


class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


logger = logging.getLogger("dovetail_cluster")
logger.handlers = [Keep()]
logger.setLevel(logging.INFO)

preload = ("optax", "dovetail_checkpoint", "dovetail_data", "dovetail_models", "dovetail_train")
cluster = Cluster.local(hosts=3, preload=preload, logs="none")
print(cluster.map(os.getpid) != [os.getpid()] * 3, "hosts are processes of their own")

# %% [markdown]
# First a run without disturbance, for comparison.


# %%
def read(run):
    """The lines of a run's log; the last one of a running job may be incomplete."""
    file = work / f"{run}.jsonl"
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


calm = cluster.run(train, str(work / "corpus"), str(work / "calm"))
expected = {line["step"]: line["loss"] for line in read("calm")}
assert list(expected) == list(range(STEPS))
print(f"{calm.generations} generation, last loss {expected[STEPS - 1]:.3f}")
cluster.close()
folder.cleanup()
