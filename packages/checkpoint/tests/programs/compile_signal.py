# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals itself inside an XLA compilation, which ends once the request was seen.

XLA's partitioner calls back in the middle of a compilation: by jax 0.12 on the main thread, by 0.10
on another, while the main thread waits and runs Python's handlers at times. The callback waits for
a lock of C, in which none runs, until another thread has sent the signal and seen the request.
"""

import ctypes
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import StopRequest, on_signal

HANG_S = 100  # only a request that is never seen takes this long
MUTEX_BYTES = 128  # more than a pthread_mutex_t takes on any platform


def main() -> None:
    # A program from the cache is not compiled, so nothing would call back.
    jax.config.update("jax_enable_compilation_cache", False)
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.ones(64), NamedSharding(mesh, PartitionSpec("data")))
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(MUTEX_BYTES)
    libc.pthread_mutex_init(mutex, None)
    locked, inside, seen = threading.Event(), threading.Event(), []

    def compiling(sharding: object) -> None:
        inside.set()
        libc.pthread_mutex_lock(mutex)

    def program(x: jax.Array) -> jax.Array:
        jax.debug.inspect_array_sharding(x, callback=compiling)
        return x + 1

    def send_and_watch(stop: StopRequest) -> None:
        libc.pthread_mutex_lock(mutex)
        locked.set()
        inside.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        limit = time.monotonic() + HANG_S
        while not stop.requested and time.monotonic() < limit:
            time.sleep(0.001)
        seen.append(stop.requested)
        libc.pthread_mutex_unlock(mutex)

    with on_signal(signal.SIGTERM) as stop:
        watcher = threading.Thread(target=send_and_watch, args=(stop,), daemon=True)
        watcher.start()
        locked.wait()
        lowered = jax.jit(program).lower(x)
        assert not inside.is_set(), "the callback must come from the compilation"
        lowered.compile()
        assert inside.is_set(), "the compilation must call back"
        watcher.join()
    print("seen" if seen == [True] else "not seen")


main()
