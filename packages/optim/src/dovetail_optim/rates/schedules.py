# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules as values: compare, print, save and load them.

A schedule is a row of phases, each with a length, two ends and a shape. Call it like any Optax
schedule. A cooldown is a phase that can start at any step. So one constant run gives a model of
every length: return to a checkpoint, `branch`, and train only the decay (2405.18392).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_optim import _elsewhere

Shape = Literal["linear", "cosine", "1-sqrt", "square", "exponential"]

# What is left of the way from begin to end after a share t of the phase.
_LEFT: dict[str, Callable[[Array], Array]] = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: 0.5 * (1 + jnp.cos(jnp.pi * t)),
    "1-sqrt": lambda t: 1 - jnp.sqrt(t),
    "square": lambda t: 1 - t**2,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """`steps` steps from `begin` to `end`. The next phase starts at `end`.

    Args:
        steps: Length, at least 1.
        begin: First value.
        end: Value after the last step.
        shape: For the share t of the phase the value is `begin + (end - begin)(1 - left)`. `left`
            is 1 - t for "linear", (1 + cos πt) / 2 for "cosine", 1 - √t for "1-sqrt" (2405.18392)
            and 1 - t² for "square". For "exponential" it is begin (end / begin)^t.
    """

    steps: int
    begin: float
    end: float
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a phase must have steps >= 1, got steps={self.steps}. Leave it out.")
        if self.shape not in (*_LEFT, "exponential"):
            raise ValueError(
                f"shape must be one of {[*_LEFT, 'exponential']}, got shape={self.shape!r}. Use "
                "'1-sqrt' for a cooldown."
            )
        if not (math.isfinite(self.begin) and math.isfinite(self.end)):
            raise ValueError(
                f"a phase must have finite ends, got begin={self.begin}, end={self.end}. Use 0.0 "
                "to switch off."
            )
        if self.shape == "exponential" and not (self.begin > 0 and self.end > 0):
            raise ValueError(
                f"an exponential phase must have ends above 0, got begin={self.begin}, "
                f"end={self.end}. Use a small floor, or '1-sqrt'."
            )

    def at(self, t: Array) -> Array:
        """Returns the value after the share t of the phase, in [0, 1]."""
        if self.shape == "exponential":
            return self.begin * (self.end / self.begin) ** t
        left = _LEFT[self.shape](t)
        return self.begin * left + self.end * (1 - left)


