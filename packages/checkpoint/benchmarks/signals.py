# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds from SIGTERM to the flag while XLA compiles, against a plain Python handler.

Not named signal.py, which would take the place of the standard library's module here. Python runs
its handlers between bytecodes: with jax 0.12 the peer waits for the end of the compilation, with
0.10 for a tenth of a second, since there the waiting thread looks for signals that often. Ours
takes a write to a socket and the waking of a thread.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from dovetail_checkpoint import on_signal
from measure import report, rounds

INTO_COMPILATION_S, REPEATS = 0.3, 7
programs = itertools.count()
remaining_s = []  # of each compilation, when the signal was sent


def some_program() -> jax.stages.Lowered:
    """A program that was not compiled yet; it takes about a second."""
    number = next(programs)

    def program(x):
        for i in range(60):
            x = jnp.sort(x) * (1.0 + i + number / 1000) + jnp.sin(x[::-1])
        return x

    return jax.jit(program).lower(jnp.ones(64))


@contextlib.contextmanager
def plain_handler() -> Iterator[Callable[[], bool]]:
    seen = []
    old = signal.signal(signal.SIGTERM, lambda *_: seen.append(True))
    yield lambda: bool(seen)
    signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def ours() -> Iterator[Callable[[], bool]]:
    with on_signal(signal.SIGTERM) as stop:
        yield lambda: stop.requested


def flag_s(listening: Callable[[], contextlib.AbstractContextManager]) -> float:
    """Seconds from the signal to the flag, both seen by a thread beside the compilation."""
    program, sent, flagged = some_program(), [], []

    def send_and_watch(is_flagged: Callable[[], bool]) -> None:
        time.sleep(INTO_COMPILATION_S)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGTERM)
        while not is_flagged():
            time.sleep(0.0001)
        flagged.append(time.perf_counter())

    with listening() as is_flagged:
        watcher = threading.Thread(target=send_and_watch, args=(is_flagged,))
        watcher.start()
        program.compile()
        remaining_s.append(time.perf_counter() - sent[0])
        watcher.join()
    return flagged[0] - sent[0]


def main() -> None:
    cases = {"ours": ours, "plain": plain_handler, "plain again": plain_handler}
    found = rounds({name: (lambda c=c: flag_s(c)) for name, c in cases.items()}, repeats=REPEATS)
    assert min(remaining_s) > 0, "a compilation ended before its signal"
    report(
        "SIGTERM while XLA compiles",
        metric="flag_s",
        unit="s",
        values=found["ours"],
        peer="a handler by signal.signal",
        peer_values=found["plain"],
        peer_again=found["plain again"],
        compilation_remaining_s=min(remaining_s),
        bar_s=0.1,
    )


if __name__ == "__main__":
    main()
