# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""cuDNN's fused attention for packed rows, where documents are runs of equal segment ids.

cuDNN takes the starts of runs and never meets the pairs between documents. That is the answer of
`attention` for the rows of every packer, but not for every array of ids, and ids are known to the
device alone. So the program has both: `find_runs` tests the ids, and `lax.switch` takes cuDNN or
the implementation that would be next. The host waits once for the test, forward and backward each.
On an H200 with jax 0.11.2, for 2 rows of 4096 tokens, 16 heads of 128 and 4 documents a row, it
took .74 ms with gradients, of which .53 are the calls; "mosaic" took 2.92.

Padding, whose tokens share one position, is not causal by the contract: a second call without a
causal mask computes such runs, only if there are any.

cuDNN's backward may keep float32 sums of the size of q for each run of a row, used or not. This
bounds the runs, and batches that would need more than `_BYTES` go slice by slice.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float

from dovetail_kernels.attention import blocked, mosaic
from dovetail_kernels.attention.call import AttentionCall, Inputs
from dovetail_kernels.attention.cudnn import call as fused
from dovetail_kernels.attention.cudnn import dense
from dovetail_kernels.attention.cudnn.runs import Runs, find_runs
from dovetail_kernels.costs_in_names import foreign
from dovetail_kernels.dispatch import Implementation, Work
from dovetail_kernels.mesh import varying

_BYTES = 2 * 2**30  # of cuDNN's sums at once
_TOKENS_PER_RUN = 256  # documents of public corpora have 500 to 1,000 tokens
_MOST, _FEWEST = 32, 4
_COMPARED = 2048  # runs of a slice, each compared with each


def refuse(call: AttentionCall) -> str | None:
    """Returns why cuDNN cannot give the documented answer for packed rows, or None."""
    return (
        dense.refuse_device(call)
        or fused.refuse_version()
        or blocked.refuse(call)
        or _refuse(call)
        or dense.refuse_shapes(call)
        or dense.refuse_options(call, taken=("segment_ids", "positions"))
    )


def _refuse(call: AttentionCall) -> str | None:
    if not call.segments:
        return "it is for packed rows, with segment_ids"
    if not dense.HOPPER_OR_LATER.search(call.device.kind):
        return f"packed rows need a Hopper GPU or a later one, not {call.device.kind}"
    if call.queries != call.keys:
        return f"it takes packed rows of one length, not T={call.queries}, S={call.keys}"
    if call.head_dim % 16 or call.head_dim > 128:
        return f"for packed rows head_dim must be a multiple of 16 up to 128, not {call.head_dim}"
    if call.window is not None or call.kv_lengths:
        return "its packed rows with window or kv_lengths are not known to be right"
    if not isinstance(call.batch, int):
        return f"it counts the runs of a known number of rows, not batch={call.batch}"
    most = _most(call)
    if most < _FEWEST:
        return (
            f"its sums for T={call.queries}, heads={call.heads}, head_dim={call.head_dim} bound "
            f"the documents per row at {most}, fewer than {_FEWEST}"
        )
    return None


def run(call: AttentionCall, inputs: Inputs) -> Float[Array, "b t n g"]:
    """Computes `attention` by cuDNN, or by the next implementation where ids are in no runs."""
    return _attend(call, blocked.reverse(inputs))


