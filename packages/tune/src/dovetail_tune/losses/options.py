# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of preference losses, before anything is traced."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from dovetail_tune.losses.divergence_scores import DIVERGENCES
from dovetail_tune.losses.kinds import KINDS

_EXO_SMOOTHING = 1e-3  # the EXO paper's recommendation, for the error message


def check_options(
    kinds: Iterable[str],
    *,
    beta: float,
    divergence: str = "reverse_kl",
    alpha: float = 0.5,
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
) -> None:
    """Raises ValueError unless each kind exists and the options fit.

    Args:
        kinds: Names of losses that share the options, without "sft".
        beta: Strength of the penalty.
        divergence: An f-divergence, which every kind must have.
        alpha: Coefficient of "alpha_divergence".
        label_smoothing: Rate of flipped labels, which some kind must have unless it is 0.
        discopop_tau: Temperature of "discopop".
    """
    kinds = list(kinds)
    for kind in kinds:
        _check_kind(kind)
    check_number(beta > 0, "beta must be above 0 and finite", beta=beta, instead=0.1)
    _check_divergence(kinds, divergence, alpha)
    _check_smoothing(kinds, label_smoothing)
    check_number(
        0 < discopop_tau <= 1,
        "discopop_tau must be in (0, 1], as the loss grows exponentially above",
        discopop_tau=discopop_tau,
        instead=0.05,
    )


def check_number(holds: bool, rule: str, *, instead: float | int, **value: float | int) -> None:
    """Raises ValueError unless `holds` and the number is finite.

    Args:
        holds: The rule holds.
        rule: The rule, as the error message says it.
        instead: A number to pass.
        value: The number by its name.
    """
    ((name, number),) = value.items()
    if not (holds and math.isfinite(number)):
        raise ValueError(f"{rule}, got {name}={number!r}; pass for example {name}={instead}")


def check_name(option: str, name: str, names: Iterable[str]) -> None:
    """Raises ValueError unless `name` is one of `names`; the message has the nearest.

    Args:
        option: Name of the option.
        name: Its value.
        names: All values.
    """
    names = list(names)
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
        instead = f"write {option}={near[0]!r}" if near else "pass one of those"
        raise ValueError(f"{option} must be one of {', '.join(names)}, got {name!r}; {instead}")


def _check_kind(kind: str) -> None:
    if kind == "sft":
        raise ValueError(
            "the loss of a pair must be a function of its four log-probabilities, got kind='sft'; "
            "add it as a term of its own: dpo(kind={'sigmoid': 1.0, 'sft': 0.2})"
        )
    check_name("kind", kind, KINDS)


def _check_divergence(kinds: list[str], divergence: str, alpha: float) -> None:
    check_name("divergence", divergence, DIVERGENCES)
    check_number(True, "alpha must be finite", alpha=alpha, instead=0.5)
    without = [kind for kind in kinds if not KINDS[kind].divergence]
    if divergence != "reverse_kl" and without:
        able = ", ".join(kind for kind, form in KINDS.items() if form.divergence)
        raise ValueError(
            f"another divergence than 'reverse_kl' must come with kinds of the difference of "
            f"scores ({able}), got divergence={divergence!r} with kind={without[0]!r}; pass one of "
            f"those, or divergence='reverse_kl'"
        )


def _check_smoothing(kinds: list[str], label_smoothing: float) -> None:
    check_number(
        0 <= label_smoothing < 0.5,
        "label_smoothing must be in [0, 0.5)",
        label_smoothing=label_smoothing,
        instead=0.1,
    )
    if "exo_pair" in kinds and label_smoothing == 0:
        raise ValueError(
            f"kind='exo_pair' must have label_smoothing above 0, got label_smoothing=0; pass for "
            f"example label_smoothing={_EXO_SMOOTHING}"
        )
    if label_smoothing and not any(KINDS[kind].smoothing for kind in kinds):
        able = ", ".join(kind for kind, form in KINDS.items() if form.smoothing)
        raise ValueError(
            f"label_smoothing must come with a kind that has it ({able}), got "
            f"label_smoothing={label_smoothing} with kind={', '.join(kinds) or 'sft'}; leave it out"
        )
