# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sampling of one token per row of logits, with temperature and filters per row.

A filter keeps the tokens above a threshold. It therefore needs no sort of the vocabulary, only the
threshold. A bisection over the float32 numbers finds it: read as integers they have the same order.
It takes at most 32 sums over the row, each exact in its comparisons. A sort of 151,936 logits takes
about 15 times as long as all of them on a CPU.

The draw finds the position at which the running sum reaches a share of the kept weight, first among
sums of blocks, then within one block. It takes two random numbers per row. Gumbel noise takes one
per token, and a CPU needs longer to make them than for all else.

On a CPU rows are processed one after the other. Each is read up to 32 times and fits in a core's
cache, but a batch does not. There a row draws the same token in any batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Float, Int, Key

from dovetail_kernels import dispatch, mesh
from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays
from dovetail_kernels.varying import varying

_AXES = ("bv", "b", "b", "b", "b", "b")
_INSTEAD = "Use jax.sharding.reshard on the logits so that only rows are sharded."
_BLOCK = 512  # tokens: about the root of a vocabulary, so that both searches are short
_SIGN = 31
_MAGNITUDE = 0x7FFFFFFF

_PerRow = (
    float
    | int
    | Float[Array | np.ndarray, " B"]
    | Int[Array | np.ndarray, " B"]
    | Float[Array | np.ndarray, ""]
    | Int[Array | np.ndarray, ""]
)


@operation
def sample(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    keys: Key[Array, " B"],
    temperature: _PerRow = 1.0,
    top_k: _PerRow | None = None,
    top_p: _PerRow | None = None,
    min_p: _PerRow | None = None,
) -> Int[Array, " B"]:
    """Draws a token of each row from softmax(logits / temperature) over the kept tokens.

    The filters apply in the order and with the meaning of transformers: `top_k`, then `top_p` among
    the rest, then `min_p`. Each option is a number for all rows or an array [B].

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16.
        keys: One key per row [B], such as `jax.random.split(key, B)`. They must be threefry: other
            kinds draw differently in another batch.
        temperature: Divides the logits; finite, at least 0. 0 takes the largest logit, of equal
            ones the first.
        top_k: Keeps the k largest logits and all equal to the k-th. An integer; 0 keeps all.
        top_p: Keeps the fewest of the most likely tokens whose probabilities reach p, and all as
            likely as the last of them (transformers keeps those first in its sort). In (0, 1]; 1
            keeps all. If a sum of probabilities is within float32 rounding of p, either result is
            right.
        min_p: Keeps tokens at least `min_p` times as likely as the likeliest (2407.01082). In
            [0, 1]; 0 keeps all.

    Returns:
        Tokens i32[B]. -1 for a row with NaN, with +inf or with nothing above -inf, and inside
        `jax.jit` for a row with an option out of range. Sums in float32 and draws of 23 bits may
        change the probability by 1e-4 at most, in the least likely tokens.

    Raises:
        ValueError: Shapes do not fit, an option is out of range, keys are not threefry, or V is
            sharded by an Explicit mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax
        >>> from dovetail_kernels import sample
        >>> logits = jax.numpy.array([[0.0, 5.0, 1.0], [2.0, 0.0, 1.0]])
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> sample(logits, keys=keys, temperature=0).tolist()
        [1, 0]
        >>> sample(logits, keys=keys, temperature=0.8, top_k=1).tolist()
        [1, 0]
    """
    check_arrays("sample", logits=logits)
    rows = _options(logits, temperature, top_k, top_p, min_p)
    if not (isinstance(keys, Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)):
        came = f"keys.dtype={keys.dtype}" if isinstance(keys, Array) else f"keys={keys!r}"
        raise TypeError(
            f"keys must be typed keys, got {came}. Use jax.random.key and jax.random.split."
        )
    kind = str(jax.random.key_impl(keys))
    if "rbg" in kind:
        raise ValueError(
            f"keys must be threefry, got keys of {kind!r}: their draws for a row depend on its "
            "batch. Use jax.random.key(seed, impl='threefry2x32')."
        )
    if keys.shape != logits.shape[:1]:
        raise ValueError(
            f"keys must be [B] for logits [B, V], got keys.shape={keys.shape} and logits.shape="
            f"{logits.shape}. Use jax.random.split(key, {logits.shape[0]})."
        )
    arrays = (jnp.asarray(logits), keys, *rows)
    run = _by_rows(_sample, arrays[0])
    return mesh.per_shard("sample", run, arrays, _AXES, out="b", may="b", instead=_INSTEAD)


