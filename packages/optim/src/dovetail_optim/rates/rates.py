# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Learning rates and weight decays of a transformation, read off its closures.

A transformation is two functions. Its options are variables of their closures, or fields of the
object whose methods they are. There is no other place to read them from, so options are found by
name: those of Optax (`learning_rate`, `step_size`, `weight_decay`) and of this package. Functions
that use other names are not known: such a rule needs a label.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.core import Tracer

from dovetail_optim._closures import inside
from dovetail_optim.rates.schedules import ByTokens, Schedule

UNKNOWN = "unknown"
_LEARNING_RATES = ("learning_rate", "step_size")
_DECAYS = ("weight_decay",)
# Names of one function alone: `decay.<locals>.update` of this package calls its decay `rate`, and
# `scale_by_schedule` its schedule `step_size_fn`.
_OWN_NAMES = {
    ("decay", "rate"): "weight_decay",
    ("scale_by_schedule", "step_size_fn"): "learning_rate",
}
_MOST_OBJECTS = 10_000  # a closure can reach a whole program


def rates(tx: Any) -> tuple[str, str]:
    """Returns learning rate and weight decay of a transformation as texts.

    Several different values are joined by commas. `unknown` for both if no learning rate and no
    decay is found; "-" if only that one is not.

    Args:
        tx: The transformation.

    Example:

        >>> import optax
        >>> rates(optax.adamw(1e-3, weight_decay=0.1))
        ('0.001', '0.1')
    """
    texts: dict[str, dict[str, None]] = {"learning_rate": {}, "weight_decay": {}}
    for name, value in _options(tx):
        texts[name][_text(value)] = None
    learning_rates, decays = map(list, texts.values())
    if len(learning_rates) > 1 and "1" in learning_rates:
        learning_rates.remove("1")  # optax.scale(-1) only turns the sign
    if not learning_rates and not decays:
        return UNKNOWN, UNKNOWN
    return ", ".join(learning_rates) or "-", ", ".join(decays) or "-"


def _options(tx: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of learning rates and decays within `tx`."""
    seen: set[int] = set()
    waiting: list[Any] = [tx]
    while waiting and len(seen) < _MOST_OBJECTS:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, str | bytes | types.ModuleType | type):
            continue
        seen.add(id(thing))
        owner = getattr(thing, "__qualname__", "").partition(".")[0]
        for name, value in inside(thing):
            option = _OWN_NAMES.get((owner, name), name)
            if option not in (*_LEARNING_RATES, *_DECAYS) or _wraps_rate(value):
                waiting.append(value)
            elif value is not None:
                yield "weight_decay" if option in _DECAYS else "learning_rate", value


def _wraps_rate(value: Any) -> bool:
    """Tests for a function around the schedule, as that of `optax.scale_by_learning_rate`."""
    names = value.__code__.co_freevars if isinstance(value, types.FunctionType) else ()
    return any(name in _LEARNING_RATES for name in names)


def _text(rate: float | Callable[..., Any]) -> str:
    """Returns a number, or the ends and the length of a schedule, or a function's name."""
    if isinstance(rate, ByTokens):
        return f"{_schedule(rate.schedule)} tokens"
    if isinstance(rate, Schedule):
        return f"{_schedule(rate)} steps"
    if callable(rate):
        name = getattr(rate, "__qualname__", type(rate).__qualname__)
        return name.partition(".<locals>")[0].rpartition(".")[2]
    if isinstance(rate, Tracer):
        return "traced"
    return f"{abs(float(np.asarray(rate))):.6g}" if np.ndim(rate) == 0 else "an array"


def _schedule(schedule: Schedule) -> str:
    """Returns first, largest and last value of a schedule."""
    ends = [schedule.phases[0].begin, *(phase.end for phase in schedule.phases)]
    values = dict.fromkeys((ends[0], max(ends), ends[-1]))
    shown = [ends[0], max(ends), ends[-1]] if len(values) > 1 else [ends[0]]
    return f"{' to '.join(f'{value:.6g}' for value in shown)} in {schedule.steps:,}"
