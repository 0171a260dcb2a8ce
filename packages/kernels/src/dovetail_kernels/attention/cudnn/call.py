# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of cuDNN's fused attention that XLA's GPU compiler knows, by the public `jax.ffi`.

`jax.nn` makes the same calls but offers neither packed nor paged keys. A call is a target, one
layout per array, and a configuration in JSON. They are JAX's own, not a stable interface, so
`refuse_version` names the releases whose calls were compared with these, attribute by attribute
(integration_tests/test_cudnn_calls.py). The arguments are checked by the callers.
"""

import json
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_kernels.mesh import varying

Mask = Literal["NO_MASK", "CAUSAL", "PADDING", "PADDING_CAUSAL"]
_ELEMENTS = {"bfloat16": "BF16", "float16": "F16"}
_FIRST, _UNKNOWN = (0, 10, 2), (0, 13)


class Lengths(NamedTuple):
    """Numbers of tokens that count, int32. Needed with a padding mask, offsets or pages.

    Attributes:
        queries: Per row [b]; with `Offsets`, per run, [b, runs].
        keys: Alike.
    """

    queries: Int[Array, "b *runs"]
    keys: Int[Array, "b *runs"]


class Offsets(NamedTuple):
    """Starts of runs of tokens in memory, in elements, int32, nondecreasing over all rows.

    cuDNN reads the first b * runs + 1 numbers, so that one number after the last run's is its end.
    The heads of q and of k differ with grouped queries, and so do their numbers.

    Attributes:
        queries: Index of a run's first token over all rows, times heads * head_dim, [b, runs + 1].
        keys: Alike, times kv_heads * head_dim.
    """

    queries: Int[Array, "b runs_and_end"]
    keys: Int[Array, "b runs_and_end"]


class Pages(NamedTuple):
    """Tables of the pages of each row's keys and values, int32 [b, 1, pages, 1].

    k and v are then pools [all_pages, page, kv_heads, head_dim].
    """

    keys: Int[Array, "b 1 pages 1"]
    values: Int[Array, "b 1 pages 1"]


class Form(NamedTuple):
    """Static properties of a call.

    Attributes:
        scale: Factor of the logits.
        mask: Visible keys. "CAUSAL" aligns the first query with the first key.
        window: Number of keys that a query sees, itself among them; 0 for all. With a causal mask.
    """

    scale: float
    mask: Mask
    window: int = 0


def refuse_version() -> str | None:
    """Returns why the calls of this JAX are not known to be these, or None."""
    version = jax.__version_info__
    if _FIRST <= version < _UNKNOWN:
        return None
    return (
        f"its calls are known from jax {_text(_FIRST)} to before {_text(_UNKNOWN)}, not in "
        f"{_text(version)}"
    )


def forward(
    form: Form,
    q: Float[Array, "b t n h"],
    k: Float[Array, "c s k h"],
    v: Float[Array, "c s k g"],
    *,
    lengths: Lengths | None = None,
    offsets: Offsets | None = None,
    pages: Pages | None = None,
    stats: bool = False,
) -> tuple[Float[Array, "b t n g"], Float[Array, "b_runs n t"] | None]:
    """Returns the output, and with `stats` the log-sum-exp in float32.

    The log-sum-exp has one row [n, t] for each row of q; with `offsets`, for each run, and a run's
    first token is at index 0.

    Args:
        form: Scale and mask.
        q, k, v: Queries, keys and values, bfloat16 or float16. With `pages`, k and v are pools.
        lengths: Numbers of tokens, or None with a mask without padding.
        offsets: Runs of packed rows, or None for one run per row.
        pages: Tables of the pages of k and v, or None for dense rows.
        stats: Whether to compute the log-sum-exp, which `backward` needs.
    """
    batch, queries, heads, _ = q.shape
    runs = _runs(offsets)
    results: list[Any] = [((batch, heads, queries, v.shape[3]), q.dtype)]
    if stats:
        results.append(((batch * runs, heads, queries), jnp.float32))
    config = _config(form, q, v, runs=runs, paged=pages is not None, products=_FORWARD)
    operands = [q, k, v, *(lengths or ()), *(offsets or ()), *(pages or ())]
    out, *lse = _call("__cudnn$fmhaSoftmax", config, operands, results)
    return out, lse[0] if lse else None


def backward(
    form: Form,
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k g"],
    *,
    lse: Float[Array, "b_runs n t"],
    out: Float[Array, "b t n g"],
    cotangent: Float[Array, "b t n g"],
    lengths: Lengths | None = None,
    offsets: Offsets | None = None,
) -> tuple[Float[Array, "b t n h"], Float[Array, "b s k h"], Float[Array, "b s k g"]]:
    """Returns the gradients of q, k and v.

    Args:
        form: As in `forward`.
        q, k, v: As in `forward`, without pages.
        lse: Second result of `forward`.
        out: First result of `forward`.
        cotangent: Cotangent of `out`, in its dtype.
        lengths, offsets: As in `forward`.
    """
    runs = _runs(offsets)
    config = _config(form, q, v, runs=runs, paged=False, products=_BACKWARD)
    operands = [q, k, v, lse, cotangent, out, *(lengths or ()), *(offsets or ())]
    results = [((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype) for x in (q, k, v)]
    dq, dk, dv = _call("__cudnn$fmhaSoftmaxBackward", config, operands, results)
    return dq, dk, dv


def _runs(offsets: Offsets | None) -> int:
    return 1 if offsets is None else offsets.queries.shape[1] - 1


def _call(target: str, config: str, operands: list[Array], results: list[Any]) -> list[Any]:
    """Calls XLA's `target`. Results of four axes [b, n, t, h] lie in memory as [b, t, n, h]."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    workspace = jax.ShapeDtypeStruct((0,), jnp.uint8)  # XLA gives it its size
    orders = [(0, 2, 1, 3) if len(shape) == 4 else None for shape, _ in results]
    operands = varying(operands, operands)
    call: Any = jax.ffi.ffi_call(
        target,
        [*shapes, workspace],
        output_layouts=[*orders, None],
        custom_call_api_version=2,
        legacy_backend_config=config,
    )
    *arrays, _ = call(*operands)
    arrays = [x.transpose(0, 2, 1, 3) if x.ndim == 4 else x for x in arrays]
    return varying(arrays, operands)


