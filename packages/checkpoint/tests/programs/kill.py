# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kills a saving process at random moments; each time the newest committed step must be whole.

The processes are forked before JAX starts its threads, so that each costs no import.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Keep, Store


class Counter:
    def __init__(self) -> None:
        self.step = -1

    def get_state(self) -> dict:
        return {"step": self.step}

    def set_state(self, state: dict) -> None:
        self.step = state["step"]


def state(step: int) -> dict:
    values = np.random.default_rng(step).normal(size=(300, 70)).astype(np.float32)
    return {"w": jnp.asarray(values), "step": jnp.int32(step)}


def resume(root: str) -> tuple[Store, int]:
    """Restores and checks: all items are of one step, and it is the newest that was committed."""
    store, data = Store(root, keep=Keep(latest=2)), Counter()
    committed = [int(path.name) for path in Path(root).iterdir() if path.name.isdigit()]
    restored = store.restore(item=jax.eval_shape(lambda: state(0)), data=data)
    if restored is None:
        assert not committed
        return store, -1
    step, items = restored
    assert step == max(committed) == data.step == int(items["item"]["step"])
    assert np.asarray(items["item"]["w"]).tobytes() == np.asarray(state(step)["w"]).tobytes()
    assert len(store.report.steps) == 1, store.report
    return store, step


def save_forever(root: str) -> None:
    store, step = resume(root)
    data = Counter()
    while True:
        step += 1
        data.step = step
        store.save(step, item=state(step), data=data)


def in_child(work, *, kill_after_s: float | None) -> None:
    """Runs `work` in a fork and kills it some time after it first committed a step."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    want = signal.SIGKILL if kill_after_s is not None else 0
    assert status == want, f"the process ended by itself: {status}"


def main(root: str, kills: int) -> None:
    moments = random.Random(5)
    Path(root).mkdir(exist_ok=True)
    for _ in range(kills):
        in_child(lambda: save_forever(root), kill_after_s=moments.uniform(0.5, 1.5))
    in_child(lambda: resume(root), kill_after_s=None)
    assert any(path.name.isdigit() for path in Path(root).iterdir()), "no step was ever committed"
    print(kills, "kills survived")


main(sys.argv[1], int(sys.argv[2]))
