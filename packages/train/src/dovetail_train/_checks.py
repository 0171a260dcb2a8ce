# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a `Trainer`, before any work starts."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dovetail_train.state import State
from dovetail_train.step import Batch


def check_options(*, accumulate: int, ema: float | None, max_skips: int) -> None:
    """Raises ValueError for an option out of range; see `Trainer`.

    Args:
        accumulate: Microbatches per step.
        ema: Decay of the moving average.
        max_skips: Rejected steps in a row.
    """
    if accumulate < 1:
        raise ValueError(
            f"accumulate must be at least 1, got accumulate={accumulate}; write accumulate=1"
        )
    if ema is not None and not 0 < ema < 1:
        raise ValueError(
            f"ema must lie between 0 and 1, got ema={ema}; write for example ema=0.999, or "
            f"ema=None for no average"
        )
    if max_skips < 0:
        raise ValueError(
            f"max_skips must be at least 0, got max_skips={max_skips}; write max_skips=10, or "
            f"max_skips=0 to end at the first refused step"
        )


def check_loss(loss: Any) -> None:
    """Raises TypeError unless `loss` can be called as loss(model, batch, key=key)."""
    if not callable(loss):
        raise TypeError(
            f"a loss must be a function of (model, batch, *, key), got {loss!r}; pass for example "
            "lm_loss()"
        )
    try:
        signature = inspect.signature(loss)
    except ValueError:  # some compiled functions have none
        return
    try:
        signature.bind(None, None, key=None)
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        name = name if name.isidentifier() else "loss"
        raise TypeError(
            f"a loss must take (model, batch, *, key), got {name}{signature}; write "
            f"def {name}(model, batch, *, key)"
        ) from error


def check_batch(batch: Any, *, accumulate: int, shards: int) -> None:
    """Raises TypeError unless `batch` is a mapping, ValueError unless its rows can be split.

    Args:
        batch: Arrays [rows, ...] by name.
        accumulate: Microbatches per step.
        shards: Devices that split the rows.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            "a batch must be a mapping of arrays [rows, ...] by name, got "
            f"{type(batch).__name__}; write for example {{'x': x, 'y': y}}, and batch['x'] in the "
            "loss"
        )
    divisor, processes = accumulate * shards, jax.process_count()
    rows = {name: np.shape(x)[:1] for name, x in batch.items()}
    if not rows or len(set(rows.values())) > 1 or () in rows.values():
        raise ValueError(
            f"every array of a batch must have the same number of rows, got "
            f"{ {name: np.shape(x) for name, x in batch.items()} }; "
            f"give each a first axis of rows"
        )
    count = next(iter(rows.values()))[0] * processes
    if count == 0 or count % divisor:
        raise ValueError(
            f"the rows of a batch must be divisible by accumulate × the data axes "
            f"{accumulate} × {shards} = {divisor}, got rows={count}; use "
            f"{max(1, count // divisor) * divisor} rows or another accumulate"
        )


def for_state_like(like: State, step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `step` with a check of the state's tree; under jit it costs nothing after
    compilation.
    """

    def checked(state: State, batch: Batch) -> Any:
        if jax.tree.structure(state) != jax.tree.structure(like):
            raise ValueError(
                f"state must be of the model that init was called with last, got a tree of "
                f"{len(jax.tree.leaves(state))} leaves where it has {len(jax.tree.leaves(like))} "
                f"(or other names); call init(model) again"
            )
        return step(state, batch)

    return checked
