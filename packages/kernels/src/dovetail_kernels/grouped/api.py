# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix product: rows in consecutive groups, each with its group's matrix."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from dovetail_kernels.argument_names import operation
from dovetail_kernels.arrays import check_arrays, is_known, known
from dovetail_kernels.dispatch import Impl, Implementation, Plan, device, run
from dovetail_kernels.grouped.batched import BATCHED
from dovetail_kernels.grouped.call import GroupedMatmulCall, GroupedMatmulInputs
from dovetail_kernels.grouped.mosaic import MOSAIC
from dovetail_kernels.grouped.ragged import RAGGED_DOT
from dovetail_kernels.grouped.reference import REFERENCE
from dovetail_kernels.grouped.tiles import TILES
from dovetail_kernels.mesh import per_shard

_DTYPES = ("float16", "bfloat16", "float32", "float64")

# Best first. Milliseconds on an H200 with jax 0.11.2, 64 experts, 16384 × 2048 × 1408 in bfloat16:
# MOSAIC .36, BATCHED .78, TILES 7.4, RAGGED_DOT 10.8, one dense product .27; with gradients .83,
# 3.0, 17, 31 and .75. Off TPU RAGGED_DOT does E times the work.
_TPU = (RAGGED_DOT, MOSAIC, BATCHED, TILES, REFERENCE)
_OTHERS = (MOSAIC, BATCHED, TILES, RAGGED_DOT, REFERENCE)


@operation
def grouped_matmul(
    x: Float[Array | np.ndarray, "M D"],
    w: Float[Array | np.ndarray, "E D F"],
    sizes: Integer[Array | np.ndarray, " E"],
    *,
    impl: Impl | None = None,
) -> Float[Array, "M F"]:
    """Computes `out[m] = x[m] @ w[e]`, with e the group of row m.

    The first `sizes[0]` rows are group 0, the next `sizes[1]` rows group 1, and so on. This is the
    product of a mixture of experts after `permute`, and a drop-in for `jax.lax.ragged_dot`.

    Args:
        x: Rows [M, D], group by group, in float16, bfloat16, float32 or float64. M may be symbolic
            (`jax.export.symbolic_shape`): "tiles" of 128 rows. On an Explicit mesh D may be
            sharded (adds an all-reduce), but not M: `sizes` counts all rows.
        w: One matrix per group [E, D, F], of x's dtype. On an Explicit mesh D and F may be sharded.
        sizes: Rows per group, integers [E], at least 0, with sum M. Under a trace their values are
            unknown. There rows beyond the sum give 0 and are not read (they may hold NaN). A
            negative size or a sum above M makes the whole result NaN.
        impl: "mosaic" (kernels for Hopper GPUs), "batched" (GPUs), "tiles", "ragged_dot",
            "reference" or an `implementations.Implementation`, or several in order of preference.

    Returns:
        The products [M, F] in x's dtype, with sums in float32 or wider. Differentiable in x and w,
        in reverse mode; the gradients have x's dtype. Forward mode (`jax.jvp`, `jax.jacfwd`) and
        second derivatives need `impl="reference"`.

    Raises:
        ValueError: Shapes, dtypes or sizes do not fit, an axis is sharded that cannot be, or `impl`
            is unknown.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import grouped_matmul
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> w = jnp.array([[[1.0], [1.0]], [[0.0], [10.0]]])
        >>> grouped_matmul(x, w, jnp.array([1, 2])).tolist()
        [[3.0], [40.0], [60.0]]
    """
    plan = plan_grouped_matmul(x, w, sizes, impl=impl)
    return per_shard(
        "grouped_matmul",
        functools.partial(_run, plan.choose(), plan.call, checked=is_known(sizes)),
        (jnp.asarray(x), jnp.asarray(w), jnp.asarray(sizes, jnp.int32)),
        ("md", "edf", "e"),
        out="mf",
        may="df",
        summed="d",
        instead="Gather that axis with jax.sharding.reshard, or call grouped_matmul inside "
        "jax.shard_map, where each shard has its own rows and sizes.",
    )