# Contracted and batch axes of (lhs, rhs) for q, k, v [b, t, n, h] and logits [b, n, t, s].
_FORWARD = {
    "bmm1": ((3, 3), ((0, 2), (0, 2))),  # q k -> logits
    "bmm2": ((3, 1), ((0, 1), (0, 2))),  # p v -> out
}
_BACKWARD = {
    "bmm1_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),  # ds q -> dk
    "bmm1_grad_gemm2": ((3, 1), ((0, 1), (0, 2))),  # ds k -> dq
    "bmm2_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),  # p do -> dv
    "bmm2_grad_gemm2": ((3, 3), ((0, 2), (0, 2))),  # do v -> dp
}


def _config(
    form: Form, q: Array, v: Array, *, runs: int, paged: bool, products: dict[str, Any]
) -> str:
    """Returns the configuration in JSON, with keys in JAX's order."""
    batch, queries, heads, _ = q.shape
    attention: dict[str, Any] = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": form.scale,
        "intermediate_tensor_shape": _logits((batch, heads, queries, v.shape[1]), q.dtype),
        "is_flash_attention": True,
        "mask_type": form.mask,
    }
    for name, ((left, right), (left_batch, right_batch)) in products.items():
        attention[f"{name}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": [str(axis) for axis in left_batch],
            "rhs_batch_dimensions": [str(axis) for axis in right_batch],
        }
    attention |= {
        "dropout_rate": 0.0,
        "seed": 42,  # of dropout, which is off
        "sliding_window_length": form.window,
        "max_seg_per_batch": runs,
        "is_paged_attention": paged,
    }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": attention})


def _logits(sizes: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """Returns the shape of the logits, of which cuDNN writes none, as XLA's ShapeProto."""
    return {
        "element_type": _ELEMENTS[jnp.dtype(dtype).name],
        "dimensions": [str(size) for size in sizes],
        "tuple_shapes": [],
        "layout": {
            "dim_level_types": [],
            "dim_unique": [],
            "dim_ordered": [],
            "minor_to_major": ["3", "2", "1", "0"],
            "tiles": [],
            "element_size_in_bits": "0",
            "memory_space": "0",
            "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
            "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
            "dynamic_shape_metadata_prefix_bytes": "0",
        },
        "is_dynamic_dimension": [False, False, False, False],
    }


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
