# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Agreement of all ranks on small values, by collectives on their main threads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def gather(value: Any) -> list[Any]:
    """Returns the JSON value of each rank, in the order of the ranks, on every rank."""
    import jax
    from jax.experimental import multihost_utils

    count = jax.process_count()
    if count == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([text.size], np.int32)).reshape(count)
    padded = np.concatenate([text, np.zeros(int(sizes.max()) - text.size, np.uint8)])
    rows = multihost_utils.process_allgather(padded).reshape(count, -1)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]
