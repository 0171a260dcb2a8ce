# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of the operations with a single implementation, for `explain`.

XLA fuses the elementwise ones. Their bytes are those of arguments and results, and their temporary
arrays are the few that a fusion cannot hold, as XLA for a CPU leaves them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.dispatch import Work, device
from dovetail_kernels.sampling.thresholds import AT_ONCE, BISECTION

# Steps of one activation; exp, erf and tanh count as one.
_ACTIVATION_FLOPS = {"relu": 1, "sigmoid": 4, "silu": 5, "gelu": 5, "gelu_tanh": 9}


def _rope_work(traffic: int, x: Any, positions: Any, **options: Any) -> Work:
    width = options.get("dims") or x.shape[-1]
    if options.get("frequencies") is not None:
        width = 2 * options["frequencies"].shape[0]
    rotated = math.prod(x.shape[:-1]) * width
    angles = math.prod(positions.shape) * width // 2
    # Halves of a head are joined in memory; neighbours are not.
    halves = not options.get("interleaved", False)
    peak = rotated * _wide(x) + (_nbytes(x) if _wide(x) > x.dtype.itemsize else 0)
    return Work(flops=3 * (rotated + angles), bytes=traffic, peak_bytes=peak if halves else 0)


def _rms_norm_work(traffic: int, x: Any, scale: Any, **options: Any) -> Work:
    steps = 4 if options.get("residual") is None else 5
    return Work(flops=steps * math.prod(x.shape), bytes=traffic, peak_bytes=_widened(x))


def _layer_norm_work(traffic: int, x: Any, scale: Any, bias: Any, **options: Any) -> Work:
    steps = 8 if options.get("residual") is None else 9
    return Work(flops=steps * math.prod(x.shape), bytes=traffic, peak_bytes=_widened(x))


def _glu_work(traffic: int, gate: Any, up: Any, **options: Any) -> Work:
    steps = _ACTIVATION_FLOPS[options.get("activation", "silu")] + 1
    steps += 3 * (options.get("limit") is not None) + bool(options.get("offset", 0))
    return Work(flops=steps * math.prod(gate.shape), bytes=traffic, peak_bytes=0)


def _permute_work(traffic: int, x: Any, experts: Any, *, count: int) -> Work:
    """Counts comparisons: each choice is compared with each expert, then two sorts."""
    choices = math.prod(experts.shape)
    comparisons = 2 * choices * (count + max(choices - 1, 1).bit_length())
    return Work(flops=comparisons, bytes=traffic + 8 * 4 * choices, peak_bytes=6 * 4 * choices)


def _unpermute_work(traffic: int, rows: Any, plan: Any, weights: Any) -> Work:
    return Work(flops=2 * math.prod(rows.shape), bytes=traffic, peak_bytes=0)


def _route_tokens_work(traffic: int, logits: Any, *, k: int, **options: Any) -> Work:
    """Counts the scores, if the choice needs them, and the choice."""
    scores, tokens = math.prod(logits.shape), math.prod(logits.shape[:-1])
    groups = options.get("groups")
    formed = options.get("bias") is not None or (groups is not None and groups.score == "top2")
    flops = scores * (2 + 4 * formed + (groups is not None)) + 6 * tokens * k
    copies = 1 if groups is None else 2
    return Work(flops=flops, bytes=traffic, peak_bytes=copies * scores * _wide(logits))


def _paged_write_work(traffic: int, pages: Any, k: Any, v: Any, *, slots: Any) -> Work:
    """Counts new rows alone, as for donated pages, if XLA can scatter."""
    whole = device(pages).platform == "cpu" and pages.dtype.name == "bfloat16"
    if whole and jax.__version_info__ < (0, 12):
        tokens = 4 * pages.shape[0] * pages.shape[2]
        return Work(flops=0, bytes=traffic, peak_bytes=tokens)
    rows = 2 * (_nbytes(k) + _nbytes(v)) + _nbytes(slots)
    return Work(flops=0, bytes=rows, peak_bytes=8 * slots.shape[0])


def _sample_work(traffic: int, logits: Any, **options: Any) -> Work:
    """Counts the steps of `warp_logits`, and a running sum."""
    warped = _warp_logits_work(0, logits, **options)
    size = math.prod(logits.shape)
    rows = 1 if _by_rows(logits) else logits.shape[0]
    return Work(
        flops=warped.flops + 3 * size,
        bytes=warped.bytes + traffic,
        peak_bytes=warped.peak_bytes + 4 * rows * logits.shape[1],
    )


def _warp_logits_work(traffic: int, logits: Any, **options: Any) -> Work:
    """Counts every pass of the searches for thresholds.

    On a CPU a row stays in the cache between passes; elsewhere each pass reads all rows.
    """
    size = math.prod(logits.shape)
    top_k, top_p = (options.get(name) is not None for name in ("top_k", "top_p"))
    # A pass on a GPU sums the weights above all numbers that its halvings can ask for.
    at_once = AT_ONCE if device(logits).platform == "gpu" else 1
    passes = BISECTION // at_once
    sums = passes * (2**at_once - 1)
    steps = 6 + sums * (2 * top_k + 3 * top_p) + 2 * (options.get("min_p") is not None)
    by_rows = _by_rows(logits)
    rows = 1 if by_rows else logits.shape[0]
    return Work(
        flops=steps * size,
        bytes=traffic + (0 if by_rows else 4 * size * passes * (top_k + top_p)),
        peak_bytes=(1 + top_k + top_p) * 4 * rows * logits.shape[1] + _widened(logits),
    )


# By name of the operation. The first argument is the bytes of all arguments and results.
COSTS: dict[str, Callable[..., Work]] = {
    "rope": _rope_work,
    "rms_norm": _rms_norm_work,
    "layer_norm": _layer_norm_work,
    "glu": _glu_work,
    "permute": _permute_work,
    "unpermute": _unpermute_work,
    "route_tokens": _route_tokens_work,
    "paged_write": _paged_write_work,
    "sample": _sample_work,
    "warp_logits": _warp_logits_work,
}


def nbytes(tree: Any) -> int:
    """Returns the bytes of all arrays in `tree`."""
    return sum(_nbytes(leaf) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def _nbytes(array: Any) -> int:
    # Keys have a dtype of their own: two words of 32 bits for threefry.
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return math.prod(array.shape) * (8 if is_key else np.dtype(array.dtype).itemsize)


def _wide(array: Any) -> int:
    """Returns the bytes of an element in the dtype of the computation."""
    return max(array.dtype.itemsize, 4)


def _widened(array: Any) -> int:
    """Returns the bytes of a copy in float32, for a CPU's reductions over 16-bit numbers."""
    return math.prod(array.shape) * _wide(array) if _wide(array) > array.dtype.itemsize else 0


def _by_rows(logits: Any) -> bool:
    """Tests whether rows are sampled one after the other, as `sample` decides."""
    return device(logits).platform == "cpu" and jax.device_count("cpu") == 1
