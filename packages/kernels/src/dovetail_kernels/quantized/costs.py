# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of a call of `quantized_matmul` by each implementation."""

import numpy as np

from dovetail_kernels.dispatch import Work
from dovetail_kernels.quantized import blocks, scaled, split
from dovetail_kernels.quantized.call import QuantizedMatmulCall


def terms(call: QuantizedMatmulCall) -> int:
    """Returns the number of terms of "split" for each row."""
    if call.activations:
        return 1
    if call.bits != 16:
        return split.DIGITS
    return {2: 2 if call.dtype == np.float16 else 1}.get(call.dtype.itemsize, 3)


def native_work(call: QuantizedMatmulCall) -> Work:
    """Returns the cost if weights are read once, packed; rows in float32 are made on the way."""
    converted = call.dtype != np.float32 or call.activations is not None
    peak = 4 * call.rows * (call.inputs + call.outputs) if converted else 0
    return _work(call, peak_bytes=peak)


def split_work(call: QuantizedMatmulCall) -> Work:
    """Returns the cost with all terms of the rows (padding included) and their sums in memory."""
    rows = max(split.PADDED, terms(call) * call.rows)
    split_rows, sums = rows * call.inputs * (2 if call.bits == 16 else 1), 4 * rows * call.outputs
    peak = sums
    if call.bits == 4:  # the nibbles of a block apart, columns of the rows too, and sums by block
        peak += 2 * split.WEIGHTS + split_rows + sums
    # XLA keeps the terms in the result's memory if they fit. One bfloat16 term is x itself.
    given = call.bits == 16 and terms(call) == 1
    if not given and split_rows > call.rows * call.outputs * call.dtype.itemsize:
        peak += split_rows
    if call.dtype.itemsize < 4 and not given:
        peak = max(peak, _rows_bytes(call))
    return _work(
        call,
        flops=2 * rows * call.inputs * call.outputs,
        between=2 * (split_rows + sums),
        peak_bytes=peak,
    )


def blocks_work(call: QuantizedMatmulCall) -> Work:
    """Returns the cost if weights are read once; a block of them is dequantized at a time."""
    block = min(blocks.WEIGHTS, call.inputs * call.outputs) * _wide(call)
    rows = _rows_bytes(call) if _converted(call) else 0
    # XLA joins the blocks' results in the result's memory, if they are converted afterwards.
    direct = _converted(call) and not _narrow(call)
    results = 0 if direct else call.rows * call.outputs * _wide(call)
    return _work(call, peak_bytes=block + rows + results)


def scaled_work(call: QuantizedMatmulCall) -> Work:
    """Returns the cost if weights are read once, as integers; 4 bits are written once more.

    Sums of more groups than one are written. With many rows two bfloat16 of each weight are. Only a
    GPU's products read narrow operands: elsewhere they are written as floats.
    """
    few = isinstance(call.rows, int) and call.rows <= scaled.MOST_GROUPED_ROWS
    weights, on_gpu = call.inputs * call.outputs, call.device.platform == "gpu"
    if call.groups > 1 and not few:
        terms = 4 * weights + 4 * call.rows * call.inputs
        written = terms if on_gpu else 3 * terms + 4 * weights
        return _work(call, flops=4 * call.rows * weights, between=2 * written, peak_bytes=written)
    written = call.groups * call.rows * call.outputs * _wide(call)
    written += weights // 2 if call.bits == 4 else 0
    written += 0 if on_gpu else weights * _wide(call)
    return _work(call, between=2 * written, peak_bytes=written)


def reference_work(call: QuantizedMatmulCall) -> Work:
    """Returns the cost if weights are also written and read again as floats."""
    weights = call.inputs * call.outputs * _wide(call)
    peak = weights + (_rows_bytes(call) if _converted(call) else 0)
    if _narrow(call):
        peak += call.rows * call.outputs * _wide(call)
    return _work(call, between=2 * weights, peak_bytes=peak)


def _work(
    call: QuantizedMatmulCall, *, flops: int | None = None, between: int = 0, peak_bytes: int
) -> Work:
    """Returns a cost with the bytes of rows and packed weights, and those `between`."""
    rows = (call.inputs + call.outputs) * call.rows * call.dtype.itemsize
    scales = 0 if call.bits == 16 else 4 * call.outputs * call.groups * (1 + call.asymmetric)
    packed = call.outputs * call.inputs * call.bits // 8 + scales
    products = 2 * call.rows * call.inputs * call.outputs
    return Work(
        flops=products if flops is None else flops,
        bytes=rows + packed + between,
        peak_bytes=peak_bytes,
    )


def _wide(call: QuantizedMatmulCall) -> int:
    return np.promote_types(call.dtype, np.float32).itemsize


def _narrow(call: QuantizedMatmulCall) -> bool:
    return call.dtype.itemsize < 4


def _converted(call: QuantizedMatmulCall) -> bool:
    """Tests whether the rows are copied: to round them, to widen them, or to part their columns."""
    return call.activations is not None or call.bits == 4 or _narrow(call)


def _rows_bytes(call: QuantizedMatmulCall) -> int:
    return call.rows * call.inputs * _wide(call)
