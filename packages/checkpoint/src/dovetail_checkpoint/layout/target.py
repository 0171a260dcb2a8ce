# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Targets: the wanted form of a restored item, compared with the manifest before any read.

A target is a pytree whose leaves give shape, dtype and placement, or an object whose state is set:

    jax.ShapeDtypeStruct, jax.Array   a jax.Array of that shape, dtype and sharding, in the byte
                                      order of the machine: JAX has no other
    np.ndarray, NumPy scalar          the same type and byte order, on the host
    int, float, bool                  a Python number
    str                               a text that plain Orbax saved
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint.proof.manifest import Items, Leaf, TreeItem, leaf_dtype
from dovetail_checkpoint.proof.names import leaf_names, match_names, shown_names

# Enough of a mismatch to recognise it by; another model differs in hundreds of leaves.
_SHOWN = 10
# Python values: one that stands for any, and the arrays into which a number may be restored.
_PYTHON = {"python int": 0, "python float": 0.0, "python bool": False, "python str": ""}
_NUMBERS = {
    "python int": jnp.integer,
    "python float": jnp.floating,
    "python bool": jnp.bool_,
}
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


@runtime_checkable
class Stateful(Protocol):
    """An object saved by its JSON state: a data iterator, a trainer's hooks."""

    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


def check(items: Items, targets: Mapping[str, Any]) -> None:
    """Checks that `targets` fit the saved items.

    Raises:
        ValueError: They differ; the error lists all leaves that differ.
    """
    saved = sorted({*items.trees, *items.objects})
    unknown = sorted(set(targets) - set(saved))
    if unknown:
        raise ValueError(
            "the items to restore must be among the saved trees and states, got "
            f"{unknown}; this step holds {saved}{_example(unknown[0], saved)}"
        )
    differences = []
    for name, wanted in targets.items():
        if (name in items.objects) != isinstance(wanted, Stateful):
            saved_kind, advice = (
                ("an object's state", "an object with get_state/set_state")
                if name in items.objects
                else ("a pytree", "a pytree of the same leaves")
            )
            differences.append(
                f"{name}: saved {saved_kind}, wanted {type(wanted).__name__}; give {advice}"
            )
        elif name in items.trees:
            differences += [f"{name}/{x}" for x in _differences(items.trees[name], wanted)]
    if differences:
        _raise(differences)


def _example(unknown: str, saved: list[str]) -> str:
    nearest = difflib.get_close_matches(unknown, saved, n=1) or saved[:1]
    return f"; restore({nearest[0]}=...)" if nearest else ""


def _raise(differences: list[str]) -> NoReturn:
    shown = "\n  ".join(differences[:_SHOWN])
    more = f"\n  and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    raise ValueError(
        "the target must have the leaves, shapes and dtypes that were saved, got a checkpoint of "
        f"another model:\n  {shown}{more}\n"
        "build the target from the configuration that the checkpoint was saved with, or change the "
        "leaves on the way: load(path, target, rules=[...])"
    )


