# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Learning rates of a step, from an optimizer and its state.

A transformation is two functions: its schedule is a variable of a closure, and the counter of the
schedule an entry of the state. Both are found by the names that Optax gives them. Parameters have a
rate if exactly one place holds it:

- the hyperparameter `learning_rate` of `optax.inject_hyperparams`;
- the number or the schedule of `optax.scale_by_learning_rate`, which Optax's optimizers end with;
- a bare `optax.scale_by_schedule` beside `optax.scale(-1)`;
- the object whose methods the transformation consists of, if it is `Rated`.

Otherwise they have none: a factor that is not the rate would be worse than no number.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, Sharding

from dovetail_train._closures import inside

_Group = tuple[str, ...]  # labels of nested partitions; () are all parameters
_NAME = "learning_rate"
_MOST_OBJECTS = 20_000  # a closure can reach a whole program
_ENDS = (str, bytes, int, float, type, types.ModuleType, np.ndarray, jax.Array)
_ENDS += (Sharding, Mesh, AbstractMesh, jax.Device)
# They scale an update by a state of their own.
_SCALES = ("reduce_on_plateau", "scale_by_backtracking_linesearch", "scale_by_polyak")
_SCALES += ("scale_by_zoom_linesearch",)


@runtime_checkable
class Rated(Protocol):
    """An object whose methods `init` and `update` are a transformation with a learning rate."""

    def learning_rate_of(self, state: Any) -> Any:
        """Returns the rate f32[] of the next update, or None if `state` is not its own."""
        ...


def learning_rates(
    tx: optax.GradientTransformation, opt: Any, update: Callable[[], Any]
) -> dict[str, Any]:
    """Returns f32[] by name: "learning_rate", or "learning_rate/GROUP".

    Args:
        tx: Optimizer.
        opt: Its state before a step.
        update: Returns its state after the step. It is called if `optax.inject_hyperparams` holds a
            rate, and XLA drops all of it but the rate.
    """
    optimizer = _Optimizer(tx.update)
    injected = any(_is_injected(node) for _, node in _nodes(opt))
    places = optimizer.places(opt, update() if injected else None)
    related = {g: [x for h, x in places if _are_related(g, h)] for g, _ in places}
    unknown = {g for g in related for h in optimizer.unknown if _are_related(g, h)}
    return {
        optimizer.title(group): jnp.asarray(values[0], jnp.float32)
        for group, values in related.items()
        if len(values) == 1 and values[0] is not None and group not in unknown
    }


class _Optimizer:
    """The factors of an optimizer's updates, by group of parameters."""

    def __init__(self, update: Any) -> None:
        self.unknown: set[_Group] = set()  # something else scales their updates too
        self._numbers: list[tuple[_Group, Any]] = []
        self._schedules: list[tuple[_Group, Any]] = []
        self._rated: list[tuple[_Group, Rated]] = []
        self._titles: dict[_Group, str] = {}
        seen: set[tuple[_Group, int]] = set()
        waiting: list[tuple[_Group, Any]] = [((), update)]
        while waiting and len(seen) < _MOST_OBJECTS:
            group, thing = waiting.pop()
            if not isinstance(thing, _ENDS) and (group, id(thing)) not in seen:
                seen.add((group, id(thing)))
                waiting += self._walk(group, thing)
        if waiting:
            self.unknown.add(())

    def _walk(self, group: _Group, thing: Any) -> list[tuple[_Group, Any]]:
        """Records what scales updates. Returns the objects inside of anything else."""
        values, factory = inside(thing), _factory(thing)
        named = dict(values)
        if isinstance(thing, Rated):
            self._rated.append((group, thing))
        elif factory == "scale" and "step_size" in named:
            self._numbers.append((group, named["step_size"]))
        elif factory == "scale_by_schedule" and "step_size_fn" in named:
            self._schedules.append((group, named["step_size_fn"]))
        elif factory == "partition":
            titles = getattr(named["param_labels"], "titles", {})
            labels = {(*group, str(label)): label for label in named["transforms"]}
            self._titles |= {g: str(titles.get(label, label)) for g, label in labels.items()}
            return [(g, named["transforms"][label]) for g, label in labels.items()]
        elif factory != "inject_hyperparams":  # its state has all of it
            own = _NAME in named and not isinstance(thing, Mapping) and factory != "decay"
            if own or factory in _SCALES:
                self.unknown.add(group)
            return [(group, value) for _, value in values]
        return []

    def title(self, group: _Group) -> str:
        """Returns the name of a group's rate."""
        around = (group[:n] for n in range(1, len(group) + 1))
        return "/".join((_NAME, *(self._titles[g] for g in around)))

    def places(self, opt: Any, after: Any) -> list[tuple[_Group, Any]]:
        """Returns group and rate of each place; None for a factor that may be no rate.

        Args:
            opt: State before a step.
            after: State after it, if hyperparameters hold a rate.
        """
        nodes = list(_nodes(opt))
        values = [(g, node.hyperparams[_NAME]) for g, node in _nodes(after) if _is_injected(node)]
        for group, number in self._numbers:
            rate = -self._sign(group) * number
            if not _is_unit(number):
                known = isinstance(rate, Tracer) or (np.ndim(rate) == 0 and rate >= 0)
                values.append((group, rate if known else None))
        for group, schedule in self._schedules:
            own = [node for g, node in nodes if g == group]
            states = [node for node in own if isinstance(node, optax.ScaleByScheduleState)]
            named = _factory(schedule) == "scale_by_learning_rate"
            known = len(states) == 1 and (named or self._sign(group) < 0)
            rate = -self._sign(group) * schedule(states[0].count) if known else None
            values.append((group, rate))
        for group, rated in self._rated:
            rates = (rated.learning_rate_of(node) for g, node in nodes if g == group)
            values += [(group, rate) for rate in rates if rate is not None]
        return values

    def _sign(self, group: _Group) -> int:
        """Returns the product of the factors 1 and -1 of a group and of those around it."""
        units = [x for g, x in self._numbers if group[: len(g)] == g and _is_unit(x)]
        return -1 if sum(bool(x < 0) for x in units) % 2 else 1


def _nodes(state: Any, group: _Group = ()) -> Iterator[tuple[_Group, Any]]:
    """Yields the named tuples of an optimizer's state with their groups."""
    if isinstance(state, optax.PartitionState):
        for label, inner in state.inner_states.items():
            yield from _nodes(inner, (*group, str(label)))
        return
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        yield group, state
        if hasattr(state, "hyperparams"):
            return  # inside, the rate is a number of the state
    if isinstance(state, Mapping | tuple | list):
        for inner in state.values() if isinstance(state, Mapping) else state:
            yield from _nodes(inner, group)


def _is_injected(node: Any) -> bool:
    return _NAME in getattr(node, "hyperparams", {})


def _is_unit(number: Any) -> bool:
    return not isinstance(number, Tracer) and np.ndim(number) == 0 and bool(abs(number) == 1)


def _are_related(one: _Group, other: _Group) -> bool:
    """Tests whether a group is the other, around it, or inside it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _factory(thing: Any) -> str | None:
    """Returns the name of the function of Optax, or of dovetail-optim, that made a function."""
    if not isinstance(thing, types.FunctionType):
        return None
    ours = thing.__module__.partition(".")[0] in ("optax", "dovetail_optim")
    return thing.__qualname__.partition(".")[0] if ours else None
