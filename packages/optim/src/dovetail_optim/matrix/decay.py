# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weight decay for parameters selected by name, in three modes.

A step is p ← p + u, with the learning rate already in the update u = -η d. Three rules have been
called weight decay:

- "coupled": u - η λ p, the decay of AdamW in torch and Optax. A schedule of η also schedules the
  decay, and another peak of η means another decay.
- "independent": u - λ p (arXiv 1711.05101, Algorithm 2, with λ times a schedule without the peak
  learning rate; arXiv 2309.14322, section 3.2, finds the loss less sensitive to η with it). It is
  of the size of the coupled λ times the peak learning rate.
- "cautious": u - η λ p in the coordinates where d and p agree in sign or one is 0 (arXiv
  2510.12402, section 3), so the decay never works against the step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, Int32

from dovetail_optim._patterns import Patterns, each_of, names_of, select

Mode = Literal["coupled", "independent", "cautious"]
Rate = jax.typing.ArrayLike | Callable[[Any], Any]  # a number, or an optax schedule


class DecayState(NamedTuple):
    """Number of steps taken, for schedules."""

    step: Int32[Array, ""]


def decay(
    rate: Rate,
    *,
    mode: Mode = "independent",
    where: str | Sequence[str] = "**.kernel",
    learning_rate: Rate | None = None,
) -> optax.GradientTransformation:
    """Subtracts λ p or η λ p from the updates of selected parameters.

    Put it last in a chain, after the learning rate. Updates keep their dtype. `update` needs
    params.

    Args:
        rate: λ, a number of at least 0 or a schedule. With "independent",
            `lambda t: 1e-4 * schedule(t) / peak` decays along with the learning rate.
        mode: "coupled" subtracts η λ p, as AdamW in torch and Optax. "independent" subtracts λ p
            (1711.05101, algorithm 2). "cautious" subtracts η λ p where update and parameter agree
            in direction (2510.12402, section 3).
        where: Name patterns, as for `route`. Other parameters do not decay.
        learning_rate: η, the number or schedule that scaled the updates. Required by "coupled" and
            "cautious", refused by "independent".

    Raises:
        ValueError: An argument is invalid. At `init` and during tracing of `update`: a pattern
            matches no parameter.

    Example:

        >>> import optax
        >>> adam = optax.adam(1e-3)
        >>> tx = optax.chain(adam, decay(1e-4))
        >>> tx = optax.chain(adam, decay(0.1, mode="cautious", learning_rate=1e-3, where="**"))
    """
    check_mode(mode)
    check_rate("rate", rate)
    if (learning_rate is None) != (mode == "independent"):
        raise ValueError(
            "learning_rate must be given for mode='coupled' and mode='cautious', which multiply by "
            f"it, and for no other; got {mode=}, {learning_rate=}; write the rate or schedule that "
            "scaled the updates, or mode='independent' without it"
        )
    if learning_rate is not None:
        check_rate("learning_rate", learning_rate)
    each_of(where)  # raises for what is no pattern

    def init(params: Any) -> DecayState:
        with jax.transfer_guard("allow"):
            _named(where, params)
            return DecayState(step=jnp.zeros([], jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, DecayState]:
        if params is None:
            raise ValueError(
                "decay needs the parameters; got params=None; call update(updates, state, params)"
            )
        selected = _named(where, params)
        amount = strength(mode, rate, 0.0 if learning_rate is None else learning_rate, state.step)
        leaves, structure = jax.tree.flatten(updates)
        decayed = [
            decay_update(u, p, amount=amount, mode=mode) if named else u
            for u, p, named in zip(leaves, jax.tree.leaves(params), selected, strict=True)
        ]
        after = DecayState(step=jnp.asarray(optax.safe_increment(state.step)))
        return jax.tree.unflatten(structure, decayed), after

    return optax.GradientTransformation(init, update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decaying:
    """A transformation that moves parameters by its rate, and decays them in the same step.

    Args:
        learning_rate: η.
        weight_decay: λ.
        decay: Mode of `decay`.
    """

    learning_rate: Rate
    weight_decay: Rate
    decay: Mode

    @property
    def decays(self) -> bool:
        return not (isinstance(self.weight_decay, float | int) and self.weight_decay == 0)

    def weights(self, name: str, updates: Any, params: Any) -> list[Array]:
        """Returns the leaves of `params`, or of `updates` if no parameter is needed.

        Args:
            name: Name of the transformation, for the error.
            updates: Updates.
            params: Parameters, or None.

        Raises:
            ValueError: There is a weight decay, and `params` is None.
        """
        if params is None and self.decays:
            raise ValueError(
                f"{name} needs the parameters for weight decay; got params=None, "
                f"weight_decay={self.weight_decay}; call update(updates, state, params)"
            )
        return jax.tree.leaves(updates if params is None else params)

    def amount(self, step: Int32[Array, ""]) -> Any:
        """Returns the factor of the parameters at this step; see `strength`."""
        return strength(self.decay, self.weight_decay, self.learning_rate, step)


def strength(mode: Mode, rate: Rate, learning_rate: Rate, step: Int32[Array, ""]) -> Any:
    """Returns the factor of p at this step: λ if "independent", else η λ.

    Args:
        mode: Mode of `decay`.
        rate: λ.
        learning_rate: η.
        step: Number of steps taken.
    """
    now = at(rate, step)
    return now if mode == "independent" else at(learning_rate, step) * now


def decay_update(
    update: Float[Array, "*shape"], param: Float[Array, "*shape"], *, amount: Any, mode: Mode
) -> Float[Array, "*shape"]:
    """Returns u - amount p, if "cautious" only where u p ≤ 0. Computes in float32 or wider.

    Args:
        update: u.
        param: p.
        amount: Result of `strength`.
        mode: Mode of `decay`.
    """
    dtype = wide(update.dtype)
    u, p = update.astype(dtype), param.astype(dtype)
    shrink = jnp.asarray(amount, dtype) * p
    if mode == "cautious":
        # Of the signs, as the product of two small numbers may be 0.
        shrink = jnp.where(jnp.sign(u) * jnp.sign(p) <= 0, shrink, jnp.zeros_like(shrink))
    return (u - shrink).astype(update.dtype)


def at(rate: Rate, step: Int32[Array, ""]) -> Any:
    """Returns the number, or the schedule's value at this step."""
    return rate(step) if callable(rate) else rate


def wide(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
    """Returns the dtype, or float32 if it is narrower."""
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32


def check_decaying(learning_rate: Any, weight_decay: Any, decay: str) -> None:
    """Raises ValueError for an argument that `Decaying` cannot have.

    Args:
        learning_rate: η.
        weight_decay: λ.
        decay: Mode of `decay`.
    """
    check_rate("learning_rate", learning_rate)
    check_rate("weight_decay", weight_decay)
    check_mode(decay)


def check_rate(name: str, rate: Any) -> None:
    """Raises ValueError unless `rate` is a schedule or a finite number of at least 0."""
    if callable(rate) or isinstance(rate, Tracer):
        return
    if not (jnp.ndim(rate) == 0 and math.isfinite(rate) and rate >= 0):
        raise ValueError(
            f"{name} must be a number of at least 0, or a schedule of the step; got "
            f"{name}={rate}; write {name}=0.1, or lambda step: 0.1 * 0.99**step"
        )


def check_mode(mode: str) -> None:
    """Raises ValueError for an unknown mode."""
    if mode not in get_args(Mode):
        raise ValueError(
            f"the mode of weight decay must be one of {list(get_args(Mode))}; got {mode!r}; write "
            "'coupled' for that of AdamW"
        )


def _named(where: Patterns, params: Any) -> list[bool]:
    """Tests each parameter against the patterns. Raises ValueError for an unmatched pattern."""
    names = names_of(params)
    rule = "every pattern of where= must match a parameter"
    selected = set(select(where, names, rule=rule) if names else ())
    return [name in selected for name in names]
