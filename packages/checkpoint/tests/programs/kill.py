# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kills a saving process over and over; each time the newest committed step must be whole.

`kill.py ROOT KILLS SEED` prints how many kills hit their aim, by what lay on disk afterwards. A
fifth of them falls at a random moment of one or two saves. For the others the process stops inside
a phase and says so, at a random point of it where there are several: a phase is too short to be hit
from outside.

The processes are forked before JAX starts its threads, so that each costs no import. Each one
restores and checks first, and thereby judges the kill before it.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Retention, Store, _compat
from dovetail_checkpoint.proof import checksums

PHASES = ("writing", "committed", "hashing", "deleting")
AIMS = ("any moment", *PHASES)
SAVE_S = 0.15  # about what one save of this state takes


class Position:
    def __init__(self) -> None:
        self.step = -1

    def get_state(self) -> dict:
        return {"step": self.step}

    def set_state(self, state: dict) -> None:
        self.step = state["step"]


def state(step: int) -> dict:
    values = np.random.default_rng(step).normal(size=(300, 70)).astype(np.float32)
    return {"w": jnp.asarray(values), "step": jnp.int32(step)}


def resume(root: Path) -> tuple[Store, int]:
    """Restores and checks: all items are of one step, and it is the newest that was committed."""
    store, data = Store(root, retention=Retention(latest=2)), Position()
    restored = store.restore(item=jax.eval_shape(lambda: state(0)), data=data)
    step = max(committed(root), default=-1)
    if restored is None:
        assert step == -1
        return store, step
    assert restored[0] == step == data.step == int(restored[1]["item"]["step"])
    found = np.asarray(restored[1]["item"]["w"])
    assert found.tobytes() == np.asarray(state(step)["w"]).tobytes()
    assert len(store.report.steps) == 1, store.report
    return store, step


def save_forever(root: Path, tell: int, aim: str, moments: random.Random) -> None:
    """Tells the restored step, then each step as soon as it is durable, and that it stopped."""
    store, step = resume(root)
    data = Position()
    os.write(tell, b"%d\n" % step)

    def stop(*_: Any) -> None:
        os.write(tell, b"stopped\n")
        threading.Event().wait()

    while True:
        step += 1
        data.step = step
        store.save(step, item=state(step), data=data)
        store.wait()
        os.write(tell, b"%d\n" % step)
        # From here on: the first save deletes what the kill before has left.
        stop_inside(aim, root, moments, stop)


def stop_inside(aim: str, root: Path, moments: random.Random, stop: Callable[..., None]) -> None:
    """Calls `stop` inside the next phase `aim`."""
    save, rename, rmtree = _compat.save, Path.rename, shutil.rmtree

    def save_held(*directory: Path, **options: Any) -> _compat.Response:
        def manifest() -> None:
            while phase(root) != "writing":  # another thread makes the directory
                time.sleep(0.001)
            stop()

        return save(*directory, **{**options, "manifest": manifest})

    def rename_held(path: Path, target: Path) -> Path:
        if path.name == f"{checksums.SHA256SUMS}.partial":
            os.truncate(path, moments.randint(0, path.stat().st_size))
            stop()
        return rename(path, target)

    def rmtree_held(path: Path, **options: Any) -> None:
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        for file in moments.sample(files, moments.randint(0, len(files))):
            file.unlink()
        stop()
        rmtree(path, **options)

    match aim:
        case "writing":
            _compat.save = save_held
        case "committed":
            checksums.write = stop
        case "hashing":
            Path.rename = rename_held
        case "deleting":
            shutil.rmtree = rmtree_held


def committed(root: Path) -> list[int]:
    return [int(name) for name in os.listdir(root) if name.isdigit()]


def phase(root: Path) -> str:
    """What was under way, by what lies on disk."""
    names = os.listdir(root)
    if any("deleting" in name for name in names):
        return "deleting"
    if any("tmp" in name for name in names):
        return "writing"
    files = os.listdir(root / str(max(committed(root)))) if committed(root) else []
    if any("partial" in name for name in files):
        return "hashing"
    return "committed" if files and "SHA256SUMS" not in files else "between saves"


def fork(work) -> tuple[int, TextIO]:
    """A process that runs `work(pipe)`, and the lines that it writes to the pipe."""
    heard, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(tell)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(tell)
    return child, os.fdopen(heard)


def kill_one(root: Path, aim: str, moments: random.Random) -> list[int]:
    """Forks a process that saves and kills it; the steps that it restored and told durable."""
    child, lines = fork(lambda tell: save_forever(root, tell, aim, moments))
    told = [lines.readline()]  # it has restored
    if aim == "any moment":
        time.sleep(moments.uniform(0, 2 * SAVE_S))
    else:
        while told[-1] not in ("stopped\n", ""):
            told.append(lines.readline())
        time.sleep(moments.uniform(0, 0.02))  # Orbax writes arrays meanwhile
    os.kill(child, signal.SIGKILL)
    told += lines.readlines()
    ended = os.waitpid(child, 0)[1]
    assert ended == signal.SIGKILL, f"the kill before was not survived: {ended}"
    return [int(line) for line in told if line != "stopped\n"]


def check_files(root: Path) -> None:
    """No hashed step is half deleted: under its number lie all its files."""
    for step in committed(root):
        assert checksums.check(root / str(step)) == [], f"step {step} is not whole"


def main(root: Path, kills: int, seed: int) -> None:
    moments, hit, durable, lost = random.Random(seed), Counter(), -1, 0
    root.mkdir(exist_ok=True)
    for i in range(kills):
        aim = AIMS[i % len(AIMS)]
        steps = kill_one(root, aim, moments)
        lost += steps[0] < durable
        durable = steps[-1]
        hit[aim] += aim in (phase(root), "any moment")
        check_files(root)
    child, lines = fork(lambda tell: os.write(tell, b"%d\n" % resume(root)[1]))
    lost += int(lines.read()) < durable
    assert os.waitpid(child, 0)[1] == 0
    print(*(f"{name}: {hit[name]}" for name in AIMS), sep="\n")
    print(f"{kills} kills survived, {lost} durable steps lost")


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
