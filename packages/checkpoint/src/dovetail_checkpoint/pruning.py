# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Retention after each save of a run. Its failures are warnings: the new step is committed."""

import difflib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from dovetail_checkpoint import retention
from dovetail_checkpoint.retention import Best, Retention

_logger = logging.getLogger(__name__)
_SHOWN = 10  # names of metrics in a warning


class Pruner:
    """Deletes the steps of `root` that the policy does not keep.

    Args:
        root: Directory of the run.
        rule: The retention policy.
        checked_only: A step is good only once it has checksums.

    Attributes:
        failures: Number of deletions that failed so far. Each is tried again at the next save.
    """

    def __init__(self, root: Path, rule: Retention, *, checked_only: bool) -> None:
        self.failures = 0
        self._root, self._rule, self._checked_only = root, rule, checked_only
        self._is_compared = False

    def prune(self, damaged: Collection[int]) -> None:
        """Deletes what it can, and warns of the rest."""
        try:
            retained = retention.retain(
                self._root, self._rule, damaged=damaged, checked_only=self._checked_only
            )
        except OSError as error:
            self._warn([error])
            return
        if retained.errors:
            self._warn(retained.errors)
        if self._rule.best and retained.doomed and not self._is_compared:
            self._is_compared = True
            if message := unmeasured(self._rule.best, retained.metrics):
                _logger.warning("%s: %s", self._root, message)

    def _warn(self, errors: list[OSError]) -> None:
        self.failures += len(errors)
        _logger.warning(
            "%s: %d old steps could not be deleted, first %s; the next save tries again",
            self._root,
            len(errors),
            errors[0],
        )


def unmeasured(best: Best, metrics: Mapping[int, Mapping[str, float | int]]) -> str | None:
    """Returns a message if none of the steps has the metric that `best` compares."""
    if any(best.metric in numbers for numbers in metrics.values()):
        return None
    names = sorted({name for numbers in metrics.values() for name in numbers})
    shown = difflib.get_close_matches(best.metric, names, n=_SHOWN) or names[:_SHOWN]
    have = f"they have {shown}" if names else "they have no metrics"
    return (
        f"a metric must be saved with a step to be compared, got Best({best.metric!r}) and none in "
        f"steps {sorted(metrics)}, so none of them is kept as the best: {have}; call "
        f"save(step, metrics={{{best.metric!r}: ...}}), or measure at the steps that are saved"
    )
