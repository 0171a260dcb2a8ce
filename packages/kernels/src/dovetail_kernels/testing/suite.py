# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rule of every conformance suite: a case is right, or refused if its needs are not claimed."""

from collections.abc import Callable, Collection, Iterable, Set
from typing import Any

REFUSALS = (ValueError, TypeError, NotImplementedError)


def right_or_refused(
    check: Callable[[Any], None],
    cases: Iterable[Any],
    *,
    supports: Collection[str],
    features: Set[str],
) -> None:
    """Checks every case. A refusal is right for a case that needs more than `supports` has.

    Args:
        check: Raises AssertionError for a wrong answer to a case, and passes errors on.
        cases: The cases, each with its `name` and its `needs`.
        supports: Features that must be computed correctly.
        features: Those of the suite.

    Raises:
        AssertionError: An answer is wrong, or a supported case is refused.
        ValueError: `supports` has an unknown feature.
    """
    if unknown := sorted(set(supports) - features):
        raise ValueError(f"supports must be among {sorted(features)}, got {unknown}. Omit them.")
    for case in cases:
        try:
            check(case)
        except REFUSALS as refusal:
            if case.needs.issubset(supports):
                raise AssertionError(
                    f"{case.name}: needs {sorted(case.needs)}, all of them supported, and was "
                    f"refused: {refusal!r}."
                ) from refusal
