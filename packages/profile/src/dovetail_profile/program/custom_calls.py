# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of custom calls: stated by the kernel, or known for a library's call.

Pallas kernels state `cost_estimate` in the JSON of their backend configuration. Calls of
`jax.ffi.ffi_call` may have the attributes `flops` and `recomputed_flops`. XLA calls libraries for
products, convolutions and attention.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail_profile.program.convolution import multiply_adds
from dovetail_profile.program.module import Instruction
from dovetail_profile.program.run_cost import Cost
from dovetail_profile.program.shape import Shape

# Markers for the compiler, which do nothing.
_MARKERS = re.compile(
    "AllocateBuffer|AssumeGatherIndicesInBound|(MoveTo|PinTo)(Device|Host)|Sharding|"
    "SPMD(FullToShard|ShardToFull)Shape|annotate_device_placement"
)
_ESTIMATE = re.compile(r'"cost_estimate":\s*(\{[^}]*\})')
_ATTRIBUTE = re.compile(r"\b(flops|recomputed_flops|transcendentals|bytes_accessed) = (\d+) : ")
_UNKNOWN = Cost(None, None, None)


def target(x: Instruction) -> str:
    """Returns the name of the called function."""
    return x.attributes.text(28)


def cost_of(x: Instruction, operands: Sequence[Shape]) -> Cost:
    """Returns the cost of a custom call, from the shapes of its operands."""
    name, config = target(x), x.attributes.text(43)
    if _MARKERS.fullmatch(name):
        return Cost(0.0, 0.0, 0.0)
    moved = float(sum(shape.bytes for shape in operands) + x.shape.bytes)
    for prefix, rule in _LIBRARY.items():
        if name.startswith(prefix):
            flops = rule(x, operands, config)
            return _UNKNOWN if flops is None else Cost(float(flops), moved, None)
    estimate = _ESTIMATE.search(config)
    values = json.loads(estimate[1]) if estimate else dict(_ATTRIBUTE.findall(config))
    values = {key: float(value) for key, value in values.items()}
    if not values:
        return _UNKNOWN
    flops = values.get("flops")
    if flops is not None:
        flops += values.get("recomputed_flops", 0.0)
    return Cost(flops, values.get("bytes_accessed", moved), values.get("transcendentals"))


# The first element of a result is the value, the others are workspace.
def _product(x: Instruction, operands: Sequence[Shape], config: str) -> int | None:
    numbers = _find(config, "dot_dimension_numbers")
    contracting = [int(i) for i in numbers.get("lhs_contracting_dimensions", ())]
    inner = math.prod(operands[0].dims[i] for i in contracting)
    return 2 * x.shape.first.size * inner if contracting else None


def _onednn(x: Instruction, operands: Sequence[Shape], config: str) -> int:
    """Counts a product from sizes alone: of [b, m, k] and [b, k, n] to [b, m, n]."""
    left, right = operands[:2]
    size = x.shape.first.size
    square = left.size * right.size // max(size * math.prod(right.dims[:-2]), 1)
    return 2 * size * math.isqrt(square)


def _convolution(x: Instruction, operands: Sequence[Shape], config: str) -> int:
    """Counts the forward convolution. Its gradients have as many products."""
    first, second = operands[:2]
    if "BackwardInput" in target(x):
        return 2 * multiply_adds(x, x.shape.first, second, first)
    if "BackwardFilter" in target(x):
        return 2 * multiply_adds(x, first, x.shape.first, second)
    return 2 * multiply_adds(x, first, second, x.shape.first)


def _attention(x: Instruction, operands: Sequence[Shape], config: str) -> float | None:
    """Counts the products of attention, without scores hidden by a causal mask.

    The backward pass has twice the products of the forward pass, and the scores again.
    """
    dims = _find(config, "intermediate_tensor_shape").get("dimensions")
    if not dims or _find(config, "is_paged_attention") is True:  # pages are as many as needed
        return None
    batch, heads, queries, keys = map(int, dims)
    scores = queries * keys
    if "CAUSAL" in str(_find(config, "mask_type")):
        window = int(_find(config, "sliding_window_length") or 0) or queries
        scores = sum(max(min(q, keys) - max(q - window, 0), 0) for q in range(1, queries + 1))
    backward = "Backward" in target(x)
    width = operands[0].dims[-1] + (operands[0] if backward else operands[2]).dims[-1]
    return 2 * batch * heads * scores * width * (2.5 if backward else 1.0)


# By the start of the target.
_LIBRARY: Mapping[str, Callable[[Instruction, Sequence[Shape], str], float | None]] = {
    "__cublas$": _product,
    "__onednn$matmul": _onednn,
    "__cudnn$conv": _convolution,
    "__cudnn$fmha": _attention,
}


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
