# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals itself during an XLA compilation; prints when the request was seen, and when it ended."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp

from dovetail_checkpoint import on_signal


def long_program(x):
    for i in range(240):
        x = jnp.sort(x) * (1.0 + i) + jnp.sin(x[::-1])
    return x


def main() -> None:
    lowered = jax.jit(long_program).lower(jnp.ones(64))  # Python: the signal comes after
    sent, seen = [], []

    def send_and_watch(stop) -> None:
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)
        while not stop.requested:
            time.sleep(0.001)
        seen.append(time.monotonic())

    with on_signal(signal.SIGTERM) as stop:
        watcher = threading.Thread(target=send_and_watch, args=(stop,))
        watcher.start()
        lowered.compile()
        ended = time.monotonic()
        watcher.join()
    print(seen[0] - sent[0], ended - sent[0])


main()
