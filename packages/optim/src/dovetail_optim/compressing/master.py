# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""bfloat16 parameters with an exact float32 master at two extra bytes instead of four.

The upper half of a float32's bits, rounded, is a bfloat16. The signed difference of the bits fits
an int16. So parameter and remainder together are the float32, exactly:

    bits(master) = bits(parameter) 2¹⁶ + remainder

Rounding half away from zero is an addition in the bits, for either sign, and its remainder lies in
[-2¹⁵, 2¹⁵). With ties to even it would not. FlashOptim has the idea with an 8-bit remainder and
loses the rest (2602.23349).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, BFloat16, Float32, Int16

from dovetail_optim.compressing.rounding import check_dtypes, like, needs_params, step_to
from dovetail_optim.route import with_extra_args


class SplitMasterState(NamedTuple):
    """State of `split_master`.

    Attributes:
        remainder: int16 of the shape of a bfloat16 parameter; None for other parameters.
        inner: State of the wrapped transformation.
    """

    remainder: Any
    inner: Any


def split(
    x: Float32[Array, "*shape"],
) -> tuple[BFloat16[Array, "*shape"], Int16[Array, "*shape"]]:
    """Splits `x` into the nearest bfloat16, ties away from zero, and an int16 for `join_leaf`.

    `join_leaf` restores every float32 bit for bit, zeros of both signs and infinities included,
    except 2¹⁶ NaN of payload 0x7F8000 and above: they become the NaN below. A NaN of payload below
    0x8000, which no arithmetic makes, splits into inf and a remainder.
    """
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    # Rounding these up would carry into the sign: a NaN would show as zero.
    raw = jnp.where(raw & 0x7FFF8000 == 0x7FFF8000, raw & jnp.uint32(0xFFFF7FFF), raw)
    upper = (raw + 0x8000) >> 16
    remainder = (raw - (upper << 16)).astype(jnp.int16)
    return jax.lax.bitcast_convert_type(upper.astype(jnp.uint16), jnp.bfloat16), remainder


def join_leaf(
    p: BFloat16[Array, "*shape"], remainder: Int16[Array, "*shape"]
) -> Float32[Array, "*shape"]:
    """Restores the float32 of `split`."""
    upper = jax.lax.bitcast_convert_type(p, jnp.uint16).astype(jnp.uint32) << 16
    raw = upper + remainder.astype(jnp.int32).astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(raw, jnp.float32)


def join(params: Any, state: SplitMasterState) -> Any:
    """Returns the float32 master of `params`. Leaves without a remainder stay as they are."""
    leaves, tree = jax.tree.flatten(params)
    remainders = tree.flatten_up_to(state.remainder)
    whole = [p if r is None else join_leaf(p, r) for p, r in zip(leaves, remainders, strict=True)]
    return jax.tree.unflatten(tree, whole)


def split_master(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Lets bfloat16 parameters move like float32 ones: `tx` sees and moves their exact master.

    Leaves of float32 and float64 pass unchanged; gradients of bfloat16 leaves reach `tx` in
    float32. Updates of bfloat16 parameters are float32, p' - p, and `optax.apply_updates` lands on
    p' exactly while |p'| >= 2⁻¹⁶ |p|. Below (a step that undoes all of a parameter but some of
    float32's last 8 bits) it lands there except for rare ties; then the master is the value it
    lands on, off by at most 2⁻²⁴ |p|, the last bit of p in float32. Denormals count as zero.

    Apply the updates unchanged and once. A later transformation that changes them separates
    parameters from their remainders. The master starts as the parameters. To start from float32,
    `split` each leaf and call `state._replace(remainder=...)`. `join(params, state)` returns the
    master at any time.

    Raises:
        TypeError: At `init`: a parameter has another dtype.
        ValueError: `update` is called without parameters.

    Example:

        >>> import jax.numpy as jnp, optax
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> tx = split_master(optax.adamw(1e-3))
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> params = optax.apply_updates(params, updates)
    """
    inner = with_extra_args(tx)

    def init(params: Any) -> SplitMasterState:
        with jax.transfer_guard("allow"):
            check_dtypes("split_master", params)
            remainder = jax.tree.map(
                lambda p: jnp.zeros_like(p, jnp.int16) if p.dtype == jnp.bfloat16 else None, params
            )
            state = SplitMasterState(remainder, None)
            return state._replace(inner=inner.init(join(params, state)))

    def update(
        updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, SplitMasterState]:
        needs_params("split_master", params)
        master = join(params, state)
        u, after = inner.update(like(updates, master), state.inner, master, **extra)
        leaves, tree = jax.tree.flatten(params)
        moved = [
            _moved(p, x, u)
            for p, x, u in zip(
                leaves, tree.flatten_up_to(master), tree.flatten_up_to(u), strict=True
            )
        ]
        state_after = SplitMasterState(jax.tree.unflatten(tree, [r for _, r in moved]), after)
        return jax.tree.unflatten(tree, [u for u, _ in moved]), state_after

    return optax.GradientTransformationExtraArgs(init, update)


def _moved(p: Array, master: Array, u: Array) -> tuple[Array, Array | None]:
    """Returns the update of one leaf and its new remainder."""
    if p.dtype != jnp.bfloat16:
        return u, None
    # Where the step misses `to`, the sum is an odd multiple, below 2⁸, of half of the master's last
    # bit: `to` is the sum, the remainder 0, and so the master is what the step lands on.
    to, remainder = split((master + u).astype(master.dtype))
    return step_to(p, to), remainder