@operation
def warp_logits(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    temperature: _PerRow = 1.0,
    top_k: _PerRow | None = None,
    top_p: _PerRow | None = None,
    min_p: _PerRow | None = None,
) -> Float[Array, "B V"]:
    """Computes `(logits - maximum) / temperature`, with -inf for tokens that `sample` never draws.

    The softmax of the result is the distribution of `sample`, for comparison in speculative
    decoding. Each option is a number for all rows or an array [B].

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16.
        temperature: As in `sample`. At 0 the chosen token has 0 and every other -inf.
        top_k: As in `sample`.
        top_p: As in `sample`.
        min_p: As in `sample`.

    Returns:
        Logits f32[B, V]. A row for which `sample` returns -1 is NaN.

    Raises:
        ValueError: Shapes do not fit, an option is out of range, or V is sharded by an Explicit
            mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import warp_logits
        >>> warp_logits(jnp.array([[2.0, 1.0, 0.0]]), temperature=0.5, top_k=2).tolist()
        [[0.0, -2.0, -inf]]
    """
    check_arrays("warp_logits", logits=logits)
    rows = _options(logits, temperature, top_k, top_p, min_p)
    arrays = (jnp.asarray(logits), None, *rows)
    run = _by_rows(_warp, arrays[0])
    return mesh.per_shard("warp_logits", run, arrays, _AXES, out="bv", may="b", instead=_INSTEAD)


def _options(
    logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any
) -> tuple[Array | None, ...]:
    """Checks the arguments and returns each option as [B]. None stays None."""
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be [B, V] with V >= 1, got logits.shape={logits.shape}. Use "
            "logits.reshape(-1, V)."
        )
    if jnp.dtype(logits.dtype).name not in ("float32", "bfloat16", "float16"):
        raise TypeError(
            f"logits must be float32, bfloat16 or float16, got logits.dtype={logits.dtype}. Use "
            ".astype(jnp.float32)."
        )
    batch = logits.shape[0]
    return (
        _row("temperature", temperature, batch, "finite and >= 0", "0 for the largest logit"),
        None if top_k is None else _row("top_k", top_k, batch, "an integer >= 0", "0 for all"),
        None if top_p is None else _row("top_p", top_p, batch, "in (0, 1]", "1.0 for all"),
        None if min_p is None else _row("min_p", min_p, batch, "in [0, 1]", "0.0 for all"),
    )


def _valid(name: str, value: Any) -> Any:
    """Returns a mask of the values in range, for NumPy and JAX alike. NaN is never in range."""
    if name == "temperature":
        return (value >= 0) & (value < jnp.inf)
    if name == "top_k":
        return value >= 0
    return ((value > 0) if name == "top_p" else (value >= 0)) & (value <= 1)


def _row(name: str, value: Any, batch: int, must: str, use: str) -> Array:
    """Returns one option as [B], in float32, or int32 for top_k."""
    traced = isinstance(value, Tracer)
    given = value if traced or isinstance(value, jax.Array) else np.asarray(value)
    integer = jnp.issubdtype(given.dtype, jnp.integer)
    if name == "top_k" and not integer:
        raise TypeError(
            f"top_k must be integers, got top_k={value!r} of {given.dtype}. Use an int, {use}."
        )
    if given.shape not in ((), (batch,)):
        raise ValueError(
            f"{name} must be a number or [B] = [{batch}], got {name}.shape={given.shape}. Use one "
            "value for each row of logits."
        )
    if not traced and not bool(np.all(_valid(name, np.asarray(given)))):
        wrong = np.atleast_1d(np.asarray(given))
        first = wrong[int(np.argmin(_valid(name, wrong)))]
        raise ValueError(f"{name} must be {must}, got {name}={first}. Use {use}.")
    row = jnp.asarray(given, jnp.int32 if name == "top_k" else jnp.float32)
    return jnp.broadcast_to(row, (batch,))


def _by_rows(f: Callable[..., Array], logits: Array) -> Callable[..., Array]:
    """Returns f itself, or on a CPU a loop of f over single rows."""
    # Of several devices each may hold other rows; a loop over them would gather all.
    if dispatch.device(logits).platform != "cpu" or jax.device_count("cpu") > 1:
        return f

    return functools.partial(_row_by_row, f)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _row_by_row(f: Callable[..., Array], *arrays: Array | None) -> Array:
    def run_row(row: tuple[Array | None, ...]) -> Array:
        return f(*(None if a is None else a[None] for a in row))[0]

    return lax.map(run_row, arrays)


@jax.jit
def _sample(logits: Array, keys: Array, temperature: Array, *filters: Array | None) -> Array:
    warped = _warp(logits, None, temperature, *filters)
    token = _drawn(jnp.exp(warped), keys)
    return jnp.where(jnp.isnan(warped[:, 0]), -1, token)


