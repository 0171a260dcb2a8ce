# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokamax's published attention tests, forward and backward, over our function.

Needs the extra `tokamax` (Python >= 3.12) and what its tests import: chex, flax. Its masks are
ranges: of keys for each query, or of queries for each key. A bound that is the same for all is a
segment that the others are not in; one that varies is a causal mask of positions made for it, since
`k < k_end[q]` says `position_q >= position_k` of positions `k_end - 1` and `k`. Several that vary,
or one for each head, are a dense mask.
"""

import fnmatch
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels.attention.api import attention

pytest.importorskip("tokamax", reason="needs the extra tokamax, on Python >= 3.12")
# Its tests are installed with it, but are no part of its API; they warn of what JAX deprecates.
test_base = pytest.importorskip("tokamax._src.ops.attention.test_base")

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]

# Tests of what our function does not offer, by what it is.
_REFUSED = {
    "test_dropout": "dropout_rate, dropout_mask",
    "test_logits_dtype[0-9]": "logits_dtype",
    "test_normalize_output": "an output that is not normalized",
    "test_quantized_int[48][0-9]": "quantized arrays",
}
# Those that Tokamax 0.0.17 skips itself.
_SKIPPED = ("test_bench_*", "test_vmap[0-9]", "test_invalid_shapes[0-9]")


class _Dense(Exception):
    """A mask of ranges that positions and segments cannot state."""


class _Refused(NotImplementedError):
    """Our function does not offer what a test of Tokamax's asks."""


def _attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    is_causal: bool = False,
    q_indices: Any = None,
    k_indices: Any = None,
    logits_scale: float | None = None,
    logits_soft_cap: float | None = None,
    normalize_output: bool = True,
    return_residuals: bool = False,
    **others: Any,
) -> Any:
    """As Tokamax's operation: any number of batch axes."""
    if others:
        raise _Refused(", ".join(others))
    if not all(isinstance(x, jax.Array) for x in (q, k, v)):
        raise _Refused("quantized arrays")
    if not normalize_output and not return_residuals:
        raise _Refused("an output that is not normalized")
    batch = q.shape[:-3]
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    options = _options(mask, is_causal, (q_indices, k_indices), shape=(q.shape, k.shape))
    if bias is not None:
        options["bias"] = _four_axes(bias)
    given = {"scale": logits_scale, "soft_cap": logits_soft_cap, "stats": return_residuals}
    found = attention(q, k, v, **options, **given)
    if not return_residuals:
        return found.reshape(*batch, *found.shape[1:])
    # Normalized by exp(lse): as good a pair of (maximum, sum) as any to combine by.
    out, stats = found
    lse = stats.lse.swapaxes(1, 2)
    return out.reshape(*batch, *out.shape[1:]), (lse, jnp.ones_like(lse))


def _four_axes(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *(1,) * (3 - x.ndim), *x.shape[-3:])


def _options(mask: Any, causal: bool, indices: Any, *, shape: Any) -> dict[str, Any]:
    if isinstance(mask, jax.Array):
        return _ranges(None, causal, indices, shape=shape) | {"mask": _four_axes(mask)}
    try:
        return _ranges(mask, causal, indices, shape=shape)
    except _Dense:
        dense = mask.as_array(shape[0][1], shape[1][1])
        return _ranges(None, causal, indices, shape=shape) | {"mask": _four_axes(dense)}


