# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Agreement of all processes on small values. One process agrees with itself.

Every function that takes a value of each process is a collective: all processes call it, in the
same order, on their main thread.
"""

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from dovetail_checkpoint.proof.report import Problem

# What fits in this many bytes takes one collective: a step and a flag, no problem found.
_SHORT_BYTES = 60


def gather(value: Any) -> list[Any]:
    """Returns the JSON value of each process, in process order, on every process."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = np.array([text.size], "<u4").view(np.uint8)
    rows = _rows(np.concatenate([length, _padded(text[:_SHORT_BYTES], _SHORT_BYTES)]))
    lengths = np.ascontiguousarray(rows[:, :4]).view("<u4").reshape(-1)
    rows = rows[:, 4:]
    if lengths.max() > _SHORT_BYTES:
        rows = _rows(_padded(text, int(lengths.max())))
    return [json.loads(bytes(row[:n])) for row, n in zip(rows, lengths, strict=True)]


def is_leaving(handled: BaseException | None) -> bool:
    """Tests whether an exception takes this process away from the others. No collective.

    Waiting for them in a clean-up would turn its exception into a hang.

    Args:
        handled: The exception that was handled already when they last were together.
    """
    error = sys.exc_info()[1]
    return error is not None and error is not handled and jax.process_count() > 1


def problems(found: list[Problem]) -> list[Problem]:
    """Returns the problems of all processes, each once, on every process."""
    gathered = gather([[problem.where, problem.reason] for problem in found])
    listed = dict.fromkeys((where, reason) for process in gathered for where, reason in process)
    return [Problem(where=where, reason=reason) for where, reason in listed]


def raise_together(error: Exception | None) -> None:
    """Raises `error` here and RuntimeError on the other processes. Does nothing if no process has
    one.

    A process that raised alone would leave the others waiting for it.
    """
    failed = [(i, text) for i, text in enumerate(gather(error and repr(error))) if text]
    if error is not None:
        raise error
    if failed:
        raise RuntimeError(
            f"every process must succeed, got process={failed[0][0]} with {failed[0][1]}; "
            "mend its cause and call again on every process"
        )


def _rows(row: np.ndarray) -> np.ndarray:
    """Returns the row of each process; all have one length."""
    with jax.transfer_guard("allow"):
        return multihost_utils.process_allgather(row).reshape(jax.process_count(), -1)


def _padded(text: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([text, np.zeros(size - text.size, np.uint8)])


def is_primary() -> bool:
    """True if this process does the work of one: writing checksums, deleting, tidying."""
    return jax.process_index() == 0