def _like(number: int, count: Array) -> Array:
    """Returns `number` in the dtype of `count`, clipped to that dtype."""
    if jnp.issubdtype(count.dtype, jnp.integer):
        number = min(number, jnp.iinfo(count.dtype).max)
    return jnp.asarray(number, count.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Consecutive phases, in steps or any other count. The last end holds for ever."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a schedule must have a phase, got none. Use Phase(steps=, ...).")

    @jax.transfer_guard("allow")
    def __call__(self, count: Any) -> Float[Array, ""]:
        """Returns the value at step `count`, counted from 0, as f32."""
        count = jnp.asarray(count)
        value = jnp.full(count.shape, self.phases[-1].end, jnp.float32)
        end = self.steps
        for phase in reversed(self.phases):
            begin = end - phase.steps
            # Counts are subtracted before they become float32, in which 2^24 + 1 is 2^24.
            share = (count - _like(begin, count)).astype(jnp.float32) / float(phase.steps)
            value = jnp.where(count < _like(end, count), phase.at(jnp.clip(share, 0, 1)), value)
            end = begin
        return value

    @property
    def steps(self) -> int:
        """Length of all phases."""
        return sum(p.steps for p in self.phases)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for `Schedule.from_json`."""
        return {"phases": [dataclasses.asdict(p) for p in self.phases]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Schedule":
        """Restores a schedule from `to_json`."""
        return cls(phases=tuple(Phase(**p) for p in data["phases"]))


@_elsewhere.wsd
def wsd(
    peak: float,
    *,
    warmup: int,
    total: int,
    cooldown: int,
    floor: float = 0.0,
    shape: Shape = "1-sqrt",
) -> Schedule:
    """Returns a warmup-stable-decay schedule (2404.06395): from 0 to `peak`, on it, down to
    `floor`.

    Args:
        peak: Largest value.
        warmup: Steps from 0 to `peak`.
        total: Steps in all.
        cooldown: Steps from `peak` to `floor`.
        floor: Last value.
        shape: Shape of the cooldown; see `Phase`.

    Raises:
        ValueError: Warmup and cooldown do not fit into `total`, or `total` is 0.

    Example:

        >>> rate = wsd(3e-4, warmup=100, total=10_000, cooldown=2_000)
        >>> float(rate(0)), rate.steps
        (0.0, 10000)
    """
    if warmup < 0 or cooldown < 0 or warmup + cooldown > total:
        raise ValueError(
            f"warmup and cooldown must be at least 0 and fit into total, got warmup={warmup}, "
            f"cooldown={cooldown}, total={total}. Use total={warmup + cooldown} or more."
        )
    phases: list[tuple[int, float, float, Shape]] = [
        (warmup, 0.0, peak, "linear"),
        (total - warmup - cooldown, peak, peak, "linear"),
        (cooldown, peak, floor, shape),
    ]
    return Schedule(
        phases=tuple(Phase(steps=n, begin=a, end=b, shape=s) for n, a, b, s in phases if n)
    )


def branch(
    schedule: Schedule, *, at: int, cooldown: int, floor: float = 0.0, shape: Shape = "1-sqrt"
) -> Schedule:
    """Returns `schedule` until step `at`, then a cooldown from its value there to `floor`.

    For a run resumed from the checkpoint of step `at`, whose state counts the steps. Steps before
    `at` keep their values.

    Args:
        schedule: The schedule of the long run.
        at: Step of the checkpoint.
        cooldown: Steps of the cooldown.
        floor: Last value.
        shape: Shape of the cooldown; see `Phase`.

    Raises:
        ValueError: `at` is below 0, or inside a phase of another shape than "linear".
    """
    if at < 0:
        raise ValueError(f"at must be a step, got at={at}. Use the step of the checkpoint.")
    kept, begin = [], 0
    for phase in schedule.phases:
        if at - begin < phase.steps:
            if at > begin:
                kept.append(_cut(phase, at - begin))
            value = kept[-1].end if at > begin else phase.begin
            break
        kept.append(phase)
        begin += phase.steps
    else:
        value = schedule.phases[-1].end
        if at > begin:
            kept.append(Phase(steps=at - begin, begin=value, end=value))
    return Schedule(phases=(*kept, Phase(steps=cooldown, begin=value, end=floor, shape=shape)))


def _cut(phase: Phase, steps: int) -> Phase:
    """Returns the first steps of a linear phase."""
    if phase.shape != "linear":
        raise ValueError(
            f"a branch must leave a schedule where it is straight, got at={steps} steps into a "
            f"phase of shape {phase.shape!r}. Use the step of a checkpoint before it."
        )
    end = phase.begin + (phase.end - phase.begin) * (steps / phase.steps)
    return dataclasses.replace(phase, steps=steps, end=end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTokens:
    """A schedule that counts tokens, for steps of `per_step` tokens."""

    schedule: Schedule
    per_step: int

    @jax.transfer_guard("allow")
    def __call__(self, count: Any) -> Float[Array, ""]:
        """Returns the value before step `count`, after `count * per_step` tokens, as f32."""
        # Tokens outgrow int32; float32 is right to 1 in 2^24 of them.
        return self.schedule(jnp.asarray(count).astype(jnp.float32) * self.per_step)


@_elsewhere.call
def by_tokens(schedule: Schedule, *, per_step: int) -> ByTokens:
    """Returns a schedule written in tokens for an optimizer that counts steps of `per_step` tokens.

    A run with another batch size then has the same rate after the same number of tokens.

    Args:
        schedule: Phases with lengths in tokens.
        per_step: Tokens per step.

    Raises:
        ValueError: `per_step` is below 1.

    Example:

        >>> from dovetail_optim import wsd
        >>> tokens = wsd(3e-4, warmup=10**8, total=10**10, cooldown=10**9)
        >>> rate = by_tokens(tokens, per_step=2**19)
    """
    if per_step < 1:
        raise ValueError(f"per_step must be at least 1 token, got per_step={per_step}. Use B * S.")
    return ByTokens(schedule=schedule, per_step=per_step)
