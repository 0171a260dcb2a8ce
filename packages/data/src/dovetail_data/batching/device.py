# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Transfer of batches to devices, ahead of their use."""

from typing import TYPE_CHECKING

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integer
from dovetail_data.batching.batch import BatchIterator

if TYPE_CHECKING:
    import jax

    from dovetail_data.batching._ahead import DeviceBatches


@_elsewhere.call
def to_device(
    it: BatchIterator, sharding: "jax.sharding.Sharding", *, depth: int = 2
) -> "DeviceBatches":
    """Sends the batches of `it` to devices ahead of their use, as global arrays (`jax.Array`).

    This host's arrays are its shard of the global ones. One thread reads and sends the batches.
    Needs the extra `device`.

    Args:
        it: The iterator, usually from `batches`. Do not use it afterwards: it belongs to the
            result.
        sharding: Sharding of each array.
        depth: Largest number of batches ahead.

    Returns:
        An iterator over dictionaries of arrays. Its `get_state` gives the state after the batch
        delivered last, not after those read ahead.

    Raises:
        TypeError: `it` is not such an iterator, or `sharding` is not a sharding.
        ValueError: `depth` is below 1.
        ImportError: JAX is missing.

    Example:

        >>> import jax
        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, batches, pack, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> rows = pack(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=8)
        >>> cpu = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
        >>> next(to_device(batches(rows, global_batch=2, seed=0), cpu))["tokens"].shape
        (2, 8)
    """
    require_integer("depth", depth, "Pass 2 to overlap with a step.", least=1)
    if isinstance(it, type) or not isinstance(it, BatchIterator):
        raise TypeError(
            f"it must be an iterator with get_state and set_state: got it={it!r:.200} of type "
            f"{type(it).__name__}. Pass batches(rows, ...)."
        )
    try:
        import jax

        from dovetail_data.batching._ahead import DeviceBatches
    except ImportError as error:
        raise ImportError(
            "to_device needs the package jax, which cannot be imported: "
            "pip install 'dovetail-data[device]'"
        ) from error
    if not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(
            f"sharding must be a jax.sharding.Sharding: got sharding={sharding!r:.200}. Pass "
            "jax.sharding.SingleDeviceSharding(jax.devices()[0]) for one device."
        )
    return DeviceBatches(it, sharding, depth=depth)
