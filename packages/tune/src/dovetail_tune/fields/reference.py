# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reference's log-probabilities as a field of the batches."""

from __future__ import annotations

import os
from collections.abc import Iterable

from flax import nnx

from dovetail_tune import _elsewhere
from dovetail_tune.fields.digests import described, model_digests
from dovetail_tune.fields.iterator import FieldIterator, add_fields
from dovetail_tune.fields.records import Column, Origin, Records
from dovetail_tune.fields.scored import ScoredFields
from dovetail_tune.logps import token_logps
from dovetail_tune.rows import row_sums
from dovetail_tune.types import Batch, Scorer


@_elsewhere.call
def with_reference(
    batches: Iterable[Batch],
    model: nnx.Module,
    directory: str | os.PathLike[str] | None = None,
    *,
    field: str = "ref_logps",
    per_token: bool = False,
    scorer: Scorer = token_logps,
) -> FieldIterator:
    """Adds the model's log-probabilities of the targets, computed once for each row.

    A row is known by its content: tokens, targets, mask, positions, segment_ids. Rows of an earlier
    epoch or launch are read from `directory`, bit for bit. A batch with an unknown row is computed
    whole; a batch of known rows runs no model.

    In several processes each scores its own rows, with a model on its own devices. They may share
    the directory.

    Args:
        batches: Batches on the host, as `dovetail_data` makes them. Pairs are checked by
            `check_pairs`.
        model: The reference, in evaluation mode. It is used as it is now: training it later does
            not change the field.
        directory: Folder to keep the values in, or None for memory.
        field: Name of the field, as in `Field(name)`.
        per_token: Add f32[B, S] instead of the sums f32[B]. Tokens with mask 0 have 0.
        scorer: Scores the targets. It receives no other field of the batch.

    Returns:
        The batches with the field in nats. Batches of `with_mismatched` get kl_`field` too.
        `counts` has rows, computed (rows not known before), runs (of the model), and
        without_answer: rows without a target that counts.

    Raises:
        TypeError: `batches` is no iterable of batches.
        ValueError: The directory has values of another model, scorer or shape, or an array of the
            model lies on several processes. When iterated: a batch breaks the contract, or a
            log-probability is not finite.

    Example:

        >>> import numpy as np
        >>> from flax import nnx
        >>> from dovetail_tune import with_reference
        >>> from dovetail_tune.testing import TinyDecoder
        >>> tokens = np.array([[1, 2, 3]])
        >>> batch = {"tokens": tokens, "targets": tokens + 1, "mask": np.array([[0, 1, 1]])}
        >>> next(with_reference([batch], TinyDecoder(rngs=nnx.Rngs(0))))["ref_logps"].shape
        (1,)
    """
    column = Column(name=field, dtype="<f4", per_token=per_token)
    origin = Origin(columns=(column,), scorer=described(scorer), model=model_digests(model))

    def compute(model, batch):
        logps = scorer(model, batch).logprob
        return {field: logps if per_token else row_sums(logps)}

    records = Records(directory, origin)
    fields = ScoredFields(
        model, compute, records, names=(field,), mismatched=True, sums=not per_token
    )
    return add_fields(batches, fields)
