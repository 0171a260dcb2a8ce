# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fills the disk during a save: files may not grow beyond a limit, as on a full disk."""

import logging
import resource
import sys

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import Store


def main(root: str) -> None:
    logging.disable(logging.CRITICAL)  # Orbax logs the failure of each of its threads
    x = jnp.asarray(np.random.default_rng(0).normal(size=(512, 1024)), jnp.float32)
    store = Store(root)
    store.save(1, item={"w": x})
    store.wait()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    store.save(2, item={"w": x * 2})
    try:
        store.wait()
    except RuntimeError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert [path for path in store._root.iterdir() if path.name != "1"] == []
    print("restored", store.restore(item={"w": x})[0])
    store.save(2, item={"w": x * 2})
    print("restored", store.restore(item={"w": x})[0])


main(sys.argv[1])
