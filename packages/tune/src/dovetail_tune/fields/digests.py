# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digests of rows, models and scorers: equal digests, equal log-probabilities."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import jax
import numpy as np
from flax import nnx

from dovetail_tune.fields.records import KEY_BYTES
from dovetail_tune.types import Batch

#: The fields that a scorer may read. Nothing else of a batch reaches it.
SCORED = ("tokens", "targets", "mask", "positions", "segment_ids")
_PART_BYTES = 8  # of the digest of one parameter or setting


def row_keys(batch: Batch) -> list[bytes]:
    """Returns a digest of each row of a batch: names, dtypes and bytes of its `SCORED` fields."""
    arrays = {name: np.ascontiguousarray(batch[name]) for name in SCORED if name in batch}
    label = repr([(name, x.dtype.str, x.shape[1:]) for name, x in arrays.items()]).encode()
    keys = []
    for i in range(len(arrays["tokens"])):
        digest = blake2b(label, digest_size=KEY_BYTES)
        for x in arrays.values():
            digest.update(x[i].data)
        keys.append(digest.digest())
    return keys


def model_digests(model: nnx.Module) -> dict[str, str]:
    """Returns digests by name of the arrays of a model, and of its plain settings.

    Settings are public attributes of its modules with a number, a string or a bool, such as a
    soft cap, and those in dataclasses, such as a configuration. Random streams are left out.

    Raises:
        ValueError: An array has parts on another process.
    """
    digests = {"type": _digest(type(model).__qualname__.encode())}
    for path, node in nnx.iter_graph(model):
        if not isinstance(node, nnx.Module):
            continue
        for name, value in vars(node).items():
            if not name.startswith("_"):
                for inner, setting in _settings((*path, name), value):
                    digests[_name(inner)] = _digest(repr(setting).encode())
    state = nnx.state(model, nnx.Not(nnx.RngState))
    for path, x in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state)):
        name = _name(tuple(entry.key for entry in path))
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            raise ValueError(
                f"a model of with_reference must have all its arrays on this process, got {name} "
                f"on several; train Twin(model, frozen_copy) with reference=Frozen() instead"
            )
        array = np.ascontiguousarray(x)
        label = f"{array.dtype}{array.shape}".encode()
        digests[name] = _digest(label, array.reshape(-1).view(np.uint8).data)
    return digests


def described(value: Any) -> str:
    """Returns a function's qualified name, a partial with its options, or the repr of a value."""
    if isinstance(value, functools.partial):
        options = [f"{name}={described(x)}" for name, x in sorted(value.keywords.items())]
        return f"{described(value.func)}({', '.join([*map(described, value.args), *options])})"
    if not isinstance(value, Callable):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _settings(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields path and value of a plain setting, or of each one in a dataclass."""
    if isinstance(value, int | float | str):
        yield path, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | nnx.Module):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if not isinstance(inner, tuple):
                yield from _settings((*path, field.name), inner)
                continue
            for i, x in enumerate(inner):
                yield from _settings((*path, field.name, i), x)


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _digest(*parts: Any) -> str:
    digest = blake2b(digest_size=_PART_BYTES)
    for content in parts:
        digest.update(content)
    return digest.hexdigest()