def matches(saved: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Returns the wanted name for each saved name that has one.

    Equal names match first, then names equal in the form of `names.match_names`.
    """
    equal = {name: name for name in set(saved) & set(wanted)}
    if len(equal) == len(saved) == len(wanted):
        return equal
    try:
        by_match = dict(zip(match_names(wanted), wanted, strict=True))
        alike = [
            (name, by_match.get(match))
            for name, match in zip(saved, match_names(saved), strict=True)
        ]
    except ValueError:  # two leaves are alike: only equal names tell them apart
        return equal
    taken = set(equal)
    more = {name: other for name, other in alike if other is not None and other not in taken}
    return {**more, **equal}


def _differences(item: TreeItem, target: Any) -> list[str]:
    names, leaves, _ = leaf_names(target)
    saved = {leaf.name: leaf for leaf in item.leaves}
    wanted = dict(zip(names, leaves, strict=True))
    pairs = matches(list(saved), names)
    shown = dict(zip(names, shown_names(names), strict=True))
    there = dict(zip(saved, shown_names(list(saved)), strict=True))
    lines = [f"{there[name]}: saved, not wanted" for name in saved if name not in pairs]
    lines += [f"{shown[name]}: wanted, not saved" for name in wanted.keys() - set(pairs.values())]
    for name, other in pairs.items():
        try:
            differences = leaf_difference(saved[name], wanted[other])
        except TypeError as error:  # the target is no leaf
            differences = [str(error)]
        lines += [f"{shown[other]}: {line}" for line in differences]
    return sorted(lines)


def leaf_difference(saved: Leaf, wanted: Any) -> list[str]:
    """Returns the difference between a saved leaf and the wanted one: nothing, or one line."""
    dtype, shape = leaf_dtype(wanted), tuple(np.shape(wanted))
    is_jax = isinstance(wanted, jax.Array | jax.ShapeDtypeStruct)
    number_as_array = (
        saved.dtype in _NUMBERS and is_jax and jnp.issubdtype(wanted.dtype, _NUMBERS[saved.dtype])
    )
    if shape != saved.shape or (dtype != saved.dtype and not number_as_array):
        return [f"saved {saved.dtype}{list(saved.shape)}, wanted {dtype}{list(shape)}"]
    if is_jax and _narrowed(wanted.dtype):
        return [f"{dtype} needs jax_enable_x64; give a NumPy array as the target to keep it"]
    return []


def _native(dtype: Any) -> Any:
    """Returns the dtype in the byte order of the machine."""
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype


def _narrowed(dtype: Any) -> bool:
    """Whether JAX would silently store this dtype in 32 bits."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return False
    return jax.dtypes.canonicalize_dtype(_native(dtype)) != _native(dtype)


def abstract_leaf(saved: Leaf, wanted: Any) -> Any:
    """Returns Orbax's target: an abstract array with a sharding, a NumPy array, or a number."""
    if saved.dtype in _PYTHON:
        return _PYTHON[saved.dtype]
    if not isinstance(wanted, jax.Array | jax.ShapeDtypeStruct):
        return np.empty(wanted.shape, _native(wanted.dtype))
    return jax.ShapeDtypeStruct(wanted.shape, _native(wanted.dtype), sharding=sharding(wanted))


def sharding(wanted: jax.Array | jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    """Returns the sharding of the target; by default, with one process, the default device.

    Raises:
        ValueError: Several processes run and the target has no sharding.
    """
    if wanted.sharding is not None:
        wanted.sharding.shard_shape(wanted.shape)  # raises where axes do not divide the shape
        return wanted.sharding
    if jax.process_count() > 1:
        raise ValueError(
            "with several processes each target leaf must have a sharding, got "
            f"sharding=None for shape={wanted.shape}; give jax.ShapeDtypeStruct(..., sharding=...)"
        )
    return jnp.zeros(()).sharding


def as_saved(saved: Leaf) -> Any:
    """Returns a target for the saved form of the leaf, on the host."""
    if saved.dtype in _PYTHON:
        return _PYTHON[saved.dtype]
    if saved.dtype in KEYS:
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=KEYS[saved.dtype])).dtype
        return jax.ShapeDtypeStruct(saved.shape, dtype)
    return np.empty(saved.shape, jnp.dtype(saved.dtype))


def finish(loaded: Any, wanted: Any) -> Any:
    """Returns the leaf in the wanted type: numbers become arrays, 0-d arrays NumPy scalars."""
    if isinstance(wanted, jax.Array | jax.ShapeDtypeStruct):
        if isinstance(loaded, jax.Array):
            return loaded
        return jax.device_put(np.asarray(loaded, _native(wanted.dtype)), sharding(wanted))
    if isinstance(wanted, np.generic):
        return np.asarray(loaded)[()]
    if isinstance(wanted, np.ndarray) and not wanted.dtype.isnative:
        return loaded.astype(wanted.dtype)
    return loaded


def empty(wanted: Any) -> Any:
    """Returns an array without elements; it needs no read."""
    if not jnp.issubdtype(wanted.dtype, jax.dtypes.prng_key):
        return finish(np.empty(wanted.shape, wanted.dtype), wanted)
    like = jax.ShapeDtypeStruct(wanted.shape, wanted.dtype)
    words = jax.eval_shape(jax.random.key_data, like)
    # jax.device_put refuses keys on devices of other processes, and takes their data.
    at = jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=sharding(wanted))
    data = finish(np.empty(words.shape, words.dtype), at)
    return jax.random.wrap_key_data(data, impl=KEYS[str(wanted.dtype)])


def with_states(items: dict[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """Sets the states of the objects. Returns the items, with objects in place of their states."""
    restored = dict(items)
    for name, wanted in targets.items():
        if isinstance(wanted, Stateful):
            wanted.set_state(items[name])
            restored[name] = wanted
    return restored
