# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grain's iterator, imported without a warning about JAX.

Grain warns on import that it found no profiler in JAX. JAX is an extra of this package, and Grain's
profiler is not used.
"""

import logging


class _Profiler(logging.Filter):
    """Leaves out Grain's warnings about the profiler of JAX."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(
            ("Failed to load jax profiler", "Grain multiprocess worker profiling requires")
        )


_filter = _Profiler()
logging.getLogger("absl").addFilter(_filter)
try:
    from grain import DatasetIterator
finally:
    logging.getLogger("absl").removeFilter(_filter)

__all__ = ["DatasetIterator"]