def _drawn(weights: Array, keys: Array) -> Array:
    """Draws a column of weights [B, V] for each row, in proportion: i32[B]."""
    rows, columns = weights.shape
    blocks = -(-columns // _BLOCK)
    padded = jnp.pad(weights, ((0, 0), (0, blocks * _BLOCK - columns)))
    padded = padded.reshape(rows, blocks, _BLOCK)
    bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
    share = (bits >> 9).astype(jnp.float32) * 2.0**-23
    block = _reached(jnp.sum(padded, axis=2), share[:, 0])
    within = jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _reached(within, share[:, 1])


def _reached(weights: Array, share: Array) -> Array:
    """Returns the first column of positive weight with a running sum above the share, i32[B].

    Running sums are rounded, and not in the order of their columns. They may rise over zeros, and
    the last need not be the largest.
    """
    sums = jnp.cumsum(weights, axis=1)
    above = sums > share[:, None] * sums[:, -1:]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)[None]
    positive = weights > 0
    last = jnp.max(jnp.where(positive, columns, 0), axis=1)
    return jnp.min(jnp.where(positive & above, columns, last[:, None]), axis=1)


def _first_largest(z: Array) -> Array:
    """Returns `jnp.argmax(z, axis=1)` as i32[B].

    On a CPU `jnp.argmax` reduces pairs, one number at a time.
    """
    largest = z == jnp.max(z, axis=1, keepdims=True)
    columns = jnp.arange(z.shape[1], dtype=jnp.int32)[None]
    return jnp.min(jnp.where(largest, columns, z.shape[1] - 1), axis=1)


@jax.jit
def _warp(
    logits: Array,
    none: None,
    temperature: Array,
    top_k: Array | None,
    top_p: Array | None,
    min_p: Array | None,
) -> Array:
    z = logits.astype(jnp.float32)
    top = jnp.max(z, axis=1)
    valid = jnp.isfinite(top) & _valid("temperature", temperature)
    # Before the division, which could overflow: the largest is 0 at any temperature.
    scaled = (z - top[:, None]) / jnp.where(temperature == 0, 1, temperature)[:, None]
    floor = varying(jnp.full(top.shape, -jnp.inf, jnp.float32), top)
    if top_k is not None:
        valid &= _valid("top_k", top_k)
        asked = jnp.where(top_k == 0, jnp.inf, top_k.astype(jnp.float32))
        floor = _threshold(z, floor, asked, lambda above: jnp.sum(above, 1, dtype=jnp.int32))
    if top_p is not None:
        valid &= _valid("top_p", top_p)
        e = jnp.where(z > floor[:, None], jnp.exp(scaled), 0)
        asked = jnp.where(top_p == 1, jnp.inf, top_p * jnp.sum(e, axis=1))
        floor = _threshold(z, floor, asked, lambda above: jnp.sum(jnp.where(above, e, 0), 1))
    keep = z > floor[:, None]
    if min_p is not None:
        valid &= _valid("min_p", min_p)
        keep &= jnp.exp(scaled) >= min_p[:, None]
    first = jnp.arange(z.shape[1], dtype=jnp.int32)[None] == _first_largest(z)[:, None]
    keep = jnp.where(temperature[:, None] == 0, first, keep)
    return jnp.where(valid[:, None], jnp.where(keep, scaled, -jnp.inf), jnp.nan)


def _threshold(z: Array, floor: Array, asked: Array, weigh: Callable[[Array], Array]) -> Array:
    """Finds a threshold per row: the fewest tokens above it weigh at least `asked`.

    Equal tokens count together. `weigh` maps a mask [B, V] of the tokens above to their weight [B].
    If all tokens above `floor` weigh less than `asked`, as for inf, the threshold is `floor`. It is
    also `floor` for NaN: no weight compares to NaN, so the search would not end.
    """
    low = _integer(floor)
    # Above `low` is enough, or it is the floor; above `high` is too little.
    high = jnp.where(asked < jnp.inf, _integer(jnp.max(z, axis=1)), low)

    def is_open(bounds: tuple[Array, Array]) -> Array:
        return jnp.any(bounds[0] + 1 < bounds[1])

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum would overflow
        # Denormal numbers may be compared as 0. That does no harm, as what is kept at last is found
        # by the same comparison with the same number.
        weight = weigh(z > _number(middle)[:, None]).astype(jnp.float32)
        still = low + 1 < high
        # Where the weight is just what is asked both ends meet: no higher number would do.
        high = jnp.where(still & (weight <= asked), middle, high)
        return jnp.where(still & (weight >= asked), middle, low), high

    low, _ = lax.while_loop(is_open, halve, (low, high))
    return _number(low)


def _integer(number: Array) -> Array:
    """Maps float32 to int32 of the same order."""
    bits = lax.bitcast_convert_type(number, jnp.int32)
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


def _number(integer: Array) -> Array:
    """Inverts `_integer`."""
    bits = integer ^ ((integer >> _SIGN) & _MAGNITUDE)
    return lax.bitcast_convert_type(bits, jnp.float32)
