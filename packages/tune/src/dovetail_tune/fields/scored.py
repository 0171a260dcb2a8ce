# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fields that a model computes, once for each row.

A batch with a row that is not known is computed whole, so there is one shape and one compilation.
Its known rows keep the values that they have: the values of a row never change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from dovetail_tune.fields.checks import check_new, check_pairs
from dovetail_tune.fields.digests import SCORED, row_keys
from dovetail_tune.fields.mismatched import PREFIX, mismatched_rows
from dovetail_tune.fields.records import Records
from dovetail_tune.rows import whole_rows
from dovetail_tune.types import Batch


class ScoredFields:
    """Fields computed by a model: a `Fields`.

    Args:
        model: The model as it is now. Later updates in place do not change it here.
        compute: Maps (model, `SCORED` fields of a batch) to arrays [B, ...] by name.
        records: Values by row.
        names: Names of the fields.
        mismatched: Also compute the fields of the rows of `with_mismatched`.
        sums: The fields are sums over rows, which must be those of `whole_rows`.
    """

    def __init__(
        self,
        model: nnx.Module,
        compute: Callable[[Any, Batch], Mapping[str, Array]],
        records: Records,
        *,
        names: tuple[str, ...],
        mismatched: bool,
        sums: bool,
    ) -> None:
        graph, state = nnx.split(model)
        self._state = jax.tree.map(lambda x: x, state)  # not the model's own variables
        self._compute = jax.jit(lambda state, batch: compute(nnx.merge(graph, state), batch))
        self._records, self._names = records, names
        self._mismatched, self._sums = mismatched, sums
        self.counts = {"rows": 0, "computed": 0, "runs": 0, "without_answer": 0}

    @jax.transfer_guard("allow")
    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        without_answer = check_pairs(batch)
        other = mismatched_rows(batch) if self._mismatched else {}
        prefixes = ("", PREFIX) if other else ("",)
        for rows in filter(None, (batch, other) if self._sums else ()):
            whole_rows(rows)
        check_new(batch, [prefix + name for prefix in prefixes for name in self._names])
        fields = self._look_up(batch)
        if other:
            fields |= {PREFIX + name: x for name, x in self._look_up(other).items()}
        self.counts["rows"] += len(batch["tokens"])
        self.counts["without_answer"] += without_answer
        return fields

    def close(self) -> None:
        self._records.close()

    def _look_up(self, batch: Batch) -> dict[str, np.ndarray]:
        keys, length = row_keys(batch), np.shape(batch["tokens"])[1]
        unknown = {key: i for i, key in enumerate(keys) if key not in self._records}
        if unknown:
            values = self._run(batch)
            new = {
                key: {name: np.asarray(x[i]) for name, x in values.items()}
                for key, i in unknown.items()
            }
            self._records.add(new, length=length)
            self.counts["computed"] += len(new)
        rows = [self._records.get(key, length=length) for key in keys]
        return {name: np.stack([row[name] for row in rows]) for name in self._names}

    def _run(self, batch: Batch) -> dict[str, np.ndarray]:
        scored = {name: np.asarray(batch[name]) for name in SCORED if name in batch}
        values = jax.device_get(dict(self._compute(self._state, scored)))
        self.counts["runs"] += 1
        for name, x in values.items():
            finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
            if not finite.all():
                raise ValueError(
                    f"{name} must be finite, got NaN or infinity in row "
                    f"{int(np.flatnonzero(~finite)[0])} of a batch; mask the targets that lie "
                    "outside the vocabulary, and check the parameters of the model"
                )
        return values
