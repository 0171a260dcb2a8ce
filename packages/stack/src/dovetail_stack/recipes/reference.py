# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A reference's log-probabilities as a field of rows of pairs, computed before training.

The reference is the model before its first step. It is in memory only while it computes, and the
values stay on the disk, so a resumed run does not compute them again.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_data import Rows
from dovetail_tune import with_reference
from dovetail_tune.types import Scorer

FIELD = "ref_logps"


def in_precision(model: nnx.Module, precision: str) -> nnx.Module:
    """Returns the model with its parameters in the dtype of a step, as the trainer casts them.

    A reference in float32 beside a policy in bfloat16 would have other log-probabilities, and the
    log-ratios would not begin at 0. The model is changed.
    """
    if precision == "float32":
        return model
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param) and not node.get_metadata("keep_dtype", False):
            x = node.get_value()
            node.set_value(x.astype(precision) if jnp.issubdtype(x.dtype, jnp.floating) else x)
    return model


class Referenced:
    """Rows of pairs with the field `FIELD`, f32[B].

    It is 0 until `fill`, so that a step can be timed, and then NaN where it was not filled.

    Args:
        pairs: Rows of `dovetail_data.pairs`.

    Attributes:
        rows: The rows with the field.
    """

    def __init__(self, pairs: Rows) -> None:
        self._values = np.zeros((len(pairs), 2), np.float32)
        self.rows = pairs.map(self._with_field)

    def _with_field(self, row: Any, rng: np.random.Generator) -> Any:
        del rng
        return {**row, FIELD: self._values[row["pair_ids"][0]]}

    def fill(
        self,
        batches: Iterable[Any],
        model: nnx.Module,
        directory: Path,
        *,
        scorer: Scorer,
        progress: Callable[[int], object] = lambda rows: None,
    ) -> None:
        """Computes the field for the pairs of `batches`.

        Args:
            batches: Batches of the pairs, without the field.
            model: The reference.
            directory: Keeps the values. A launch computes those that are not in it.
            scorer: Scores the targets.
            progress: Receives the number of rows of each batch.

        Raises:
            ValueError: There are several processes.
        """
        if jax.process_count() > 1:
            raise ValueError(
                "a reference as a field is computed by one process, got "
                f"{jax.process_count()} processes: pass reference=frozen"
            )
        self._values[:] = np.nan
        with with_reference(batches, model, directory, field=FIELD, scorer=scorer) as scored:
            for batch in scored:
                mask: np.ndarray = np.asarray(batch["mask"])
                filled = mask[::2].any(axis=1)  # a last batch may not be full
                pairs = batch["pair_ids"][::2][filled]
                self._values[pairs] = np.asarray(batch[FIELD]).reshape(-1, 2)[filled]
                progress(2 * len(pairs))
