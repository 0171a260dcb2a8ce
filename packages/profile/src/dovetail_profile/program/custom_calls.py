# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of custom calls: stated by the kernel, or known for a library's call.

Pallas kernels state `cost_estimate` in the JSON of their backend configuration, and calls of
`jax.ffi.ffi_call` may have the attributes `flops` and `recomputed_flops`. The library calls are
those that XLA makes of products, convolutions and attention.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail_profile.program.convolution import multiply_adds
from dovetail_profile.program.module import Instruction
from dovetail_profile.program.shape import Shape

# Markers for the compiler, which do nothing.
_MARKERS = re.compile(
    "AllocateBuffer|AssumeGatherIndicesInBound|(MoveTo|PinTo)(Device|Host)|Sharding|"
    "SPMD(FullToShard|ShardToFull)Shape|annotate_device_placement"
)
_MATMULS = frozenset({"__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"})
_ESTIMATE = re.compile(r'"cost_estimate":\s*(\{[^}]*\})')
_ATTRIBUTE = re.compile(r"\b(flops|recomputed_flops|transcendentals|bytes_accessed) = (\d+) : ")


class Stated(NamedTuple):
    """The cost of a custom call. None is unknown."""

    flops: float | None
    bytes: float | None
    transcendentals: float | None


UNKNOWN = Stated(None, None, None)


def target(x: Instruction) -> str:
    """Returns the name of the function that a custom call calls."""
    return x.attributes.text(28)


def stated(x: Instruction, operands: Sequence[Shape]) -> Stated:
    """Returns the cost of a custom call.

    Args:
        x: The custom call.
        operands: Shapes of its operands.
    """
    name = target(x)
    if _MARKERS.fullmatch(name):
        return Stated(0, 0, 0)
    moved = sum(shape.bytes for shape in operands) + x.shape.bytes
    result = x.shape.elements[0] if x.shape.elements else x.shape  # the others are workspace
    if name.startswith("__onednn$matmul"):
        return Stated(_matmul(operands, result), moved, 0)
    if name.startswith("__cudnn$conv"):
        return Stated(_convolution(x, name, operands, result), moved, 0)
    config = x.attributes.text(43)
    if name in _MATMULS:
        numbers = _find(config, "dot_dimension_numbers")
        contracting = [int(i) for i in numbers.get("lhs_contracting_dimensions", ())]
        width = math.prod(operands[0].dims[i] for i in contracting)
        return Stated(2 * result.size * width if contracting else None, moved, 0)
    if name.startswith("__cudnn$fmha"):
        return Stated(_attention(config, "Backward" in name, operands), moved, None)
    if estimate := _ESTIMATE.search(config):
        values = json.loads(estimate[1])
    else:
        values = {key: int(value) for key, value in _ATTRIBUTE.findall(config)}
    if not values:
        return UNKNOWN
    flops = values.get("flops")
    if flops is not None:
        flops += values.get("recomputed_flops", 0)
    return Stated(flops, values.get("bytes_accessed", moved), values.get("transcendentals"))


def _matmul(operands: Sequence[Shape], result: Shape) -> float:
    """Counts a product from sizes alone: of [b, m, k] and [b, k, n] to [b, m, n]."""
    left, right = operands[:2]
    batch = math.prod(right.dims[:-2])
    inner = math.isqrt(left.size * right.size // max(result.size * batch, 1))
    return 2 * result.size * inner


def _convolution(x: Instruction, name: str, operands: Sequence[Shape], result: Shape) -> float:
    """Counts the convolution whose gradient the call may be: both have the same products."""
    first, second = operands[:2]
    if "BackwardInput" in name:
        shapes = result, second, first
    elif "BackwardFilter" in name:
        shapes = first, result, second
    else:
        shapes = first, second, result
    return 2 * multiply_adds(x, *shapes)


def _attention(config: str, backward: bool, operands: Sequence[Shape]) -> float | None:
    """Counts the products of attention without the scores that the mask skips as a block.

    The backward pass has twice the products of the forward pass, and the scores again.
    """
    dims = _find(config, "intermediate_tensor_shape").get("dimensions")
    if not dims:
        return None
    batch, heads, queries, keys = map(int, dims)
    scores = queries * keys
    if "CAUSAL" in str(_find(config, "mask_type")):
        window = int(_find(config, "sliding_window_length") or 0) or queries
        scores = sum(max(min(q, keys) - max(q - window, 0), 0) for q in range(1, queries + 1))
    key_width = operands[0].dims[-1]
    value_width = key_width if backward else operands[2].dims[-1]
    flops = 2 * batch * heads * scores * (key_width + value_width)
    return flops * 2.5 if backward else flops


def _find(config: str, key: str) -> Any:
    """Returns the value of a key at any depth of a JSON object, or an empty object."""
    try:
        pending = [json.loads(config)]
    except ValueError:
        return {}
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if key in value:
                return value[key]
            pending += value.values()
    return {}
