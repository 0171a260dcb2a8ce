# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks made before a save: only leaves, names and states that can be restored are accepted.

Orbax writes in the background, so it would refuse a leaf after training has gone on, or store it
under the name of another one. Everything it cannot hold is refused at the call, by name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dovetail_checkpoint import _compat
from dovetail_checkpoint.proof.checksums import SHA256SUMS
from dovetail_checkpoint.proof.manifest import MANIFEST_ITEM, TreeItem
from dovetail_checkpoint.proof.names import orbax_name, shown_names

# dtypes that TensorStore 0.1.86 stores in zarr3, by their names in the manifest.
DTYPES = frozenset(
    (
        "bool",
        *(f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)),
        *(f"uint{bits}" for bits in (8, 16, 32, 64)),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn"),
        *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
)
_KEYS = frozenset(("key<fry>", "key<rbg>", "key<urbg>"))
_NUMBERS = frozenset(("python bool", "python int", "python float"))
_STORED = DTYPES | _KEYS | _NUMBERS

# Names of files in a step, and parameters of `Store.save`.
_RESERVED = frozenset(
    (_compat.METRICS_ITEM, MANIFEST_ITEM, "step", SHA256SUMS, *_compat.STEP_FILES)
)
_NAME_BYTES = 255  # of a directory, on all common file systems
# Orbax and JSON recurse, and a restore may start from a deeper stack than the save.
_DEEPEST = 100


def check_names(items: Mapping[str, Any]) -> None:
    """Checks the names of items, which are directories of the step.

    Raises:
        ValueError: There is no item, or a name is not allowed.
    """
    if not items:
        raise ValueError("a step must hold at least one item, got none; save(step, model=state)")
    for name in items:
        if not name.isidentifier() or name in _RESERVED or len(name.encode()) > _NAME_BYTES:
            raise ValueError(
                f"an item's name must be an identifier of at most {_NAME_BYTES} bytes and none of "
                f"{sorted(_RESERVED)}, got {name!r}; give it another name"
            )


def check_tree(name: str, item: TreeItem, leaves: Sequence[Any]) -> None:
    """Checks that Orbax can store the leaves of one item and returns them equal.

    Args:
        name: Name of the item.
        item: The described tree.
        leaves: Its leaves, in the same order.

    Raises:
        TypeError: A leaf has a type or dtype that Orbax does not store.
        ValueError: A leaf or a name does not fit.
    """
    _check_paths(name, [leaf.name for leaf in item.leaves])
    for i, (leaf, value) in enumerate(zip(item.leaves, leaves, strict=True)):
        error = _objection(leaf.dtype, value)
        if error is not None:
            shown = shown_names([leaf.name for leaf in item.leaves])[i]
            raise type(error)(f"{name}/{shown}: {error}")
    kept = jax.tree.leaves(item.tree)
    if len(kept) != sum(0 not in leaf.shape for leaf in item.leaves):
        raise ValueError(
            f"{name}: the keys of a container must have different texts, got some that are equal "
            "(such as 0 and '0'); rename one"
        )


def _check_paths(item: str, names: Sequence[str]) -> None:
    dotted: dict[str, str] = {}
    for name in names:
        other = dotted.setdefault(orbax_name(name), name)
        if other is not name:
            raise ValueError(
                f"{item}: the names of leaves must differ when levels are joined by dots, as Orbax "
                f"joins them, got {[other, name]} (levels by /); rename the key with the dot"
            )
        if name.count("/") >= _DEEPEST:
            raise too_deep(item, f"{name.count('/') + 1} in {name[:80]!r}...")
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        bad = next(name for name in names if not _is_text(name))
        raise ValueError(
            f"{item}: a name must be valid Unicode, got {bad!r} with a lone surrogate; rename it"
        ) from error


