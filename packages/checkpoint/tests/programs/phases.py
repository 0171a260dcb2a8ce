# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small training loop that gets a signal in one of its phases; prints how it ended.

For each phase a process runs the loop and says when it enters the phase, at which it is sent the
signal. It repeats the phase's work until it learns of the signal; a save waits for it before its
checksums. Then it must save, and exit with 0; another process restores the state that it had.
The phases are those of goodfire-ai/spd#677, where none of the saves came.
"""

import functools
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import StopRequest, Store, on_signal
from dovetail_checkpoint.proof import checksums

PHASES = ("compile", "warm-up", "evaluation", "train step", "between steps", "save")
EVERY, LAST = 2, 6  # an evaluation and a save at each other step
HANG_S = 100  # only a request that is never seen takes this long


@jax.jit
def train(state):
    """A step that takes a while to compile, and to run."""

    def layer(_, w):
        for i in range(6):
            w = jnp.sort(w * (1.0 + i), axis=0) + jnp.sin(w)
        return w / (1.0 + jnp.abs(w).max())

    return {"w": jax.lax.fori_loop(0, 10, layer, state["w"]), "step": state["step"] + 1}


@jax.jit
def evaluate(state):
    return jax.lax.fori_loop(0, 60, lambda _, w: jnp.tanh(jnp.sort(w, axis=0)), state["w"]).sum()


def fresh() -> dict:
    values = np.random.default_rng(0).normal(size=(301, 33)).astype(np.float32)
    return {"w": jnp.asarray(values), "step": jnp.int32(0)}


def fingerprint(step: int, state: dict) -> str:
    return f"{step} {int(state['step'])} {hashlib.sha256(np.asarray(state['w'])).hexdigest()[:16]}"


def compiled(state: dict) -> Callable[[dict], dict]:
    jax.clear_caches()
    return train.lower(state).compile()


def loop(root: Path, phase: Callable[[str, StopRequest, Callable[[], Any]], Any]) -> str:
    """The loop as a user writes it, with its phases named."""
    state = fresh()
    with Store(root, every=EVERY) as store, on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        step_of = phase("compile", stop, lambda: compiled(state))
        phase("warm-up", stop, lambda: jax.block_until_ready(step_of(state)))
        for step in range(1, LAST + 1):
            run = functools.partial(step_of, state)
            state = phase("train step", stop, lambda run=run: jax.block_until_ready(run()))
            if step % EVERY == 0:
                run = functools.partial(evaluate, state)
                phase("evaluation", stop, lambda run=run: run().block_until_ready())
            phase("between steps", stop, lambda: time.sleep(0.01))  # logging, the next batch
            last = stop.poll(step)
            if last or store.due(step):
                save = functools.partial(store.save, step, train=state)
                phase("save", stop, lambda save=save: (save(), store.wait()))
            if last or stop.poll(step):
                break
    return fingerprint(step, state)


def interrupted(root: Path, wanted: str, tell: int) -> None:
    """Runs the loop, and tells when it enters the phase `wanted`."""
    # A program from a cache would be no compilation.
    jax.config.update("jax_enable_compilation_cache", False)
    told = []

    def phase(name: str, stop: StopRequest, work: Callable[[], Any]) -> Any:
        if name != wanted or told:
            return work()
        told.append(os.write(tell, b"entered\n"))
        if name == "save":  # can be made once only
            return hashed_after_the_request(stop, work)
        limit = time.monotonic() + HANG_S
        while True:
            result = work()
            if stop.requested:
                return result
            assert time.monotonic() < limit, f"the request was not seen during {name}"

    os.write(tell, loop(root, phase).encode())


def hashed_after_the_request(stop: StopRequest, work: Callable[[], Any]) -> Any:
    """Runs `work`, whose checksums are written only after the request is seen."""
    write = checksums.write

    def late(directory: Path) -> None:
        limit = time.monotonic() + HANG_S
        while not stop.requested:
            time.sleep(0.001)
            assert time.monotonic() < limit, "the request was not seen during save"
        write(directory)

    checksums.write = late
    return work()


def restored(root: Path, tell: int) -> None:
    with Store(root) as store:
        step, items = store.restore(train=jax.eval_shape(fresh))
        assert store.report.steps[0].verified
    os.write(tell, fingerprint(step, items["train"]).encode())


def child(work: Callable[[int], None], number: signal.Signals | None = None) -> str:
    """What `work` says at its end. Forked before JAX starts its threads."""
    heard, tell = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            work(tell)
            sys.exit(0)
        except BaseException as end:
            os._exit(0 if isinstance(end, SystemExit) and not end.code else 1)
    os.close(tell)
    with os.fdopen(heard) as lines:
        if number is not None and lines.readline():
            os.kill(process, number)
        said = lines.read()
    assert os.waitpid(process, 0)[1] == 0, "the process must exit with 0"
    return said


def main(root: Path, phases: Sequence[str]) -> None:
    for i, name in enumerate(phases):
        number = (signal.SIGTERM, signal.SIGINT)[i % 2]
        had = child(lambda tell, name=name: interrupted(root / name, name, tell), number)
        found = child(lambda tell, name=name: restored(root / name, tell))
        assert found == had, (name, found, had)
        print(f"{number.name} during {name}: step {had.split()[0]} restored")


main(Path(sys.argv[1]), sys.argv[2:] or PHASES)