def plan_grouped_matmul(
    x: Any, w: Any, sizes: Any, *, impl: Impl | None = None
) -> Plan[GroupedMatmulCall]:
    """Returns the plan of `grouped_matmul` with these arguments.

    Args:
        x: Rows [M, D]: an array or anything with a shape and a dtype.
        w: Matrices [E, D, F], likewise.
        sizes: Rows per group [E], likewise. Values are checked if they are known.
        impl: Implementations, in order of preference.

    Raises:
        ValueError: Shapes, dtypes or known sizes do not fit.
    """
    _check_shapes(x, w, sizes)
    values = known(sizes)
    if values is not None:
        _check_sizes(values, rows=x.shape[0])
    target = device(x, w, sizes)
    call = GroupedMatmulCall(
        rows=x.shape[0],
        inner=x.shape[1],
        outer=w.shape[2],
        count=w.shape[0],
        dtype=str(x.dtype),
        device=target,
    )
    return Plan(
        operation="grouped_matmul",
        call=call,
        device=target,
        implementations=_TPU if target.platform == "tpu" else _OTHERS,
        impl=impl,
        arrays=(x, w),
    )


@functools.partial(jax.jit, static_argnums=(0, 1), static_argnames="checked", inline=True)
def _run(
    implementation: Implementation[GroupedMatmulCall],
    call: GroupedMatmulCall,
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    *,
    checked: bool,
) -> jax.Array:
    local = dataclasses.replace(call, inner=x.shape[1], outer=w.shape[2])
    out = run("grouped_matmul", implementation, local, GroupedMatmulInputs(x, w, sizes))
    if checked:
        return out
    # Each size too: a sum of large ones leaves int32.
    wrong = jnp.any((sizes < 0) | (sizes > x.shape[0]))
    wrong |= jnp.sum(sizes, dtype=jnp.int32) > x.shape[0]
    # A sum, since a selection would cost one more pass over the cotangents. x + -0.0 is x.
    return out + jax.lax.stop_gradient(jnp.where(wrong, jnp.nan, -0.0)).astype(out.dtype)


def _check_shapes(x: Any, w: Any, sizes: Any) -> None:
    check_arrays("grouped_matmul", x=x, w=w, sizes=sizes)
    if (len(x.shape), len(w.shape), len(sizes.shape)) != (2, 3, 1):
        raise ValueError(
            f"grouped_matmul needs x [M, D], w [E, D, F] and sizes [E], got x.shape={x.shape}, "
            f"w.shape={w.shape}, sizes.shape={sizes.shape}. Reshape them; jax.vmap adds axes."
        )
    count, inner, _ = w.shape
    if x.shape[1] != inner or sizes.shape[0] != count or count == 0:
        raise ValueError(
            "grouped_matmul needs one D in x [M, D] and w [E, D, F], and one E, at least 1, in w "
            f"and sizes [E], got x.shape={x.shape}, w.shape={w.shape}, sizes.shape={sizes.shape}. "
            "Transpose w with w.swapaxes(1, 2) if it is [E, F, D]."
        )
    if x.dtype != w.dtype or str(x.dtype) not in _DTYPES:
        raise ValueError(
            f"grouped_matmul needs x and w of one dtype among {', '.join(_DTYPES)}, got x.dtype="
            f"{x.dtype}, w.dtype={w.dtype}. Use w.astype(x.dtype)."
        )
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise ValueError(
            f"grouped_matmul needs sizes that are integers, got sizes.dtype={sizes.dtype}. Use "
            "sizes.astype(jnp.int32)."
        )


def _check_sizes(sizes: np.ndarray, *, rows: Any) -> None:
    if sizes.min() < 0 or sizes.sum() != rows:
        raise ValueError(
            f"grouped_matmul needs sizes of at least 0 that sum to the M={rows} rows of x, got "
            f"sizes={sizes.tolist()}, sum {int(sizes.sum())}. Count the rows of each group with "
            "jnp.bincount, or cut x to x[: sizes.sum()]."
        )
