# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Agreement of all processes on small values. One process agrees with itself.

Every function is a collective: all processes call it, in the same order, on their main thread.
"""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def gather(value: Any) -> list[Any]:
    """The JSON-able `value` of each process, in process order, on every process."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.array([text.size], np.int32)).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded).reshape(jax.process_count(), -1)
    return [json.loads(bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]


def is_primary() -> bool:
    """Whether this process does what is done once: seals, deletes, tidies."""
    return jax.process_index() == 0
