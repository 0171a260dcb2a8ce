# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""JAX's context while a bundle is exported or loaded: not under the caller's mesh."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Suspends the caller's `jax.set_mesh`.

    Under it, JAX makes each program one for all devices of the mesh, though its arrays are on one
    device.
    """
    with jax.set_mesh(Mesh(np.empty((), object), ())):
        yield
