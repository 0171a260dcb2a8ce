# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Drawing a token for each row of logits, each row with its own temperature and filters.

A filter keeps the tokens above a threshold, so it needs no order of the vocabulary, only the
threshold: it is searched by halving the float32 numbers themselves, which as integers have the same
order. That is at most 32 sums over the row, each exact in what it compares; a sort of 151,936
logits takes about 15 times as long as all of them on a CPU.

The draw finds where a share of the kept weight is reached: first among sums of blocks, then within
one block. That takes two random numbers for a row, where Gumbel noise takes one for each token, and
a CPU longer to make them than for all else.

On a CPU rows go one after the other: each is read up to 32 times, and fits in a core's cache, which
a batch does not. There a row draws the same in any batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Float, Int, Key

from dovetail_kernels import dispatch, mesh

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


def sample(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    keys: Key[Array, " B"],
    temperature: _PerRow = 1.0,
    top_k: _PerRow | None = None,
    top_p: _PerRow | None = None,
    min_p: _PerRow | None = None,
) -> Int[Array, " B"]:
    """i32[B]: a token of each row, drawn from softmax(logits / temperature) over what is kept.

    The filters apply in the order and with the meaning that they have in transformers: top_k, then
    top_p among what that left, then min_p. Options are a number for all rows or one for each.

    Args:
        logits: float32, bfloat16 or float16.
        keys: one key for each row, as of `jax.random.split(key, B)`; threefry, as other kinds draw
            differently in another batch. Sums of float32 and draws of 23 bits may take or add
            1e-4 of the probability at most, in the least likely tokens.
        temperature: 0 takes the largest logit, of equal ones the first.
        top_k: keeps the k largest logits, and all that equal the k-th. 0: all.
        top_p: keeps the fewest of the most likely tokens whose probabilities reach p, and all that
            are as likely as the last of them (transformers keeps those that its sort puts first).
            1: all. Where a sum of probabilities is within float32 rounding of p, either is right.
        min_p: keeps what is at least min_p times as likely as the likeliest (2407.01082). 0: all.

    A row with NaN, with +inf or with nothing above -inf gives -1, as does, inside `jax.jit`, one
    with an option out of range.

    Raises:
        ValueError: shapes, an option out of range, keys of another kind, V sharded by an Explicit
            mesh.
        TypeError: dtypes.

    Example:

        import jax
        from dovetail_kernels import sample

        logits = jax.random.normal(jax.random.key(0), (2, 50257))
        keys = jax.random.split(jax.random.key(1), 2)
        print(sample(logits, keys=keys, temperature=0.8, top_k=50, top_p=0.9))
    """
    rows = _options(logits, temperature, top_k, top_p, min_p)
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"keys must be typed keys, got keys.dtype={keys.dtype}. Use jax.random.key and "
            "jax.random.split."
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


def warp_logits(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    temperature: _PerRow = 1.0,
    top_k: _PerRow | None = None,
    top_p: _PerRow | None = None,
    min_p: _PerRow | None = None,
) -> Float[Array, "B V"]:
    """f32[B,V]: (logits - their maximum) / temperature, and -inf for what `sample` never draws.

    Its softmax is the distribution that `sample` draws from, as speculative decoding compares. At
    temperature 0 the taken token has 0 and every other -inf. A row that `sample` gives -1 is NaN.
    Options and errors are those of `sample`.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import warp_logits

        print(jax.nn.softmax(warp_logits(jnp.asarray([[2.0, 1.0, 0.0]]), top_k=2)))
    """
    rows = _options(logits, temperature, top_k, top_p, min_p)
    arrays = (jnp.asarray(logits), None, *rows)
    run = _by_rows(_warp, arrays[0])
    return mesh.per_shard("warp_logits", run, arrays, _AXES, out="bv", may="b", instead=_INSTEAD)


def _options(
    logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any
) -> tuple[Array | None, ...]:
    """Checks, and each option as [B]; None stays."""
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
    """Which values of an option are in range; for NumPy and JAX alike. NaN never is."""
    if name == "temperature":
        return (value >= 0) & (value < jnp.inf)
    if name == "top_k":
        return value >= 0
    return ((value > 0) if name == "top_p" else (value >= 0)) & (value <= 1)


def _row(name: str, value: Any, batch: int, must: str, use: str) -> Array:
    """One option as [B], float32, or int32 for top_k."""
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
    """f itself, or on a CPU a loop of f over single rows."""
    # Of several devices each may hold other rows; a loop over them would gather all.
    if dispatch.device(logits).platform != "cpu" or jax.device_count("cpu") > 1:
        return f

    def one(row: tuple[Array | None, ...]) -> Array:
        return f(*(None if a is None else a[None] for a in row))[0]

    return lambda *arrays: lax.map(one, arrays)


@jax.jit
def _sample(logits: Array, keys: Array, temperature: Array, *filters: Array | None) -> Array:
    warped = _warp(logits, None, temperature, *filters)
    token = _drawn(jnp.exp(warped), keys)
    return jnp.where(jnp.isnan(warped[:, 0]), -1, token)


def _drawn(weights: Array, keys: Array) -> Array:
    """i32[B]: a column of weights [B, V], in proportion."""
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
    """i32[B]: the first column of positive weight at which the running sum is above the share.

    Running sums are rounded, and not in order of their columns: where nothing is added they may
    rise all the same, and their last need not be the largest.
    """
    sums = jnp.cumsum(weights, axis=1)
    above = sums > share[:, None] * sums[:, -1:]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)[None]
    positive = weights > 0
    last = jnp.max(jnp.where(positive, columns, 0), axis=1)
    return jnp.min(jnp.where(positive & above, columns, last[:, None]), axis=1)


def _first_largest(z: Array) -> Array:
    """i32[B], as `jnp.argmax(z, axis=1)`, which on a CPU reduces pairs, one number at a time."""
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
    floor = jnp.full(top.shape, -jnp.inf, jnp.float32)
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
    """For each row a number: the fewest that are above it and together weigh `asked` or more.

    Equal ones count together. weigh: [B, V] of which tokens are above to their weight [B]. If all
    above `floor` weigh less than `asked`, as for inf, it is `floor`; so it is for NaN, to which no
    weight compares, so that the search would not end.
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
    """float32 as int32 of the same order."""
    bits = lax.bitcast_convert_type(number, jnp.int32)
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


def _number(integer: Array) -> Array:
    """The inverse of `_integer`."""
    bits = integer ^ ((integer >> _SIGN) & _MAGNITUDE)
    return lax.bitcast_convert_type(bits, jnp.float32)
