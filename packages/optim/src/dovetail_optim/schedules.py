# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Learning rates over a run, as values that can be compared, printed, written down and read back.

A schedule is a row of phases, each with its length, both its ends and a shape. It is called as any
of Optax is. Since a cooldown is a phase that can be put in at any step, one constant run gives a
model of every length: go back to a checkpoint, `branch`, and train only the decay (2405.18392).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

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
    """`steps` steps from `begin` to `end`, which the next phase begins with.

    shape: of the share t of the phase, `begin + (end - begin)(1 - left)` where left is 1 - t for
    "linear", (1 + cos πt) / 2 for "cosine", 1 - √t for "1-sqrt" (2405.18392), 1 - t² for "square";
    for "exponential" begin (end / begin)^t.
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
        """The value after the share t of the phase, in [0, 1]."""
        if self.shape == "exponential":
            return self.begin * (self.end / self.begin) ** t
        left = _LEFT[self.shape](t)
        return self.begin * left + self.end * (1 - left)


def _like(number: int, count: Array) -> Array:
    """A number of steps in the dtype of a count, of which no integer is beyond its dtype."""
    if jnp.issubdtype(count.dtype, jnp.integer):
        number = min(number, jnp.iinfo(count.dtype).max)
    return jnp.asarray(number, count.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Pieces one after the other, in steps or any other count; the last end holds for ever."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a schedule must have a phase, got none. Use Phase(steps=, ...).")

    def __call__(self, count: Any) -> Float[Array, ""]:
        """f32: the value at step `count`, the first of which is 0."""
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
        """The length of all phases."""
        return sum(p.steps for p in self.phases)

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts alone; `Schedule.from_json` takes them back."""
        return {"phases": [dataclasses.asdict(p) for p in self.phases]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Schedule":
        """The schedule of which `to_json` gave this."""
        return cls(phases=tuple(Phase(**p) for p in data["phases"]))


def wsd(
    peak: float,
    *,
    warmup: int,
    total: int,
    cooldown: int,
    floor: float = 0.0,
    shape: Shape = "1-sqrt",
) -> Schedule:
    """Warmup, stable, decay (2404.06395): from 0 to `peak`, on it, and down to `floor`.

    warmup, total, cooldown: steps; the stable part is what is left of `total`.

    Raises ValueError where they do not fit, or nothing would be trained.

        rate = wsd(3e-4, warmup=100, total=10_000, cooldown=2_000)
        tx = optax.adamw(rate)
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
    """`schedule` until step `at`, then from its value there to `floor` in `cooldown` steps.

    For a run that goes on from the checkpoint of step `at`, whose state counts the steps. Steps
    before `at` keep their values.

    Raises ValueError for `at` below 0 or in the midst of a phase that is not straight.
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
    """The first steps of a straight phase."""
    if phase.shape != "linear":
        raise ValueError(
            f"a branch must leave a schedule where it is straight, got at={steps} steps into a "
            f"phase of shape {phase.shape!r}. Use the step of a checkpoint before it."
        )
    end = phase.begin + (phase.end - phase.begin) * (steps / phase.steps)
    return dataclasses.replace(phase, steps=steps, end=end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTokens:
    """A schedule whose count is tokens, of which every step takes `per_step`."""

    schedule: Schedule
    per_step: int

    def __call__(self, count: Any) -> Float[Array, ""]:
        """f32: the value before the step `count`, after `count * per_step` tokens."""
        # Tokens outgrow int32; float32 is right to 1 in 2^24 of them.
        return self.schedule(jnp.asarray(count).astype(jnp.float32) * self.per_step)


def by_tokens(schedule: Schedule, *, per_step: int) -> ByTokens:
    """`schedule`, written in tokens, for an optimizer that counts steps of `per_step` tokens.

    A run with another batch size then has the same rate after the same tokens.

    Raises ValueError for `per_step` below 1.

        rate = by_tokens(wsd(3e-4, warmup=10**8, total=10**10, cooldown=10**9), per_step=2**19)
    """
    if per_step < 1:
        raise ValueError(f"per_step must be at least 1 token, got per_step={per_step}. Use B * S.")
    return ByTokens(schedule=schedule, per_step=per_step)
