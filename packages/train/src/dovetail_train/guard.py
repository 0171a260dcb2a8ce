# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which updates are not made: those of a step whose loss or gradient cannot be right.

A step is bad if its loss or the norm of its gradient is not finite, or if its loss lies far above
the steps before. Statistics are of accepted steps alone: one NaN would make every later comparison
false, and one spike would let the next one pass.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard:
    """Skips the update of a step whose loss or gradient is not finite, or whose loss is a spike.

    A spike is a loss above mean + sigma·deviation of the accepted losses, a mean that forgets with
    weight 1/window (the first `window` steps, of which it is the plain mean, are only judged by
    being finite). Of a skipped step nothing remains: parameters, optimizer, averages and the
    module's own state keep every bit; the step number, hence the key, and the data go on.

    sigma: None judges by being finite alone. max_skips: how many steps in a row may be skipped;
    one more ends the run (`BadStep`), as does a first step that is not finite.
    """

    sigma: float | None = 6.0
    window: int = 128
    max_skips: int = 10

    def __post_init__(self) -> None:
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(
                f"sigma must be positive, got sigma={self.sigma}; "
                f"write sigma=6.0, or sigma=None to let spikes pass"
            )
        if self.window < 2 or self.max_skips < 0:
            raise ValueError(
                f"window must be at least 2 and max_skips at least 0, got window={self.window}, "
                f"max_skips={self.max_skips}; write for example Guard(window=128, max_skips=10)"
            )


class BadStep(RuntimeError):
    """A run ended at a step that cannot be right; what is needed to find out why.

    step: its number. scalars: those of the step. batch: what it was computed from, on the devices.
    grad_norms: of each parameter's gradient by dotted name, the largest or not finite first.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        scalars: Mapping[str, float],
        batch: Mapping[str, Any],
        grad_norms: Mapping[str, float],
    ) -> None:
        super().__init__(message)
        self.step, self.scalars = step, dict(scalars)
        self.batch, self.grad_norms = dict(batch), dict(grad_norms)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """What a guard remembers.

    mean, variance: f32[], of accepted losses. accepted, skipped: i32[], how many steps. in_a_row:
    i32[], how many were skipped since the last that was accepted.
    """

    mean: Any
    variance: Any
    accepted: Any
    skipped: Any
    in_a_row: Any


def fresh() -> Judged:
    """Before the first step."""
    zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return Judged(mean=zero, variance=zero, accepted=none, skipped=none, in_a_row=none)


def limit(guard: Guard, seen: Judged) -> Float[Array, ""]:
    """The loss above which a step is skipped; infinite until `window` steps were accepted."""
    if guard.sigma is None:
        return jnp.full((), jnp.inf, jnp.float32)
    # Losses that are all alike differ by their rounding, which is no spike.
    rounding = jnp.finfo(jnp.float32).eps * jnp.abs(seen.mean)
    bound = seen.mean + guard.sigma * jnp.maximum(jnp.sqrt(seen.variance), rounding)
    return jnp.where(seen.accepted >= guard.window, bound, jnp.inf)


def judge(
    guard: Guard, seen: Judged, *, loss: Float[Array, ""], grad_norm: Float[Array, ""]
) -> tuple[Bool[Array, ""], Judged]:
    """(whether the step is good, what is remembered after it).

    The mean and variance are West's (1979) incremental ones with weight 1/min(n, window).
    """
    good = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (loss <= limit(guard, seen))
    weight = 1.0 / jnp.minimum(seen.accepted + 1, guard.window).astype(jnp.float32)
    ahead = loss - seen.mean
    accepted = Judged(
        mean=seen.mean + weight * ahead,
        variance=(1.0 - weight) * (seen.variance + weight * ahead * ahead),
        accepted=seen.accepted + 1,
        skipped=seen.skipped,
        in_a_row=jnp.zeros_like(seen.in_a_row),
    )
    refused = dataclasses.replace(seen, skipped=seen.skipped + 1, in_a_row=seen.in_a_row + 1)
    return good, jax.tree.map(lambda a, b: jnp.where(good, a, b), accepted, refused)
