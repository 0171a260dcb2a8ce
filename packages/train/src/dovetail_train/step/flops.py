# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a function, counted from its jaxpr.

XLA's own cost analysis counts the body of a loop once and cannot see recomputation. Here a loop
counts times its length, and the second forward pass of `jax.checkpoint` is separate. So both
conventions can be printed: model FLOPs (MFU, PaLM appendix B) and hardware FLOPs.

A fused operation states what its jaxpr hides, in names that survive every transformation of JAX:

- `jax.named_scope("trips=12.5")` directly around a loop: the mean number of full rounds, where
  values decide it, or where some rounds are padding.
- `jax.named_scope("rematted_computation")`, as JAX names the second forward pass of
  `jax.checkpoint`: products that a backward pass of its own computes again.
- The `cost_estimate` of a Pallas kernel; attributes of an `ffi_call`, or, where its target takes
  none, `jax.named_scope("flops=70,again=7")` directly around it.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import jax
import numpy as np

_Counts = defaultdict[str, Fraction]

_AGAIN = "rematted_computation"
# At the end of a name stack, such as "transpose(jvp(attention/trips=12.5))".
_TRIPS = re.compile(r"trips=([0-9.e+-]+)\)*$")
_FOREIGN = re.compile(r"flops=([0-9]+),again=([0-9]+)\)*$")
# Calls whose work the jaxpr does not show, unless they state it.
_OPAQUE = (
    "core_map",
    "ffi_call",
    "io_callback",
    "mpmd_map",
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
            length). If there are any, the counts are too low. A while loop whose condition has
            more than a counter is one of them: the bound of the counter is not its length.
    """

    model: int
    recomputed: int
    opaque: Mapping[str, int]


def hidden_work(opaque: Mapping[str, int]) -> str:
    """Returns the calls that could not be counted, with the line that states the work of each."""
    loops = [name for name in opaque if name == "while"]
    names = ", ".join(f"{name} x {count}" for name, count in opaque.items())
    scopes = ['"trips=12.5" with its mean rounds around the loop'] if loops else []
    if len(loops) < len(opaque):
        scopes.append('"flops=70,again=0" with its FLOPs around the call')
    return f"{names}; state it by jax.named_scope: {', '.join(scopes)}"


def count_flops(fn: Callable[..., Any], *args: Any) -> Flops:
    """Counts the FLOPs of `fn(*args)`. Reads only shapes and computes nothing.

    Products are counted as written: masked attention counts all scores. The attention of cuDNN and
    of `dovetail_kernels` skips the scores above the diagonal or outside the window, and counts the
    others; of packed rows, as if each were one document. Its backward pass has twice the products
    of the forward pass, and a quarter again as `recomputed` (the logits).

    A scan counts times its length, and a while loop with constant bounds times its rounds. Any
    other while loop with products counts once and is in `opaque`, unless it runs directly in
    `jax.named_scope("trips=12.5")`, with the mean number of its rounds. A Pallas kernel counts the
    FLOPs of its `cost_estimate`, and `jax.ffi.ffi_call` its integer attributes `flops` and
    `recomputed_flops`. A kernel without them, such as one of Tokamax, counts those of
    `jax.named_scope("flops=70,again=7")` directly around its call, which may be jitted; in a
    gradient, each call of the backward pass counts as much. `jax.lax.cond` counts its most
    expensive branch. Elementwise operations are not counted.

    Args:
        fn: The function.
        args: Its arguments: arrays or `jax.ShapeDtypeStruct`.

    Returns:
        The FLOPs of all devices together.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> from dovetail_train import count_flops
        >>> x = jnp.ones((4, 4))
        >>> count_flops(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y @ x, x), x).model
        384
    """
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    counts, opaque = _Counts(Fraction), _Counts(Fraction)
    _walk(jaxpr, Fraction(1), False, counts, opaque)
    return Flops(
        model=round(counts["model"]),
        recomputed=round(counts["again"]),
        opaque={name: math.ceil(count) for name, count in opaque.items() if count},
    )


def _walk(jaxpr: Any, times: Fraction, again: bool, counts: _Counts, opaque: _Counts) -> None:
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
            _walk_dearest(eqn, times, repeated, counts, opaque)
        elif name in ("scan", "while"):
            trips = _trips(eqn)
            rounds = _Counts(Fraction)
            for inner in _inner(eqn):
                _walk(inner, times * (1 if trips is None else trips), repeated, rounds, opaque)
            _add(counts, rounds)
            if trips is None and rounds:
                opaque[name] += times
        else:
            _walk_call(eqn, times, repeated, counts, opaque)


def _walk_call(eqn: Any, times: Fraction, again: bool, counts: _Counts, opaque: _Counts) -> None:
    """Counts the contents of a call, or, if some are hidden, the FLOPs that its name states."""
    inside = times
    if eqn.primitive.name == "shard_map":
        sizes = eqn.params["mesh"].shape
        inside *= math.prod(sizes[axis] for axis in eqn.params["newly_manual_axes"])
    shown, hidden = _Counts(Fraction), _Counts(Fraction)
    for inner in _inner(eqn):
        _walk(inner, inside, again, shown, hidden)
    if hidden and (named := _named(eqn)):
        counts["again" if again else "model"] += times * named[0]
        counts["again"] += times * named[1]
        return
    _add(counts, shown)
    _add(opaque, hidden)


def _walk_dearest(eqn: Any, times: Fraction, again: bool, counts: _Counts, opaque: _Counts) -> None:
    """Counts the branch with the most FLOPs, and the hidden work of each.

    Branches for platforms compute the same: what one hides, the dearest shows.
    """
    tried = []
    for branch in eqn.params["branches"]:
        tried.append((_Counts(Fraction), _Counts(Fraction)))
        _walk(branch.jaxpr, times, again, *tried[-1])
    dearest, hidden = max(tried, key=lambda pair: sum(pair[0].values()))
    _add(counts, dearest)
    every = [hidden] if eqn.params.get("branches_platforms") else [pair[1] for pair in tried]
    for name in {name for each in every for name in each}:
        opaque[name] += max(each[name] for each in every)


def _add(counts: _Counts, more: _Counts) -> None:
    for name, count in more.items():
        counts[name] += count


def _trips(eqn: Any) -> Fraction | int | None:
    """Returns the rounds of a loop: as stated, else its length or constant bounds, else None."""
    if stated := _TRIPS.search(str(eqn.source_info.name_stack)):
        return Fraction(stated[1])
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    return _constant_trips(eqn)


def _constant_trips(eqn: Any) -> int | None:
    """Returns the rounds of a while loop that compares a counter with a bound, both constant."""
    condition = eqn.params["cond_jaxpr"].jaxpr
    if len(condition.eqns) != 1:
        return None
    (test,) = condition.eqns
    comparison = test.primitive.name
    if comparison not in ("lt", "le", "gt", "ge"):
        return None
    left, right = (_counter(x, eqn) for x in test.invars)
    if left is None or right is None:
        return None
    gap, step = left[0] - right[0], left[1] - right[1]
    if comparison in ("gt", "ge"):
        gap, step = -gap, -step
    if comparison in ("le", "ge"):
        gap -= 1
    if gap >= 0:  # it runs while the gap is negative
        return 0
    return -(gap // step) if step > 0 else None


def _counter(x: Any, eqn: Any) -> tuple[int, int] | None:
    """Returns (first value, step) of an integer in the condition of a while loop, if constant."""
    params, given = eqn.params, eqn.invars
    shared, inputs = params["cond_nconsts"], params["cond_jaxpr"].jaxpr.invars
    if x not in inputs or inputs.index(x) < shared:
        first = _integer(given[inputs.index(x)] if x in inputs else x)
        return None if first is None else (first, 0)
    i, body = inputs.index(x) - shared, params["body_jaxpr"].jaxpr
    carried, result = body.invars[params["body_nconsts"] + i], body.outvars[i]
    first = _integer(given[shared + params["body_nconsts"] + i])
    if first is None:
        return None
    if result is carried:
        return first, 0
    for step in body.eqns:
        if result in step.outvars and step.primitive.name in ("add", "sub"):
            left, right = step.invars
            if right is carried and step.primitive.name == "add":
                left, right = right, left
            change = _integer(right) if left is carried else None
            if change is not None:
                return first, change if step.primitive.name == "add" else -change
    return None


def _integer(x: Any) -> int | None:
    """Returns the value of an integer that is part of the jaxpr, or None."""
    if not hasattr(x, "val") or x.aval.shape or not np.issubdtype(x.aval.dtype, np.integer):
        return None
    return int(x.val)


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
    if name in _OPAQUE:
        if eqn.params.get("cost_estimate") is not None:
            return int(eqn.params["cost_estimate"].flops), 0
        attributes = dict(eqn.params.get("attributes") or ())
        if "flops" in attributes:
            return int(attributes["flops"]), int(attributes.get("recomputed_flops", 0))
        return _named(eqn)
    if name == _CUDNN_FORWARD:
        return _scores(eqn), 0
    if name == _CUDNN_BACKWARD:  # dq, dk, dv and the weights' gradient; the logits again
        return 2 * _scores(eqn), _scores(eqn) // 2
    return None


def _named(eqn: Any) -> tuple[int, int] | None:
    """Returns (FLOPs, FLOPs computed again) that a scope directly around a call states, or None."""
    around = str(eqn.source_info.name_stack).removesuffix(f"/{eqn.params.get('name')}")
    named = _FOREIGN.search(around)
    return (int(named[1]), int(named[2])) if named else None


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
