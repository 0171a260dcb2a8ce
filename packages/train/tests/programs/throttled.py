# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Three processes on one core, on which something else runs too: throttled.py DIR SLOW.

Process SLOW (-1: none) gets a tenth of the share of each other one. Ends when `fit` has named a
process, or after enough comparisons. Writes, as JSON, the straggler of the newest account, the
steps of all accounts, and what process 0 logs.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path

import numpy as np
import optax
import several
from flax import nnx

from dovetail_train import Jsonl, StopRun, Trainer, make_mesh, read_jsonl

WIDTH, LAYERS = 512, 3
ENOUGH_S, LIMIT_S = 20.0, 180.0  # a straggler needs nine comparisons: 18 s


class Rows:
    """The same rows again and again: they cost nothing outside of the steps."""

    def __init__(self, me):
        self._rows = {"x": np.random.default_rng(me).normal(size=(WIDTH, WIDTH)).astype("f4")}

    def __iter__(self):
        return self

    def __next__(self):
        return self._rows

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


class Deep(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List(nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["x"]) ** 2
    return error.sum(), float(error.size)


class Course:
    """Slows the process after five steps, and ends the run; a sink that sees stragglers.

    Not before: the processes join in 30 s, or give up.

    Args:
        is_slow: Whether this process is to be slow.
        waits: Whether the run ends with the first straggler.
    """

    every = 5

    def __init__(self, *, is_slow, waits):
        self._is_slow, self._waits = is_slow, waits
        self._named, self._begin_s = False, None

    def write(self, step, scalars):
        self._named |= "straggler" in scalars

    def __call__(self, trainer, state, step):
        if self._begin_s is None:
            self._begin_s = time.monotonic()
            for thread in map(int, os.listdir("/proc/self/task")):
                os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
                if self._is_slow:  # a weight of 110, where the others have 1024
                    os.setpriority(os.PRIO_PROCESS, thread, 10)
        passed_s = time.monotonic() - self._begin_s
        ended = self._named if self._waits else passed_s > ENOUGH_S
        return StopRun() if ended or passed_s > LIMIT_S else {}


def work(me, count, *, slow, path):
    course = Course(is_slow=me == slow, waits=slow >= 0)
    trainer = Trainer(optax.adam(1e-3), loss, mesh=make_mesh(data=-1, fsdp=1))
    trainer.fit(
        Deep(nnx.Rngs(0)), Rows(me), steps=10**6, sinks=[Jsonl(path), course], hooks=[course]
    )


def compete():
    """Takes as much of the core as a process of the run. Returns its process id."""
    if child := os.fork():
        return child
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while os.getppid() != 1:
        sum(range(100_000))
    os._exit(0)


def main():
    directory, slow = Path(sys.argv[1]), int(sys.argv[2])
    path, child = directory / "metrics.jsonl", compete()
    launch = several.Launch(
        lambda me, count: work(me, count, slow=slow, path=path), count=3, log=directory / "log"
    )
    codes = launch.wait()
    os.kill(child, 9)
    assert codes == [0, 0, 0], [launch.output(me) for me in range(3)]
    lines = [line for line in read_jsonl(path) if "seconds/step" in line]
    accounts = [line["step"] for line in lines]
    said = {name: value for name, value in lines[-1].items() if name.startswith("straggler")}
    sys.stdout.write(json.dumps({"straggler": said, "accounts": accounts, "log": launch.output(0)}))


logging.basicConfig()
main()
