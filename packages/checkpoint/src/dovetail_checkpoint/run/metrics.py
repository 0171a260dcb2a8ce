# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of a step: numbers by name, in Orbax's item for metrics, covered by the manifest."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_checkpoint import _compat
from dovetail_checkpoint.proof.manifest import MANIFEST_ITEM, DamagedManifestError, decode

_log = logging.getLogger(__name__)


def checked(metrics: Mapping[str, Any] | None, *, step: int) -> dict[str, float | int]:
    """Returns the finite metrics as Python numbers. The others are logged: nothing compares to NaN.

    A step whose evaluation gave NaN is saved without it: the step is worth more than the number.

    Args:
        metrics: Numbers by name; scalars of NumPy and JAX too.
        step: The step, for the log.

    Raises:
        TypeError: A name is not a str, or a value is not a number.
    """
    numbers = {name: _number(name, value) for name, value in (metrics or {}).items()}
    finite = {k: v for k, v in numbers.items() if math.isfinite(v)}
    if left_out := [f"{k}={v}" for k, v in numbers.items() if k not in finite]:
        _log.warning(
            "step %d is saved without %s: a metric must be finite to be compared",
            step,
            ", ".join(left_out),
        )
    return finite


def _number(name: Any, value: Any) -> float | int:
    if not isinstance(name, str):
        raise TypeError(f"a metric's name must be a str, got {name!r}; use metrics={{'loss': 0.5}}")
    of_array = isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0
    number = np.asarray(value).item() if of_array else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"a metric must be a number, got {name}={value!r:.100}; use float({name})")
    return number


def read(directory: Path) -> dict[str, float | int]:
    """Returns the metrics of a committed step; for a step of plain Orbax, those that are numbers.

    Returns none if the manifest or the metrics cannot be read.
    """
    try:
        if _compat.document_path(directory, MANIFEST_ITEM).exists():
            return dict(decode(_compat.load_document(directory, MANIFEST_ITEM)).metrics)
        return _numbers(_compat.load_metrics(directory))
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, DamagedManifestError):
        return {}


def _numbers(metrics: Any) -> dict[str, float | int]:
    if not isinstance(metrics, dict):
        return {}
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
