# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains DPO over `with_reference`, killed again and again, and compares it with a whole run.

    python reference_kills.py FOLDER KILLS SEED

A launch is a forked process. Half of the kills come from outside, at a random moment after a random
event. The others tear a record: the process writes a random part of it and kills itself. A run is
launched until it ends; then the next run begins, until there were KILLS kills. Prints counts.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

sys.path.append(str(Path(__file__).parent.parent))

from batches import pairs_of

from dovetail_tune import dpo, mean_loss, token_logps, with_reference
from dovetail_tune.testing import TinyDecoder

BATCHES, EPOCHS = 12, 2
STEPS = BATCHES * EPOCHS


class Logged:
    """Scores a batch, and logs each batch that is computed."""

    def __init__(self, log):
        self.log = log

    def __call__(self, model, batch):
        jax.debug.callback(self._note, batch["tokens"])
        return token_logps(model, batch)

    def _note(self, tokens):
        note(self.log, "computed", hashlib.sha1(np.asarray(tokens).tobytes()).hexdigest())


def note(log, *words):
    with open(log, "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def decoder():
    """Returns a decoder with NumPy's random parameters: JAX would compile their initialization."""
    rng = np.random.default_rng(0)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: TinyDecoder(width=8, rngs=nnx.Rngs(0))))
    normal = [rng.normal(size=x.shape) * x.shape[0] ** -0.5 for x in jax.tree.leaves(shapes)]
    arrays = [jax.numpy.asarray(x, np.float32) for x in normal]
    return nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(shapes), arrays))


def train(folder):
    """Trains to the end, from the newest checkpoint on."""
    note(folder / "log", "launched")
    batches = [pairs_of(pairs=2, length=9, seed=i) for i in range(BATCHES)] * EPOCHS
    reference, model = decoder(), decoder()
    data = with_reference(batches, reference, folder / "cache", scorer=Logged(folder / "log"))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    mean = mean_loss(dpo())

    @nnx.jit
    def update(model, optimizer, batch):
        loss, gradients = nnx.value_and_grad(lambda model: mean(model, batch)[0])(model)
        optimizer.update(model, gradients)
        return loss

    checkpoint, losses = folder / "checkpoint.npz", []
    leaves, structure = jax.tree.flatten(nnx.state((model, optimizer)))
    if checkpoint.exists():
        saved = np.load(checkpoint)
        leaves = [jax.numpy.asarray(saved[f"x{i}"]) for i in range(len(leaves))]
        nnx.update((model, optimizer), jax.tree.unflatten(structure, leaves))
        position = json.loads(str(saved["position"]))
        losses = position["losses"]
        data.set_state(position["data"])
    for batch in data:
        losses.append(float(update(model, optimizer, batch)).hex())
        arrays = jax.tree.leaves(nnx.state((model, optimizer)))
        arrays = {f"x{i}": np.asarray(x) for i, x in enumerate(arrays)}
        position = json.dumps({"losses": losses, "data": data.get_state()})
        np.savez(folder / "partial.npz", **arrays, position=position)
        (folder / "partial.npz").replace(checkpoint)
        note(folder / "log", "saved", len(losses))
    note(folder / "log", "losses", *losses)


def launch(folder, *, torn=None):
    """Forks a process that trains. `torn`: number of a write to tear, and the share to keep."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if torn is not None:
            tear(*torn)
        train(folder)
        status = 0
    finally:
        os._exit(status)


def tear(count, share):
    """Kills this process within the write number `count` of the cache, after a part of it."""
    write, writes = os.write, [0]

    def torn(descriptor, content):
        writes[0] += 1
        if writes[0] < count:
            return write(descriptor, content)
        write(descriptor, bytes(content)[: int(share * len(content))])
        return os.kill(os.getpid(), signal.SIGKILL)

    os.write = torn


def wait(child):
    """Returns True if the process was killed, False at its end. Raises if it failed."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        raise RuntimeError(f"a launch must end or be killed, got status {status}")
    return False


def kill_after(child, log, events, delay_s):
    """Kills the process `delay_s` after its log has `events` more lines, unless it ends before."""
    goal = lines(log) + events
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while lines(log) < goal and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(0.002)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)


def lines(log):
    return log.read_text().count("\n") if log.exists() else 0


def run(folder, rng, kills):
    """Launches a run until it ends. Returns the number of kills, at most `kills`."""
    killed = 0
    while killed < kills:
        if rng.random() < 0.5:
            child = launch(folder, torn=(rng.randint(1, BATCHES // 2), rng.random()))
        else:
            child = launch(folder)
            # An event is a line of the log: launched, computed, saved.
            kill_after(child, folder / "log", rng.randint(1, BATCHES), rng.random() * 0.02)
        if not wait(child):
            return killed
        killed += 1
    wait(launch(folder))
    return killed


def check(folder, expected):
    """Raises unless the losses are those expected, and only batches in flight came twice.

    Returns the number of those.
    """
    words = [line.split() for line in (folder / "log").read_text().splitlines()]
    losses = next(w[1:] for w in words if w[0] == "losses")
    if losses != expected:
        raise RuntimeError(f"the losses must be {expected}, got {losses}")
    known, again, previous, fresh = set(), 0, None, True
    for kind, *rest in words:
        if kind == "launched":
            fresh = True
        elif kind == "computed":
            if rest[0] in known:
                if not fresh or rest[0] != previous:
                    raise RuntimeError("only the batch in flight may be computed again")
                again += 1
            known.add(rest[0])
            previous, fresh = rest[0], False
    if len(known) != BATCHES:
        raise RuntimeError(f"{BATCHES} batches must be computed, got {len(known)}")
    return again


def main(folder, kills, seed):
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # no backend exists yet
    rng, killed, again, runs = random.Random(seed), 0, 0, 0
    whole = folder / "whole"
    whole.mkdir(parents=True)
    wait(launch(whole))
    expected = (whole / "log").read_text().splitlines()[-1].split()[1:]
    if len(expected) != STEPS:
        raise RuntimeError(f"a whole run must have {STEPS} losses, got {len(expected)}")
    while killed < kills:
        (folder / "run").mkdir()
        killed += run(folder / "run", rng, kills - killed)
        again += check(folder / "run", expected)
        shutil.rmtree(folder / "run")
        runs += 1
    print(f"kills: {killed}\nruns: {runs}\nbatches in flight: {again}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