def _most(call: AttentionCall) -> int:
    """Returns the largest number of runs per row, on average over a slice."""
    return min(max(call.queries // _TOKENS_PER_RUN, 8), _BYTES // _row_bytes(call), _MOST)


def _row_bytes(call: AttentionCall) -> int:
    return 4 * call.queries * call.heads * call.head_dim


def _rows(call: AttentionCall) -> int:
    """Returns the number of rows of a slice, a divisor of the batch."""
    most = _most(call)
    bound = max(min(_BYTES // (most * _row_bytes(call)), _COMPARED // most), 1)
    return max(n for n in range(1, min(bound, call.batch) + 1) if call.batch % n == 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: AttentionCall, inputs: Inputs) -> Float[Array, "b t n g"]:
    return _forward(call, False, _runs(call, inputs), inputs)[0]


def _attend_fwd(call: AttentionCall, inputs: Inputs) -> tuple[Array, tuple]:
    inputs = blocked.once(inputs)
    runs = _runs(call, inputs)
    results = _forward(call, True, runs, inputs)
    out, stats, lse = (checkpoint_name(x, blocked.NAME) for x in results)
    return out, (runs, inputs, out, stats, lse)


def _attend_bwd(call: AttentionCall, kept: tuple, cotangent: Array) -> tuple[Inputs]:
    kept, cotangent = blocked.once((kept, cotangent))
    backward = sequential_vmap(functools.partial(_compute_backward, call))
    return (Inputs(*backward(*kept, cotangent)),)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _runs(call: AttentionCall, inputs: Inputs) -> Runs:
    return find_runs(inputs, causal=call.causal, rows=_rows(call), most=_most(call))


def _forward(call: AttentionCall, stats: bool, runs: Runs, inputs: Inputs) -> tuple:
    # One element after the other under vmap, as backward: the statistics of a run are where its
    # slice has it, and each element has its own branch.
    return sequential_vmap(functools.partial(_compute_forward, call, stats))(runs, inputs)


def _compute_forward(call: AttentionCall, stats: bool, runs: Runs, inputs: Inputs) -> tuple:
    """Returns out, and with `stats` cuDNN's statistics by run and the next one's lse."""
    by_cudnn = [functools.partial(_cudnn_forward, call, x, stats) for x in _choices(call)]
    return _switch(runs, [*by_cudnn, functools.partial(_next_forward, call, stats)], inputs)


def _compute_backward(call: AttentionCall, runs: Runs, inputs: Inputs, *kept: Array) -> tuple:
    by_cudnn = [functools.partial(_cudnn_backward, call, forms) for forms in _choices(call)]
    branches = [*by_cudnn, functools.partial(_next_backward, call)]
    gradients = _switch(runs, branches, inputs, *kept)
    return tuple(dx.reshape(x.shape) for dx, x in zip(gradients, inputs[:3], strict=True))


def _choices(call: AttentionCall) -> list[list[fused.Form]]:
    """Returns the forms of cuDNN's calls by `Runs.kind`: RISING, then SOME_FLAT if it can be."""
    rising = fused.Form(call.scale, "PADDING_CAUSAL" if call.causal else "PADDING")
    if not (call.causal and call.positions):
        return [[rising]]
    return [[rising], [rising, fused.Form(call.scale, "PADDING")]]


def _switch(runs: Runs, branches: list[Any], *operands: Any) -> tuple:
    return lax.switch(jnp.minimum(runs.kind, len(branches) - 1), branches, runs, *operands)


def _next(call: AttentionCall) -> Any:
    """Returns the module of the implementation for ids that are in no runs."""
    return blocked if mosaic.refuse(call) else mosaic


def _next_forward(call: AttentionCall, stats: bool, runs: Runs, inputs: Inputs) -> tuple:
    out, lse, _ = _next(call).forward(call, inputs)
    if not stats:
        return (out,)
    shape = (*runs.flat.shape, call.heads, call.queries)
    return out, varying(jnp.zeros(shape, jnp.float32), out), lse


def _next_backward(call: AttentionCall, runs: Runs, inputs: Inputs, *kept: Array) -> tuple:
    del runs
    out, _, lse, cotangent = kept
    gradients = blocked.backward(call, inputs, out, lse, cotangent, jnp.zeros_like(lse))
    return tuple(map(_flat, gradients[:3]))


def _cudnn_forward(
    call: AttentionCall, forms: list[fused.Form], stats: bool, runs: Runs, inputs: Inputs
) -> tuple:
    def of_slice(runs: Runs, q: Array, k: Array, v: Array) -> tuple:
        extents = _extents(call, len(forms), runs)
        calls = zip(forms, extents, strict=True)
        results = []
        for i, (form, x) in enumerate(calls):
            with foreign(0 if i else _slice_flops(call)):
                results.append(fused.forward(form, q, k, v, **x, stats=stats))
        outs, statistics = zip(*results, strict=True)
        out = _merged(runs.flat_tokens.reshape(q.shape[:2]), outs)
        return (out, _merged(runs.flat, statistics)) if stats else (out,)

    out, *statistics = _by_slice(of_slice, runs, inputs[:3])
    out = out.reshape(inputs.q.shape)
    if not stats:
        return (out,)
    return out, *statistics, varying(jnp.zeros(out.shape[:3], jnp.float32), out)


def _cudnn_backward(
    call: AttentionCall, forms: list[fused.Form], runs: Runs, inputs: Inputs, *kept: Array
) -> tuple:
    out, statistics, _, cotangent = kept

    def of_slice(runs: Runs, *arrays: Array) -> tuple:
        q, k, v, out, cotangent, lse = arrays
        residuals = {"out": out, "cotangent": cotangent, "lse": lse}
        calls = zip(forms, _extents(call, len(forms), runs), strict=True)
        gradients = []
        for i, (form, x) in enumerate(calls):
            flops = 0 if i else _slice_flops(call)
            with foreign(2 * flops, again=flops // 2):
                gradients.append(fused.backward(form, q, k, v, **residuals, **x))
        flat = runs.flat_tokens.reshape(q.shape[:2])
        return tuple(_merged(flat, each) for each in zip(*gradients, strict=True))

    gradients = _by_slice(of_slice, runs, (*inputs[:3], out, cotangent), statistics)
    rows = (dx.reshape(-1, *dx.shape[2:]) for dx in gradients)
    return tuple(map(_flat, rows))


def _flat(x: Array) -> Array:
    """Joins heads and head_dim: else the next one's layout would be that of cuDNN's results too."""
    return x.reshape(*x.shape[:2], -1)


def _slice_flops(call: AttentionCall) -> int:
    """Counts both products of a slice as of one document per row, by one or two calls together."""
    return dense.CUDNN.work(call).flops * _rows(call) // call.batch


def _extents(call: AttentionCall, forms: int, runs: Runs) -> list[dict[str, Any]]:
    """Returns the runs of a slice for each form: all, or those that are not flat and the flat."""
    most = _most(call)
    rows = runs.flat.shape[0] // most
    tokens = runs.starts.reshape(rows, most + 1)
    offsets = fused.Offsets(
        tokens * (call.heads * call.head_dim), tokens * (call.kv_heads * call.head_dim)
    )
    lengths = [runs.lengths]
    if forms == 2:
        lengths = [jnp.where(runs.flat == flat, runs.lengths, 0) for flat in (False, True)]
    lengths = [x.reshape(rows, most) for x in lengths]
    return [{"lengths": fused.Lengths(x, x), "offsets": offsets} for x in lengths]


def _merged(flat: Array, results: Any) -> Array:
    """Returns the results of flat runs where `flat`, else the others."""
    if len(results) == 1:
        return results[0]
    axes = tuple(range(flat.ndim, results[0].ndim))
    return jnp.where(jnp.expand_dims(flat, axes), results[1], results[0])


def _by_slice(
    function: Any, runs: Runs, arrays: tuple[Array, ...], *sliced: Array
) -> tuple[Array, ...]:
    """Returns the results of each slice of rows, stacked.

    Args:
        function: Function of the runs of a slice, and of the slices of the arrays.
        runs: Runs of all slices.
        arrays: Arrays whose first axis is the batch.
        sliced: Arrays whose first axis are the slices.
    """
    slices = runs.flat.shape[0]
    split = [x.reshape(slices, x.shape[0] // slices, *x.shape[1:]) for x in arrays]

    def of_slice(operands: Any) -> tuple[Array, ...]:
        starts, flat, flat_tokens, *rest = operands
        return function(Runs(starts, flat, flat_tokens, runs.kind), *rest)

    operands = (runs.starts, runs.flat, runs.flat_tokens, *split, *sliced)
    if slices > 1:
        return lax.map(of_slice, operands)
    return jax.tree.map(lambda x: x[None], of_slice(jax.tree.map(lambda x: x[0], operands)))


def _work(call: AttentionCall) -> Work:
    """Counts the dense calls, since ids decide, and the copies of the next implementation."""
    whole = dense.CUDNN.work(call)
    after = mosaic.MOSAIC if _next(call) is mosaic else blocked.BLOCKED
    return Work(
        flops=whole.flops,
        bytes=whole.bytes,
        peak_bytes=max(whole.peak_bytes, after.work(call).peak_bytes),
    )


CUDNN_PACKED = Implementation(name="cudnn_packed", refuse=refuse, work=_work, run=run)
