# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes that save in one root at once: one may, the other is told who does.

`two_writers.py ROOT TRIALS SEED`. In each trial both processes save the same step with contents of
their own, from one moment on. One of them must be refused. Then the writer closes its store, or is
killed in every fifth trial, and the other one takes the root, restores what the first has saved,
and saves the next step. The last line counts the ways in which the trials ended.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Retention, Store

KILL_EVERY = 5


def values(trial: int, tag: int) -> np.ndarray:
    return np.random.default_rng([trial, tag]).normal(size=(20, 30)).astype(np.float32)


def is_of(item: object, trial: int, tag: int) -> bool:
    return np.asarray(item).tobytes() == values(trial, tag).tobytes()


@dataclass(frozen=True)
class Child:
    """A saving process. It answers each line with a line."""

    process: int
    ask: TextIO
    answers: TextIO

    def send(self, *words: object) -> None:
        print(*words, file=self.ask, flush=True)

    def hear(self) -> str:
        return self.answers.readline().strip()


def serve(asked: TextIO, answers: TextIO) -> None:
    """Saves, takes over and closes as it is told."""
    store = None
    for line in asked:
        word, root, trial, tag, *rest = line.split()
        trial, tag = int(trial), int(tag)
        if word == "save":
            store = Store(root, retention=Retention(latest=9))
            answer = saved(store, 1, trial, tag)
        elif word == "over":
            (other,) = map(int, rest)
            step, items = store.restore(item=jnp.asarray(values(0, 0)))
            whole = step == 1 and is_of(items["item"], trial, other)
            answer = f"{whole} {saved(store, 2, trial, tag)}"
        else:
            store.close()
            answer = "closed"
        print(answer, file=answers, flush=True)


def saved(store: Store, step: int, trial: int, tag: int) -> str:
    try:
        store.save(step, item=jnp.asarray(values(trial, tag)))
    except RuntimeError as error:
        return "refused" if "must have one writer" in str(error) else f"broken: {error}"
    store.wait()
    return "saved"


def fork() -> Child:
    (ask_read, ask_write), (tell_read, tell_write) = os.pipe(), os.pipe()
    process = os.fork()
    if process == 0:
        os.close(ask_write)
        os.close(tell_read)
        serve(os.fdopen(ask_read), os.fdopen(tell_write, "w"))
        os._exit(0)
    os.close(ask_read)
    os.close(tell_write)
    return Child(process, os.fdopen(ask_write, "w"), os.fdopen(tell_read))


def trial_of(root: Path, trial: int, children: list[Child], moments: random.Random) -> str:
    """Runs one trial; returns how it ended. A killed child is replaced."""
    order = moments.sample([0, 1], 2)
    for tag in order:
        children[tag].send("save", root, trial, tag)
        time.sleep(moments.uniform(0, 0.002))
    said = {tag: children[tag].hear() for tag in order}
    if sorted(said.values()) != ["refused", "saved"]:
        return f"wrong: {sorted(said.values())}"
    first = next(tag for tag, answer in said.items() if answer == "saved")
    second = 1 - first
    killed = trial % KILL_EVERY == KILL_EVERY - 1
    if killed:
        os.kill(children[first].process, signal.SIGKILL)
        os.waitpid(children[first].process, 0)
        children[first] = fork()
    else:
        children[first].send("close", root, trial, first)
        assert children[first].hear() == "closed"
    children[second].send("over", root, trial, second, first)
    if (answer := children[second].hear()) != "True saved":
        return f"wrong: {answer}"
    children[second].send("close", root, trial, second)
    assert children[second].hear() == "closed"
    return "taken over from a killed writer" if killed else "taken over from a closed store"


def main(root: Path, trials: int, seed: int) -> None:
    moments, ended = random.Random(seed), Counter()
    children = [fork(), fork()]
    for trial in range(trials):
        ended[trial_of(root / str(trial), trial, children, moments)] += 1
    for child in children:  # all of them first: the younger one has a copy of the other's pipe
        child.ask.close()
    for child in children:
        assert os.waitpid(child.process, 0)[1] == 0
    for name, count in sorted(ended.items()):
        print(f"{name}: {count}")


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
