# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of a step from a plan: tokens, and the options of each slot."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail_infer.run.request import Request
from dovetail_infer.sampling import Sampling
from dovetail_infer.schedule.plan import Plan, Row
from dovetail_infer.step.batch import Batch, RowOptions
from dovetail_infer.step.slots import row_options

UNKNOWN = -1  # a token that the last step drew, known to the device alone


class Batches:
    """Makes the batch of each plan. Options are kept by slot, since they change at admission alone.

    Args:
        max_rows: Number of slots.
    """

    def __init__(self, max_rows: int):
        neutral = row_options([Sampling()], seeds=[0], outputs=[0])
        self._options = RowOptions(*(np.repeat(x, max_rows, axis=0) for x in neutral))
        self._adapters = np.full(max_rows, -1, np.int32)
        # Length of a request from which its stop ids are allowed.
        self._unbanned_from = np.zeros(max_rows, np.int64)

    def admit(self, slot: int, request: Request, *, place: int) -> None:
        """Sets the options of a slot.

        Args:
            slot: The slot.
            request: The request that it belongs to from now on.
            place: Place of its adapter in the stack, or -1.
        """
        s = request.sampling
        row = row_options([s], seeds=[request.seed], outputs=[0])
        for column, value in zip(self._options, row, strict=True):
            column[slot] = value[0]
        self._adapters[slot] = place
        self._unbanned_from[slot] = request.scheduled.prompt_length + s.min_tokens

    def build(self, plan: Plan, requests: Mapping[int, Request], tables: np.ndarray) -> Batch:
        """Returns the batch of a plan.

        Args:
            plan: The plan.
            requests: Requests by their id.
            tables: Page tables of all slots, i32[G, max_rows, C].
        """
        rows = plan.rows
        slots = np.fromiter((row.slot for row in rows), np.int32, len(rows))
        counts = np.fromiter((row.count for row in rows), np.int32, len(rows))
        lengths = np.fromiter((row.start for row in rows), np.int32, len(rows)) + counts
        samples = np.fromiter((row.samples for row in rows), np.bool_, len(rows))
        self._options.bans[slots] = lengths < self._unbanned_from[slots]
        tokens = np.empty(plan.tokens, np.int32)
        targets = np.full(plan.tokens, -1, np.int32)
        at = 0
        for row in rows:
            request = requests[row.request_id]
            _fill(tokens[at : at + row.count], request.scheduled.ids, row)
            if request.needs_scores(row.start):
                assert request.targets is not None
                given = request.targets[row.start : row.start + row.count]
                targets[at : at + len(given)] = given
            at += row.count
        return Batch(
            tokens=tokens,
            counts=counts,
            lengths=lengths,
            slots=slots,
            samples=samples,
            tables=tables[:, slots],
            options=RowOptions(*(x[slots] for x in self._options)),
            adapters=self._adapters[slots],
            targets=targets,
        )


def _fill(tokens: np.ndarray, ids: list[int], row: Row) -> None:
    known = ids[row.start : row.start + row.count]
    tokens[: len(known)] = known
    tokens[len(known) :] = UNKNOWN
