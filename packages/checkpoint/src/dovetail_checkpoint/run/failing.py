# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Advice for a save that failed, by the kind of its error."""

import re

# TensorStore reports the errors of files as ValueError, with their text alone.
_OF_SYSTEM = re.compile(r"OS error \d+|No space left|quota exceeded|File too large", re.IGNORECASE)

_GUARD = re.compile(r"Disallowed .* transfer")
_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)


def advice(error: BaseException) -> str:
    """Returns the next thing to do after a failed save."""
    chain = _chain(error)
    if any(isinstance(cause, TimeoutError) for cause in chain):
        return "give the Store a larger timeout_s"
    if any(_GUARD.search(str(cause)) for cause in chain):
        return 'set jax_transfer_guard to "allow" in jax.config, which holds for all threads'
    if any(isinstance(cause, OSError) or _OF_SYSTEM.search(str(cause)) for cause in chain):
        return "free space or fix the directory"
    # After the disk: TensorStore calls a full one exhausted, too.
    if any(isinstance(cause, MemoryError) or _MEMORY.search(str(cause)) for cause in chain):
        return "free memory of the host or the devices"
    return "mend its cause"


def _chain(error: BaseException | None) -> list[BaseException]:
    """Returns the error and those from which it was raised."""
    chain = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
