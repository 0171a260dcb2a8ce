# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A step on the device, and its results on the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import jax
import numpy as np

from dovetail_infer.step import logits as logit
from dovetail_infer.step.batch import Results, Scores
from dovetail_infer.step.program import Outputs
from dovetail_infer.step.rules import Ruled

Want = Literal["top", "kept", "prompt", "experts"]


class Handle:
    """A step that the device computes.

    Args:
        outputs: Its outputs.
        ruled: Draws of rules, which replace those of the step.
        rows: Number of rows without padding.
        tokens: Number of tokens without padding.
        want: Outputs to read beside tokens and their log-probabilities.
    """

    def __init__(
        self,
        outputs: Outputs,
        ruled: Sequence[Ruled],
        *,
        rows: int,
        tokens: int,
        want: Collection[Want],
    ):
        self._outputs, self._rows, self._tokens = outputs._replace(blocks=None), rows, tokens
        self._want, self._ruled = want, ruled
        self._packed: Any = [outputs.packed, *(x.packed for x in ruled)]
        for array in jax.tree.leaves((self._packed, [self._of(name) for name in want])):
            array.copy_to_host_async()

    def done(self) -> bool:
        """Tests whether `read` would not wait."""
        return self._packed[-1].is_ready()

    def read(self) -> Results:
        """Waits for the step and returns its results."""
        packed = np.array(self._packed[0])[: self._rows]
        values = {name: self._host(name) for name in ("top", "kept", "prompt", "experts")}
        for rows, places, array in self._ruled:
            drawn = np.asarray(array)[places]
            packed[rows, :3] = drawn[:, :3]
            if (top := values["top"]) is not None:
                logprobs, ranks = top.logprobs.copy(), top.ranks.copy()
                logprobs[rows], ranks[rows] = drawn[:, 1].copy().view(np.float32), drawn[:, 3]
                values["top"] = top._replace(logprobs=logprobs, ranks=ranks)
        numbers = np.ascontiguousarray(packed[:, 1:].T).view(np.float32)
        return Results(packed[:, 0].copy(), *numbers, **values)

    def _of(self, name: Want) -> Any:
        value = getattr(self._outputs, name)
        if value is None:
            raise ValueError(
                f"A step must compute what it is asked for, got want={name!r} of a program "
                "without it. Use kind='full' for top and kept, kind='score' for prompt, and a "
                "layout with record_experts for experts."
            )
        return value

    def _host(self, name: Any) -> Any:
        if name not in self._want:
            return None
        count = self._tokens if name in ("prompt", "experts") else self._rows
        value: Any = jax.tree.map(lambda x: np.asarray(x)[:count], self._of(name))
        return Scores._make(value) if isinstance(value, logit.DeviceScores) else value
