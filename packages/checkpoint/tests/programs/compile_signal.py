# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals itself inside an XLA compilation, which ends once the request was seen.

XLA's partitioner calls back from a thread of its own, while the main thread waits in C++: there
Python runs no signal handler before the compilation returns.
"""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import on_signal

HANG_S = 100  # only a request that is never seen takes this long


def main() -> None:
    # A program from the cache is not compiled, so nothing would call back.
    jax.config.update("jax_enable_compilation_cache", False)
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.ones(64), NamedSharding(mesh, PartitionSpec("data")))
    seen = []

    with on_signal(signal.SIGTERM) as stop:

        def inside(sharding: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            limit = time.monotonic() + HANG_S
            while not stop.requested and time.monotonic() < limit:
                time.sleep(0.001)
            on_main = threading.current_thread() is threading.main_thread()
            seen.append((stop.requested, on_main))

        def program(x: jax.Array) -> jax.Array:
            jax.debug.inspect_array_sharding(x, callback=inside)
            return x + 1

        lowered = jax.jit(program).lower(x)
        assert not seen, "the callback must come from the compilation"
        lowered.compile()
    ((requested, on_main),) = seen
    print("seen" if requested else "not seen", "by the main thread" if on_main else "by another")


main()
