# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches on devices, ahead of their use."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import jax

    from dovetail_data._device import DeviceBatches


@runtime_checkable
class BatchIterator(Protocol):
    """What `to_device` needs: an iterator of dicts of arrays whose state can be set."""

    def __next__(self) -> Mapping[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


def to_device(
    it: BatchIterator, sharding: "jax.sharding.Sharding", *, depth: int = 2
) -> "DeviceBatches":
    """The batches of `it` as dicts of global jax.Array, each array laid out by `sharding`.

    This host's arrays are its part of the global ones. One thread reads and sends up to `depth`
    batches ahead. get_state is the state after the batch that was delivered last, not after those
    read ahead. `it` belongs to the result from then on. Needs the extra `device`.
    """
    if depth < 1:
        raise ValueError(f"depth must be >= 1: got depth={depth}. Pass 2 to overlap with a step.")
    try:
        from dovetail_data._device import DeviceBatches
    except ImportError as error:
        raise ImportError(
            "to_device needs the package jax, which cannot be imported: "
            "pip install 'dovetail-data[device]'"
        ) from error
    return DeviceBatches(it, sharding, depth=depth)
