# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small training loop that gets a signal in one of its phases; prints how it ended.

For each phase a process runs the loop and says when it enters the phase, at which it is sent the
signal. It must learn of it before the phase ends, save, and exit with 0; another process restores
the state that it had. The phases are those of goodfire-ai/spd#677, where none of the saves came.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import StopRequest, Store, on_signal

PHASES = ("compile", "warm-up", "evaluation", "train step", "between steps", "save")
EVERY, LAST = 2, 6  # an evaluation and a save at each other step


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


def loop(root: Path, phase: Callable[[str, StopRequest], object]) -> str:
    """The loop as a user writes it, with its phases named."""
    state = fresh()
    with Store(root, every=EVERY) as store, on_signal(signal.SIGINT, signal.SIGTERM) as stop:
        with phase("compile", stop):
            step_of = train.lower(state).compile()
        with phase("warm-up", stop):
            for _ in range(3):
                jax.block_until_ready(step_of(state))
        for step in range(1, LAST + 1):
            with phase("train step", stop):
                state = jax.block_until_ready(step_of(state))
            if step % EVERY == 0:
                with phase("evaluation", stop):
                    evaluate(state).block_until_ready()
            with phase("between steps", stop):
                time.sleep(0.05)  # logging, the next batch
            last = stop.poll(step)
            if last or store.due(step):
                with phase("save", stop):
                    store.save(step, train=state)
                    store.wait()
            if last or stop.poll(step):
                break
    return fingerprint(step, state)


def interrupted(root: Path, wanted: str, tell: int) -> None:
    """Runs the loop, and tells when it enters the phase `wanted`."""

    @contextmanager
    def phase(name: str, stop: StopRequest) -> Iterator[None]:
        entered = name == wanted and not stop.requested
        if entered:
            os.write(tell, b"entered\n")
        yield
        if entered:
            assert stop.requested, f"the request was not seen during {name}"

    os.write(tell, loop(root, phase).encode())


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
