# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of jaxlib that are not public. Tried on jax 0.10.2 and 0.12.0."""

from __future__ import annotations

import functools


def bind_gloo(address: str) -> None:
    """Makes gloo, JAX's collectives between CPU processes, bind to `address`.

    gloo binds to the address of the hostname otherwise, which may be another interface or none
    (jax-ml/jax#40831). Call it before the first use of a device.

    Args:
        address: An address of this machine, such as "127.0.0.1".
    """
    import importlib
    from typing import Any

    _jax: Any = importlib.import_module("jaxlib._jax")
    make = _jax.make_gloo_tcp_collectives
    original = make.func if isinstance(make, functools.partial) else make
    _jax.make_gloo_tcp_collectives = functools.partial(original, hostname=address)