def too_deep(item: str, got: str) -> ValueError:
    """Returns the error for a tree of too many levels."""
    return ValueError(
        f"{item}: a tree must have at most {_DEEPEST} levels, got {got}; flatten it, for example "
        "into a list of layers"
    )


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _objection(dtype: str, value: Any) -> TypeError | ValueError | None:
    if isinstance(value, jax.Array):
        if isinstance(value, Tracer):
            return TypeError(
                f"a leaf must be a concrete array, got type={type(value).__name__}; call save "
                "outside of jax.jit"
            )
        if value.is_deleted():
            return ValueError(
                f"a leaf must still be there, got an array donated or deleted, shape={value.shape};"
                " save the state that the step returned"
            )
        if value.is_fully_addressable and jax.process_count() > 1:
            return ValueError(
                f"an array must lie on devices of all {jax.process_count()} processes, got one of "
                f"this process alone, shape={value.shape}; save np.asarray(leaf) if all have equal "
                "values, or jax.device_put(np.asarray(leaf), NamedSharding(mesh, PartitionSpec()))"
            )
    elif isinstance(value, np.ndarray):
        if type(value) not in (np.ndarray, np.memmap):
            return TypeError(
                f"a leaf of NumPy must be a plain array, got type={type(value).__name__}; "
                "np.asarray(leaf), with a mask as a leaf of its own"
            )
    elif isinstance(value, jax.ShapeDtypeStruct):
        return TypeError("a leaf must hold values, got type=ShapeDtypeStruct; save the array")
    if dtype not in _STORED:
        return TypeError(
            "a leaf must be a typed key of JAX, a number, or an array of bool, int2, int4 to int64,"
            " uint8 to uint64, bfloat16, float16 to float64, float4_e2m1fn, a float8 except e4m3,"
            f" complex64 or complex128, got dtype={dtype}; {_advice(dtype)}"
        )
    if dtype == "python int" and not -(2**63) <= value < 2**63:
        return ValueError(
            f"an int must fit in 64 bits, got {value}; keep it in an object with "
            "get_state/set_state"
        )
    return None


def _advice(dtype: str) -> str:
    if dtype.startswith(("uint", "int")):
        return f'save leaf.astype("{"uint8" if dtype.startswith("u") else "int8"}")'
    if dtype.startswith("float8"):
        return 'save leaf.view("uint8"), or leaf.astype("float8_e4m3fn") if that is exact enough'
    if dtype.startswith("key<"):
        return "save jax.random.key_data(leaf)"
    if dtype.startswith(("datetime64", "timedelta64")):
        return 'save leaf.view("int64")'
    if dtype.startswith(("float", "complex", "bcomplex")):
        return 'save leaf.astype("float32"), or another dtype of the list'
    return "give texts and other state through an object with get_state/set_state"


def copied_state(name: str, state: Any) -> dict[str, Any]:
    """Returns a copy of an object's state, made by JSON as a restore makes it.

    Args:
        name: Name of the item.
        state: The result of its get_state, which may change later.

    Raises:
        TypeError: JSON would not return the state equal.
    """
    try:
        text = json.dumps(state, allow_nan=False)
        copy = json.loads(text) if isinstance(state, dict) and not _is_deep(text, state) else None
        equal = copy == state
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(_state_message(name, state)) from error
    if copy is None or not equal:
        raise TypeError(_state_message(name, state))
    return copy


def _is_deep(text: str, state: Any) -> bool:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    level = [state]
    for _ in range(_DEEPEST):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return bool(level)


def _state_message(name: str, state: Any) -> str:
    return (
        "the state of an object must be a dict that JSON returns unchanged (string keys; lists, "
        f"no tuples; finite numbers; at most {_DEEPEST} levels), got {name}={_shown(state)}; "
        "change its get_state"
    )


def _shown(state: Any) -> str:
    try:
        return str(state)[:200]
    except (RecursionError, ValueError) as error:  # too deep, or an int of too many digits
        return f"{type(state).__name__} ({error})"