def _ranges(mask: Any, causal: bool, indices: Any, *, shape: Any) -> dict[str, Any]:
    (rows, queries, *_), (_, keys, *_) = shape
    q_index, k_index = (
        jnp.arange(length) if index is None else index.reshape(-1)
        for index, length in zip(indices, (queries, keys), strict=True)
    )
    window = None
    positions = (q_index, k_index) if causal else None
    segments = [jnp.ones((rows, queries), jnp.int32), jnp.ones((rows, keys), jnp.int32)]
    if mask is not None:
        window, positions = _causal(mask, positions, (q_index, k_index))
        for name, bound in _bounds(mask):
            if bound.shape[-1] == 1:
                _hide(segments, name, bound, (q_index, k_index))
            elif positions is not None:
                raise _Dense
            else:
                positions = _varying(name, bound, (q_index, k_index))
    options: dict[str, Any] = {"causal": positions is not None, "window": window}
    if positions is not None:
        options["positions"] = tuple(
            jnp.broadcast_to(x.astype(jnp.int32), (rows, x.shape[-1])) for x in positions
        )
    return options | {"segment_ids": tuple(segments)}


def _causal(mask: Any, positions: Any, indices: Any) -> tuple[int | None, Any]:
    causal = mask if hasattr(mask, "offset") else mask.causal_mask
    if getattr(mask, "bool_mask", None) is not None:
        raise _Dense
    if causal is None:
        return None, positions
    return causal.window_size, (indices[0] + causal.offset, indices[1])


def _bounds(mask: Any) -> list[tuple[str, jax.Array]]:
    names = ("q_start", "q_end", "k_start", "k_end")
    found = [(name, getattr(mask, name, None)) for name in names]
    return [(name, bound) for name, bound in found if bound is not None]


def _hide(segments: list[jax.Array], name: str, bound: jax.Array, indices: Any) -> None:
    """Whom the same bound excludes for all goes to a segment of its own side."""
    if bound.ndim > 1 and bound.shape[-2] > 1:
        raise _Dense
    side = 0 if name.startswith("q") else 1
    index, bound = indices[side][None, :], bound.reshape(-1, 1)
    seen = index >= bound if name.endswith("start") else index < bound
    segments[side] = jnp.where(seen, segments[side], -1 - side)


def _varying(name: str, bound: jax.Array, indices: Any) -> tuple[jax.Array, jax.Array]:
    if bound.ndim > 1 and bound.shape[-2] > 1:
        raise _Dense
    bound = bound.reshape(-1, bound.shape[-1])
    q_index, k_index = (index[None, :] for index in indices)
    return {
        "q_start": (q_index, bound),
        "q_end": (-q_index, 1 - bound),
        "k_start": (-bound, -k_index),
        "k_end": (bound - 1, k_index),
    }[name]


class _Tests(test_base.AttentionTestBase):
    __test__ = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, attention_fn=_attention, supports_precisions=False)

    def _test_small_sequences(self, seq_q: int, seq_kv: int) -> None:
        # Logits reach 36 here. Weights formed again from lse err by eps * 36 = 4e-6 of themselves,
        # and 256 queries add up to gradients of 15: more than Tokamax's 2e-5.
        with test_base.override_test_args(atol_grads=6e-5):
            super()._test_small_sequences(seq_q, seq_kv)


_NAMES = sorted(name for name in dir(_Tests) if name.startswith("test_"))


def _reason(name: str) -> str | None:
    return next((why for which, why in _REFUSED.items() if fnmatch.fnmatch(name, which)), None)


@pytest.mark.parametrize("name", _NAMES)
def test_tokamax(name: str) -> None:
    result = unittest.TestResult()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        _Tests(name).run(result)
    if any(fnmatch.fnmatch(name, which) for which in _SKIPPED):
        assert result.skipped
        return
    assert not result.failures, result.failures[0][1]
    reason, raised = _reason(name), [trace for _, trace in result.errors]
    if reason is None:
        assert not raised, raised[0]
    else:
        assert f"_Refused: {reason}\n" in raised[0]


def test_counts() -> None:
    """Of Tokamax 0.0.17: another number means that another version's tests should be looked at."""
    skipped = [n for n in _NAMES if any(fnmatch.fnmatch(n, which) for which in _SKIPPED)]
    refused = [n for n in _NAMES if _reason(n) is not None]
    passed = set(_NAMES) - set(skipped) - set(refused)
    assert (len(passed), len(refused), len(skipped)) == (66, 9, 12)
