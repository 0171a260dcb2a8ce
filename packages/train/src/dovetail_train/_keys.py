# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Typed random keys as their data, and arrays placed on a mesh of several processes.

`jax.device_put` refuses typed keys on a mesh with devices of other processes, and arrays that are
committed to a device of this one. `put` places the data of keys, and the values of such arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding


def is_key(x: Any) -> bool:
    """Tests for typed keys, or a struct of them."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def key_data(x: Any) -> Any:
    """Returns the uint32 data of typed keys, with their sharding. All else stays the same."""
    if not is_key(x):
        return x
    if isinstance(x, jax.Array):
        return jax.random.key_data(x)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    data = jax.eval_shape(jax.random.key_data, like)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)


def typed(data: Any, like: Any) -> Any:
    """Returns the keys of this data, if `like` are typed keys; otherwise the data.

    Args:
        data: An array of JAX.
        like: Keys, or a struct of them, of the same implementation.
    """
    if not is_key(like):
        return data
    impls: list[Any] = []  # key_impl reads a traced key, but not a ShapeDtypeStruct
    struct = jax.ShapeDtypeStruct(like.shape, like.dtype)
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), struct)
    return jax.random.wrap_key_data(data, impl=impls[0])


def put(x: Any, sharding: Sharding, *, may_alias: bool | None = None) -> jax.Array:
    """Returns `jax.device_put(x, sharding)`, for typed keys and a mesh of several processes too.

    Args:
        x: An array; each process passes the same values, or an array on devices of all.
        sharding: Where it is to lie.
        may_alias: False for a copy, as of `jax.device_put`.
    """
    if not sharding.is_fully_addressable:
        if isinstance(x, jax.Array) and is_key(x):
            return typed(put(key_data(x), sharding, may_alias=may_alias), x)
        if isinstance(x, jax.Array) and x.is_fully_addressable:
            x = jax.device_get(x)
    return jax.device_put(x, sharding, may_alias=may_alias)
