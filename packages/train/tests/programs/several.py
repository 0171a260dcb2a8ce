# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Launches of one run on several processes, forked before JAX starts its threads.

All of them cost one import. The mesh is data=2, fsdp=2 for 1, 2 and 4 processes. `Launch` starts
the processes of a launch; `losses` reads the run's metrics.
"""

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401 - once, for all of them
from flax import nnx

from dovetail_train import (
    Eval,
    Jsonl,
    OrbaxStore,
    Trainer,
    fsdp_shardings,
    initialize_distributed,
    make_mesh,
    read_jsonl,
    watch_processes,
)

ROWS, WIDTH, DEVICES = 8, 6, 4


class Batches:
    """The rows of process `me` of `count`; every batch depends on its number alone."""

    def __init__(self, me, count):
        self.i, self.me, self.count = 0, me, count

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return rows_of(self.i - 1, self.me, self.count)

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def rows_of(number, me, count):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(ROWS, WIDTH)).astype("f4")
    mask = (rng.random((ROWS, 2)) < 0.6).astype("f4")
    batch = {"x": x, "y": x[:, :2] ** 2, "mask": mask}
    each = ROWS // count
    return {name: x[me * each : (me + 1) * each] for name, x in batch.items()}


def loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return (batch["mask"] * error).sum(), batch["mask"].sum()


class Everywhere:
    """A sink that every process calls: it appends the step to a file of the process."""

    everywhere = True

    def __init__(self, path):
        self.path = path

    def write(self, step, scalars):
        if "loss" in scalars:
            with self.path.open("a") as file:
                file.write(f"{step}\n")


def fit(directory, me, count, *, steps, save_every=2, store=OrbaxStore, hooks=()):
    mesh = make_mesh(data=2, fsdp=2)
    model = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
    nnx.update(model, jax.device_put(nnx.state(model), fsdp_shardings(model, mesh, min_size=1)))
    evaluation = Eval([rows_of(1000, me, count)], every=2, metrics={"loss": loss})
    result = Trainer(optax.adam(0.1), loss, mesh=mesh).fit(
        model,
        Batches(me, count),
        steps=steps,
        store=store(directory / "checkpoints"),
        save_every=save_every,
        sinks=[Jsonl(directory / "metrics.jsonl"), Everywhere(directory / f"steps_{count}_{me}")],
        hooks=[evaluation, *hooks],
    )
    if me == 0:
        (directory / f"seconds_{count}_{steps}").write_text(json.dumps(result.seconds))


class Launch:
    """The processes of one launch: `work(me, count)` runs in each, joined to the others.

    Args:
        work: Runs in each process.
        count: Number of processes.
        log: Where their output goes, with the number of the process added.
        join: Joins a process to the others: `initialize_distributed`, or none of it.
    """

    def __init__(self, work, *, count, log):
        self.count, self._log, self._work = count, log, work
        self._joined = []
        sys.stdout.flush()
        with socket.socket() as held:
            # Nobody else gets the port meanwhile; the coordinator may: it sets the option too.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{held.getsockname()[1]}"
            self._children = [self._fork(me, address) for me in range(count)]
            for end in self._joined:  # until each has joined the others, or ended
                os.read(end, 1)
                os.close(end)

    def kill(self, me):
        os.kill(self._children[me], signal.SIGKILL)

    def is_running(self, me):
        """Whether process `me` has not ended. Its exit code stays for `wait`."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._children[me], options) is None

    def wait(self):
        """Returns the exit codes; -9 for a killed process."""
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in self._children]

    def output(self, me):
        return Path(f"{self._log}.{me}").read_text()

    def _fork(self, me, address):
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            self._joined.append(reading)
            return child
        code = 1
        try:
            self._redirect(me)
            if self.count > 1:
                initialize_distributed(address, processes=self.count, process=me)
            os.write(writing, b"j")
            with watch_processes():  # parameters are placed before `fit`, by a collective
                self._work(me, self.count)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.exit(code)  # as a user's program ends, with everything that runs at its end

    def _redirect(self, me):
        output = os.open(f"{self._log}.{me}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        flags = f"--xla_force_host_platform_device_count={DEVICES // self.count}"
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"
        jax.config.update("jax_enable_compilation_cache", False)


def train(directory, count, *, steps, **options):
    """One whole launch. Raises unless every process ends with 0."""
    directory.mkdir(exist_ok=True)
    launch = Launch(
        lambda me, count: fit(directory, me, count, steps=steps, **options),
        count=count,
        log=directory / f"log_{count}_{steps}",
    )
    codes = launch.wait()
    for me, code in enumerate(codes):
        assert code == 0, f"process {me} of {count}: {codes}\n{launch.output(me)[-3000:]}"


def losses(directory):
    lines = read_jsonl(directory / "metrics.jsonl")
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
