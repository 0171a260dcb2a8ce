# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JAX's guard against transfers (`jax_transfer_guard`).

A guard set by `with jax.transfer_guard(...)` holds for its thread, one set by `jax.config` for all.
It is meant for the steps of training, so saving and reading allow transfers on their own threads.
Orbax places what it reads by `jax.device_put` on a thread of its own: of the levels of the whole
process, "disallow" lets that pass, and "disallow_explicit" does not.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from dovetail_checkpoint.proof import agree

_GUARD = "jax_transfer_guard_host_to_device"


def check(targets: Any) -> None:
    """Raises RuntimeError if the guard of the whole process forbids a read. A collective.

    Args:
        targets: The wanted leaves; NumPy arrays and numbers need no transfer.
    """
    error = None
    if any(isinstance(x, jax.Array | jax.ShapeDtypeStruct) for x in jax.tree.leaves(targets)):
        with ThreadPoolExecutor(1) as pool:  # this thread may have a guard of its own
            level = pool.submit(getattr, jax.config, _GUARD).result()
        if level == "disallow_explicit":
            error = RuntimeError(
                "the transfer guard of all threads must allow jax.device_put while a checkpoint is "
                f"read into arrays of JAX, got {_GUARD}={level!r} in jax.config; set it to "
                "'disallow', or write with jax.transfer_guard('disallow_explicit') around the "
                "steps of training"
            )
    agree.raise_together(error)
