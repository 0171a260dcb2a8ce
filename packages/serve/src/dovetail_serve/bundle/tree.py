# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights as a dictionary of arrays by dotted name, and the way back to the caller's tree.

`jax.export` serializes dictionaries with string keys alone, and an `nnx.State` as the argument of a
call costs 11 times the host time of a flat dictionary. So a program takes the dictionary, and its
first lines rebuild the tree.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from dovetail_serve._patterns import few, name_of
from dovetail_serve._safetensors import METADATA

# Name of the only leaf of a tree that is one array.
SINGLE = "value"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat:
    """A flattened tree of weights.

    Attributes:
        arrays: Arrays by dotted name. A random key is replaced by its data, u32.
        keys: Implementations of the random keys by name.
        rebuild: Returns the caller's tree for such a dictionary; works on tracers too.
    """

    arrays: Mapping[str, Any]
    keys: Mapping[str, str]
    rebuild: Callable[[Mapping[str, Any]], Any]


def flatten(params: Any) -> Flat:
    """Flattens a pytree of arrays: dictionaries, `nnx.State`, Equinox modules, one array.

    Raises:
        TypeError: A leaf is not an array, or of a dtype that safetensors cannot hold.
        ValueError: Two leaves have one name, or a name cannot stand in a file.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    names = [name_of(path) or SINGLE for path, _ in leaves]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"each array must have a name of its own, and {few(twice)} stands for several arrays; "
            "rename a key that contains a dot"
        )
    _check_names(names)
    arrays, keys = {}, {}
    for name, (_, leaf) in zip(names, leaves, strict=True):
        arrays[name] = _array(name, leaf)
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keys[name] = str(jax.random.key_impl(leaf))
            arrays[name] = jax.random.key_data(leaf)

    def rebuild(arrays: Mapping[str, Any]) -> Any:
        values = [
            jax.random.wrap_key_data(arrays[name], impl=keys[name])
            if name in keys
            else arrays[name]
            for name in names
        ]
        return jax.tree_util.tree_unflatten(treedef, values)

    return Flat(arrays=arrays, keys=keys, rebuild=rebuild)


def _check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that safetensors reserves, or that UTF-8 cannot hold."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the name of a weight must be text that UTF-8 can hold, got {name!r}; rename "
                "that key of params"
            ) from error
        if name == METADATA:
            raise ValueError(
                f"the name of a weight must not be reserved by safetensors, got {name!r}; rename "
                "that key of params"
            )


def _array(name: str, leaf: Any) -> Any:
    """Returns the leaf as an array in the machine's byte order.

    A Python number becomes an array. Raises TypeError or ValueError for other leaves.
    """
    if isinstance(leaf, bool | int | float | complex):
        return _number(name, leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(
            f"params must hold values, and {name!r} is {leaf}, which has a shape alone; restore or "
            "initialize the weights before the export"
        )
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"params must be a pytree of arrays, and {name!r} is a {type(leaf).__name__}; pass the "
            "arrays in params, and bind the rest to fn with functools.partial (eqx.partition("
            "module, eqx.is_array) splits an Equinox module)"
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ValueError(
            f"params must hold values, and {name!r} is a deleted array, perhaps a donated one; "
            "pass the arrays that the last step returned"
        )
    if isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    # JAX takes no other byte order, and says so by the name of one of its own functions.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _number(name: str, number: bool | int | float | complex) -> np.ndarray:
    """Returns a number as an array of JAX's default dtype. Raises ValueError if it overflows."""
    try:
        array = np.asarray(jax.numpy.asarray(number))
    except OverflowError:
        array = None
    if array is None or (np.isfinite(number) and not np.isfinite(array)):
        raise ValueError(
            f"a number in params must fit JAX's default dtype, got {name!r}: {number!r}; pass "
            "np.asarray(number, dtype) with a dtype that holds it"
        )
    return array
