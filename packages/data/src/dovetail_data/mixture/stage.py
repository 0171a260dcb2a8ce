# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Stages: weights of a mixture from some row on, and the integers that represent them."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from dovetail_data._arguments import require_integer, wrong
from dovetail_data.mixture.proportional import PERIOD, shares

Weights: TypeAlias = Mapping[str, int | float | Fraction]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Weights of a mixture from row `start` on.

    Attributes:
        start: First row of the stage.
        weights: Weight of each source, at least 0. 0 turns the source off.
    """

    start: int
    weights: Weights

    def __post_init__(self) -> None:
        require_integer("start", self.start, "Pass the first row of the stage, such as start=1000.")
        if not isinstance(self.weights, Mapping):
            remedy = 'Pass one such as {"web": 0.7, "code": 0.3}.'
            raise wrong("weights", "a mapping of names to numbers", self.weights, remedy)
        for name, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
                raise wrong(f"weights[{name!r}]", "a number", weight, "Pass one such as 0.5.")


def _equal(names: Sequence[str]) -> str:
    """Returns equal weights as they are typed."""
    return f"{{{', '.join(f'{name!r}: {1 / len(names):.3g}' for name in names)}}}"


def counts_of(stage: Stage, names: Sequence[str]) -> list[int]:
    """Returns the weights of a stage as integers, in the order of `names`."""
    weights = stage.weights
    if set(weights) != set(names):
        raise ValueError(
            f"weights must be of the sources {list(names)}: got {sorted(weights)} for the rows "
            f"from {stage.start}. Pass weights={_equal(names)}; a weight of 0 turns a source off."
        )
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"a weight must be a number >= 0: got weights[{name!r}]={weight!r}. Pass 0 to "
                "turn the source off."
            )
    if not any(weights.values()):
        raise ValueError(
            f"a weight must be above 0: got {dict(weights)} for the rows from {stage.start}. Give "
            "one source a weight."
        )
    counts = shares([Fraction(str(weights[name])) for name in names])
    for name, count in zip(names, counts, strict=True):
        if weights[name] and not count:
            raise ValueError(
                f"a weight must be at least about 1/{2 * PERIOD} of the sum: got weights[{name!r}]"
                f"={weights[name]} of {sum(weights.values())}. Raise it, or pass 0."
            )
    return counts
