# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Typed random keys as their data: stores and meshes of several processes take no keys."""

from typing import Any

import jax
import jax.numpy as jnp


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
