# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a function, counted from its jaxpr.

XLA's own cost analysis counts the body of a loop once and cannot see recomputation. Here a scan
counts times its length, and the second forward pass of `jax.checkpoint` is separate. So both
conventions can be printed: model FLOPs (MFU, PaLM appendix B) and hardware FLOPs.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax

# What JAX names the part of a backward pass that computes the forward pass again.
_AGAIN = "rematted_computation"
# Calls whose work the jaxpr does not show. An `ffi_call` may state it: integer attributes `flops`
# and `recomputed_flops`.
_OPAQUE = (
    "ffi_call",
    "io_callback",
    "pallas_call",
    "pure_callback",
    "triton_kernel_call",
)
# What jax.nn calls for implementation="cudnn"; a kernel of which JAX shows shapes and masks.
_CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"
_CUDNN_BACKWARD = "dot_product_attention_bwd_wrapper"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs in products ([m,k] times [k,n] counts 2·m·k·n).

    Attributes:
        model: Without recomputation.
        recomputed: FLOPs that `jax.checkpoint` computes again.
        opaque: Number of calls of each primitive with hidden work (kernels, loops of unknown
            length). If there are any, the counts are too low.
    """

    model: int
    recomputed: int
    opaque: Mapping[str, int]


def count_flops(fn: Callable[..., Any], *args: Any) -> Flops:
    """Counts the FLOPs of `fn(*args)`. Reads only shapes and computes nothing.

    Products are counted as written: masked attention counts all scores. cuDNN's attention skips
    the scores above the diagonal, and counts the others. A call of `jax.ffi.ffi_call` counts its
    integer attributes `flops` and `recomputed_flops`. `jax.lax.cond` counts its most expensive
    branch. Elementwise operations are not counted.
    """
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    counts: Counter[str] = Counter()
    opaque: Counter[str] = Counter()
    _walk(jaxpr, 1, False, counts, opaque)
    return Flops(model=counts["model"], recomputed=counts["again"], opaque=dict(opaque))


def _walk(jaxpr: Any, times: int, again: bool, counts: Counter[str], opaque: Counter[str]) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        repeated = again or _AGAIN in str(eqn.source_info.name_stack)
        if name in _PRODUCTS:
            counts["again" if repeated else "model"] += times * _PRODUCTS[name](eqn)
        elif stated := _stated(eqn):
            counts["again" if repeated else "model"] += times * stated[0]
            counts["again"] += times * stated[1]
        elif name in _OPAQUE:
            opaque[name] += times
        elif name == "cond":
            _walk_dearest(eqn.params["branches"], times, repeated, counts, opaque)
        else:
            if name == "while":
                opaque[name] += times
            inside = times * (eqn.params["length"] if name == "scan" else 1)
            if name == "shard_map":
                sizes = eqn.params["mesh"].shape
                inside *= math.prod(sizes[axis] for axis in eqn.params["newly_manual_axes"])
            for inner in _inner(eqn):
                _walk(inner, inside, repeated, counts, opaque)


def _walk_dearest(
    branches: Any, times: int, again: bool, counts: Counter[str], opaque: Counter[str]
) -> None:
    tried = []
    for branch in branches:
        tried.append((Counter(), Counter()))
        _walk(branch.jaxpr, times, again, *tried[-1])
    dearest = max(tried, key=lambda pair: pair[0].total())
    counts.update(dearest[0])
    opaque.update(dearest[1])


def _inner(eqn: Any) -> list[Any]:
    """Returns the jaxprs of an equation; of a custom derivative, the call alone."""
    if "call_jaxpr" in eqn.params:
        inner = [eqn.params["call_jaxpr"]]
    else:
        values = [v if isinstance(v, (tuple, list)) else (v,) for v in eqn.params.values()]
        inner = [x for value in values for x in value]
    jaxprs = [getattr(x, "jaxpr", x) for x in inner]  # a ClosedJaxpr wraps one
    return [x for x in jaxprs if hasattr(x, "eqns")]


def _stated(eqn: Any) -> tuple[int, int] | None:
    """Returns (FLOPs, FLOPs computed again) of a fused call that shows them, or None."""
    name = eqn.primitive.name
    if name == "ffi_call":
        attributes = dict(eqn.params["attributes"])
        if "flops" in attributes:
            return int(attributes["flops"]), int(attributes.get("recomputed_flops", 0))
    if name == _CUDNN_FORWARD:
        return _scores(eqn), 0
    if name == _CUDNN_BACKWARD:  # dq, dk, dv and the weights' gradient; the logits again
        return 2 * _scores(eqn), _scores(eqn) // 2
    return None


def _scores(eqn: Any) -> int:
    """Returns FLOPs of both products of attention over the visible scores of cuDNN's call."""
    q, k, v = (x.aval.shape for x in eqn.invars[:3])  # [b, t, n, h], as jax.nn calls it
    queries, keys = q[1], k[1]
    visible = queries * keys
    if "CAUSAL" in str(eqn.params["mask_type"]).upper():
        window = eqn.params["sliding_window_length"] or queries
        ends = range(1, queries + 1)  # query i sees keys below i + 1
        visible = sum(max(min(end, keys) - max(end - window, 0), 0) for end in ends)
    return 2 * q[0] * q[2] * visible * (q[3] + v[3])


def _dot(eqn: Any) -> int:
    (contract, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[i] for i in contract)


def _ragged_dot(eqn: Any) -> int:
    """Counts each row once, with the matrix of its own group."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contract), (_, batch) = numbers.dot_dimension_numbers
    right = eqn.invars[1].aval.shape
    rest = set(range(len(right))) - {*contract, *batch, *numbers.rhs_group_dimensions}
    return 2 * math.prod(eqn.invars[0].aval.shape) * math.prod(right[i] for i in rest)


def _convolution(eqn: Any) -> int:
    kernel = eqn.invars[1].aval.shape
    features = eqn.params["dimension_numbers"].rhs_spec[0]
    taps = math.prod(size for i, size in enumerate(kernel) if i != features)
    return 2 * math.prod(eqn.outvars[0].aval.shape) * taps


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged_dot,
}
