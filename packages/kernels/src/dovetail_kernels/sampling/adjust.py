# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of logits before sampling that an engine makes for a request: mask, bias, penalties.

All are one pass over the logits, which XLA fuses: no intermediate array has the size of the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Int32, UInt32

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays, known
from dovetail_kernels.sampling.options import PerRow, check_logits, is_valid, per_row
from dovetail_kernels.sampling.rows import over_rows

_WORD = 32  # bits of a word of a packed mask
_PENALTIES: tuple[str, ...] = ("repetition_penalty", "frequency_penalty", "presence_penalty")


@operation
def adjust_logits(
    logits: Float[Array | np.ndarray, "B V"],
    *,
    allowed: (
        Bool[Array | np.ndarray, "B V"]
        | Int32[Array | np.ndarray, "B W"]
        | UInt32[Array | np.ndarray, "B W"]
        | None
    ) = None,
    bias: (
        Float[Array | np.ndarray, "B V"]
        | tuple[Int[Array | np.ndarray, "B K"], Float[Array | np.ndarray, "B K"]]
        | None
    ) = None,
    prompt_mask: Bool[Array | np.ndarray, "B V"] | Int[Array | np.ndarray, "B V"] | None = None,
    output_counts: Int[Array | np.ndarray, "B V"] | None = None,
    repetition_penalty: PerRow | None = None,
    frequency_penalty: PerRow | None = None,
    presence_penalty: PerRow | None = None,
) -> Float[Array, "B V"]:
    """Applies an allow-mask, a bias and penalties to logits, in the order of vLLM.

    The order is `allowed`, `bias`, `repetition_penalty`, `frequency_penalty`, `presence_penalty`:
    the repetition penalty sees the biased logit. `sample` then applies the temperature. Each
    penalty is a number for all rows or an array [B].

    Args:
        logits: Logits [B, V] in float32, bfloat16 or float16.
        allowed: Tokens that may be drawn: a bool mask [B, V], or its bits i32 or u32 [B, ceil(V /
            32)] as llguidance and xgrammar fill them. Bit i % 32 of word i // 32 is token i. Others
            get -inf, also for NaN. Further bits are not read.
        bias: Added to the logits: [B, V], or token ids i32[B, K] with their values [B, K], as
            OpenAI's `logit_bias`. Id -1 stands for none. Values of equal ids are added.
        prompt_mask: Nonzero for tokens of the prompt, bool or integers [B, V].
        output_counts: How often each token was generated, at least 0, i32[B, V].
        repetition_penalty: Divides positive logits of tokens in prompt or output, and multiplies
            negative ones (CTRL, 1909.05858; transformers' rule for signs). Above 0; 1 is none.
        frequency_penalty: Times `output_counts`, subtracted (OpenAI). Finite; 0 is none.
        presence_penalty: Subtracted for each token of the output (OpenAI). Finite; 0 is none.

    Returns:
        Logits f32[B, V]. A row without an allowed token is -inf. Inside `jax.jit` a row with a
        penalty or an id out of range is NaN. `sample` returns -1 for both.

    Raises:
        ValueError: Shapes do not fit, a penalty or an id is out of range, a penalty has no tokens
            to apply to, or V is sharded by an Explicit mesh.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import adjust_logits
        >>> logits, counts = jnp.array([[2.0, -1.0, 3.0]]), jnp.array([[2, 0, 0]])
        >>> adjust_logits(logits, output_counts=counts, frequency_penalty=0.5).tolist()
        [[1.0, -1.0, 3.0]]
        >>> adjust_logits(logits, allowed=jnp.array([[0b011]])).tolist()
        [[2.0, -1.0, -inf]]
    """
    check_logits("adjust_logits", logits)
    check_arrays(
        "adjust_logits", allowed=allowed, prompt_mask=prompt_mask, output_counts=output_counts
    )
    ids, values = bias if isinstance(bias, tuple) else (None, bias)
    check_arrays("adjust_logits", bias=values)
    _check_allowed(allowed, logits.shape)
    _check_bias(ids, values, logits.shape)
    penalties = dict(
        zip(_PENALTIES, (repetition_penalty, frequency_penalty, presence_penalty), strict=True)
    )
    _check_tokens(prompt_mask, output_counts, penalties, logits.shape)
    rows = [
        None if x is None else per_row(name, x, logits.shape[0]) for name, x in penalties.items()
    ]
    given = (logits, allowed, ids, values, prompt_mask, output_counts)
    arrays = [None if x is None else jnp.asarray(x) for x in given]
    mask = "bw" if allowed is None or allowed.dtype != bool else "bv"
    added = "bk" if ids is not None else "bv"
    axes = ("bv", mask, "bk", added, "bv", "bv", "b", "b", "b")
    return over_rows("adjust_logits", _adjust, (*arrays, *rows), axes, out="bv")


