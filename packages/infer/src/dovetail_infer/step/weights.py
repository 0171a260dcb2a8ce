# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of parameters, and copies of new values into the shardings of an engine."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def dotted_leaves(tree: Any) -> dict[str, Any]:
    """Returns the arrays of a pytree by dotted name, such as "layers.3.attn.q.kernel".

    A flat mapping of names to arrays, nested mappings and an `nnx.State` have the same names.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {".".join(_keys(path)): leaf for path, leaf in leaves}


def _keys(path: Sequence[Any]) -> list[str]:
    keys = []
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            if key.name != "value":  # of an nnx.Variable
                keys.append(key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            keys.append(str(key.idx))
        else:
            keys.append(str(key.key))
    return keys


def updated(parameters: dict[str, Any], params: Any) -> dict[str, Any]:
    """Returns copies of new values, with the dtypes and shardings of the parameters.

    Args:
        parameters: Parameters by name, on devices or as NumPy arrays. They do not change.
        params: New values of all or some: a model, an `nnx.State`, nested mappings, or a
            flat mapping of dotted names.

    Returns:
        The new arrays by name.

    Raises:
        ValueError: A name is unknown, a shape differs, or a value cannot be cast.
    """
    values = dotted_leaves(nnx.state(params) if isinstance(params, nnx.Module) else params)
    for name, value in values.items():
        _check(parameters, name, value)
    return {name: _copy(value, parameters[name]) for name, value in values.items()}


def with_adapter(parameters: dict[str, Any], params: Any, place: int) -> dict[str, Any]:
    """Returns the stacks of adapters with one adapter replaced.

    A stack has the arrays `lora_a` [n, in, rank], `lora_b` [n, rank, out] and `scales` [n] of each
    of its layers, as `dovetail_models.lora.stack` makes them. The adapter is filled up with zeros
    to the rank of the stack, and is 0 in layers that it lacks.

    Args:
        parameters: Parameters by name, on devices or as NumPy arrays. They do not change.
        params: A stack of this adapter alone, n = 1: a model, whose other arrays are not read, or
            as in `updated`.
        place: Place of the adapter in the stacks.

    Returns:
        The new arrays of all stacks by name.

    Raises:
        ValueError: The adapter has no layer, one that the stacks lack, an incomplete one, or a
            shape or dtype that does not fit.
    """
    values = dotted_leaves(nnx.state(params) if isinstance(params, nnx.Module) else params)
    values, stacks = _of_stacks(values), _of_stacks(parameters)
    sites = {name.removesuffix(_half(name)) for name in values}
    missing = [f"{site}{half}" for site in sites for half in _RANK_AXIS]
    missing = [name for name in missing if name not in values]
    if not sites or missing:
        raise ValueError(
            "An adapter must have lora_a, lora_b and scales of each of its layers, got "
            f"{f'none of {missing[0]!r}' if missing else 'no layer'}. Pass a stack of it alone: "
            "lora.stack(base, [adapter])."
        )
    for name, value in values.items():
        _check_adapter(stacks, name, value)
    return {name: _placed(x, values.get(name), _half(name), place) for name, x in stacks.items()}


# Arrays of a stack, with their axis of ranks.
_RANK_AXIS = {"lora_a": 2, "lora_b": 1, "scales": None}


def _of_stacks(arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays of stacks; quantized kernels have `scales` of their own."""
    sites = {name.removesuffix(_half(name)) for name in arrays if _half(name)[:5] == "lora_"}
    halves = {f"{site}{half}" for site in sites for half in _RANK_AXIS}
    return {name: x for name, x in arrays.items() if name in halves}


def _half(name: str) -> str:
    return name.rpartition(".")[2]


def _check_adapter(stacks: dict[str, Any], name: str, value: Any) -> None:
    if name not in stacks:
        raise ValueError(
            "An adapter must lie on layers with adapters of the engine's model, got "
            f"{name!r}. Build the engine with a stack that has adapters on that layer."
        )
    like, shape, axis = stacks[name], jnp.shape(value), _RANK_AXIS[_half(name)]
    room = (1, *like.shape[1:])
    fits = len(shape) == len(room) and all(
        size == most or (i == axis and size < most)
        for i, (size, most) in enumerate(zip(shape, room, strict=True))
    )
    if not fits or not _castable(value.dtype, like.dtype):
        raise ValueError(
            f"An adapter must fit its place in the stack, {like.dtype}{list(room)} of at most that "
            f"rank, got {name} as {value.dtype}{list(shape)}. Use an adapter of this model and of "
            "a lower rank, or build the engine with a stack of a higher one."
        )


def _placed(stack: Any, value: Any, half: str, place: int) -> Any:
    filled = np.zeros(stack.shape[1:], stack.dtype)
    if value is not None:
        alone = np.asarray(jax.device_get(value))[0].astype(stack.dtype)
        filled[tuple(map(slice, alone.shape))] = alone
    if isinstance(stack, np.ndarray):
        stack = stack.copy()
        stack[place] = filled
        return stack
    return jax.device_put(_put(stack, np.int32(place), filled), stack.sharding)


@jax.jit
def _put(stack: jax.Array, place: Any, value: Any) -> jax.Array:
    return stack.at[place].set(value)


def _copy(value: Any, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.array(jax.device_get(value), like.dtype)
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.device_put(value, like.sharding, may_alias=False)
    if not isinstance(value, jax.Array):
        # device_put shares aligned NumPy memory with a CPU, also with may_alias=False.
        return jax.device_put(np.array(value, like.dtype), like.sharding)
    # A cast makes a new array; without one device_put copies.
    cast = value if value.dtype == like.dtype else value.astype(like.dtype)
    return jax.device_put(cast, like.sharding, may_alias=False)


def _check(parameters: dict[str, Any], name: str, value: Any) -> None:
    if name not in parameters:
        leaves = [known for known in parameters if known.startswith(f"{name}.")]
        if leaves:
            raise ValueError(
                "A quantized parameter must be given as its own leaves, got one array "
                f"{name!r}. Requantize the value, and pass {', '.join(leaves)}."
            )
        near = difflib.get_close_matches(name, parameters, n=3, cutoff=0.5)
        raise ValueError(
            f"Names must be those of the engine's parameters, got {name!r}. "
            f"Use {' or '.join(near) if near else next(iter(parameters), 'none: there are none')}."
        )
    like = parameters[name]
    if jnp.shape(value) != like.shape:
        raise ValueError(
            f"Shapes must be those of the engine's parameters, got {name}.shape="
            f"{jnp.shape(value)} for {like.shape}. Pass the value of the same model."
        )
    if not _castable(value.dtype, like.dtype):
        raise ValueError(
            f"A value must have a dtype that casts to its parameter's, got {name}.dtype="
            f"{value.dtype} for {like.dtype}. Pass {name} as {like.dtype}."
        )


def _castable(given: Any, wanted: Any) -> bool:
    """Tests for equal dtypes, or two float dtypes of at least 16 bits."""
    if given == wanted:
        return True
    floats = all(jnp.issubdtype(d, jnp.floating) for d in (given, wanted))
    return floats and min(jnp.dtype(d).itemsize for d in (given, wanted)) >= 2