@jax.jit
def _adjust(
    logits: Array,
    allowed: Array | None,
    ids: Array | None,
    values: Array | None,
    prompt_mask: Array | None,
    output_counts: Array | None,
    *penalties: Array | None,
) -> Array:
    z, size = logits.astype(jnp.float32), logits.shape[1]
    valid = jnp.ones(logits.shape[:1], bool)
    if allowed is not None:
        z = jnp.where(allowed if allowed.dtype == bool else _unpacked(allowed, size), z, -jnp.inf)
    if values is not None and ids is not None:
        valid &= jnp.all((ids >= -1) & (ids < size), axis=1)
        # Negative ids would count from the end.
        places = jnp.where(ids < 0, size, ids)
        add = jax.vmap(lambda row, i, x: row.at[i].add(x, mode="drop"))
        z = add(z, places, values.astype(jnp.float32))
    elif values is not None:
        z += values.astype(jnp.float32)
    for name, penalty in zip(_PENALTIES, penalties, strict=True):
        if penalty is None:
            continue
        valid &= is_valid(name, penalty)
        p = penalty[:, None]
        if name == "repetition_penalty":
            z = jnp.where(_seen(prompt_mask, output_counts), jnp.where(z > 0, z / p, z * p), z)
            continue
        assert output_counts is not None, name
        if name == "frequency_penalty":
            z -= p * output_counts.astype(jnp.float32)
        else:
            z = jnp.where(output_counts > 0, z - p, z)
    return jnp.where(valid[:, None], z, jnp.nan)


def _unpacked(words: Array, size: int) -> Array:
    """Returns the bits of words [B, W] as bool [B, size]."""
    bit = jnp.arange(_WORD, dtype=words.dtype)
    bits = (words[:, :, None] >> bit[None, None]) & 1
    return bits.reshape(words.shape[0], -1)[:, :size] != 0


def _seen(prompt_mask: Array | None, output_counts: Array | None) -> Array:
    """Returns the tokens in prompt or output, bool [B, V]. One of the two is given."""
    masks = [x.astype(bool) for x in (prompt_mask, output_counts) if x is not None]
    return masks[0] if len(masks) == 1 else masks[0] | masks[1]


def _check_allowed(allowed: Any, shape: tuple[Any, ...]) -> None:
    if allowed is None:
        return
    batch, size = shape
    words = -(-size // _WORD)
    if allowed.dtype == bool and allowed.shape == shape:
        return
    if jnp.dtype(allowed.dtype).name in ("int32", "uint32") and allowed.shape == (batch, words):
        return
    raise ValueError(
        f"allowed must be bool [B, V] = {list(shape)} or bits int32 or uint32 [B, ceil(V / 32)] = "
        f"[{batch}, {words}], got {allowed.dtype} {list(allowed.shape)}. Use "
        f"allowed[:, :{words}] if the mask is for a larger vocabulary."
    )


def _check_bias(ids: Any, values: Any, shape: tuple[Any, ...]) -> None:
    if values is None:
        return
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"bias must be floating, got {values.dtype}. Use .astype(jnp.float32).")
    if ids is None:
        if values.shape != shape:
            raise ValueError(
                f"bias must be [B, V] = {list(shape)} or (ids [B, K], values [B, K]), got "
                f"bias.shape={values.shape}. Use jnp.broadcast_to(bias, logits.shape)."
            )
        return
    check_arrays("adjust_logits", ids=ids)
    if jnp.dtype(ids.dtype).name not in ("int32", "int64"):
        raise TypeError(
            f"ids of bias must be int32 or int64, got {ids.dtype}. Use .astype(jnp.int32)."
        )
    if len(ids.shape) != 2 or ids.shape[0] != shape[0] or ids.shape != values.shape:
        raise ValueError(
            f"bias must be (ids [B, K], values [B, K]) with B = {shape[0]}, got ids "
            f"{list(ids.shape)} and values {list(values.shape)}. Fill shorter rows with id -1."
        )
    numbers = known(ids)
    if numbers is not None and np.any(wrong := (numbers < -1) | (numbers >= shape[1])):
        raise ValueError(
            f"ids of bias must be in [0, V) = [0, {shape[1]}) or -1, got "
            f"{numbers[wrong][0]}. Use -1 for none."
        )


def _check_tokens(
    prompt_mask: Any, output_counts: Any, penalties: Mapping[str, Any], shape: tuple[Any, ...]
) -> None:
    for name, array in (("prompt_mask", prompt_mask), ("output_counts", output_counts)):
        if array is None:
            continue
        boolean = name == "prompt_mask" and array.dtype == bool
        if not (boolean or jnp.issubdtype(array.dtype, jnp.integer)):
            kinds = "bool or integers" if name == "prompt_mask" else "integers"
            raise TypeError(f"{name} must be {kinds}, got {array.dtype}. Use .astype(jnp.int32).")
        if array.shape != shape:
            raise ValueError(
                f"{name} must be [B, V] = {list(shape)}, got {name}.shape={array.shape}. Use one "
                "row for each row of logits."
            )
    repetition, *counted = (penalties[name] is not None for name in _PENALTIES)
    if any(counted) and output_counts is None:
        name = _PENALTIES[1 + counted.index(True)]
        raise ValueError(
            f"{name} needs the tokens of the output, got output_counts=None. Use output_counts="
            "jnp.zeros(logits.shape, jnp.int32) at the first token."
        )
    if repetition and prompt_mask is None and output_counts is None:
        raise ValueError(
            "repetition_penalty needs the tokens of prompt or output, got prompt_mask=None and "
            "output_counts=None. Use prompt_mask=jnp.zeros(logits.shape, bool) for none."
        )
    used = {"prompt_mask": repetition, "output_counts": repetition or any(counted)}
    for name, array in (("prompt_mask", prompt_mask), ("output_counts", output_counts)):
        if array is not None and not used[name]:
            raise ValueError(
                f"{name} has an effect by a penalty alone, got {name} and no penalty that reads "
                f"it. Leave out {name}, or pass a penalty of 0 (of 1 for repetition_penalty)."
            )
