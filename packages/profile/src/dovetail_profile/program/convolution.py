# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of a convolution: without those on padding and on the gaps of a dilation.

Source: `Window` and `ConvolutionDimensionNumbers` in xla/xla_data.proto of the OpenXLA repository.
"""

import math

import numpy as np

from dovetail_profile.program.module import Instruction
from dovetail_profile.program.shape import Shape
from dovetail_profile.wire import Message


def multiply_adds(x: Instruction, inputs: Shape, kernel: Shape, outputs: Shape) -> int:
    """Returns the number of multiply-adds.

    Args:
        x: The instruction, for its window, its dimension numbers and its groups.
        inputs: Shape of the images.
        kernel: Shape of the kernel.
        outputs: Shape of the result.
    """
    windows, numbers = x.attributes.message(15).messages(1), x.attributes.message(16)
    axes = zip(numbers.integers(11), numbers.integers(6), numbers.integers(12), strict=True)
    positions = math.prod(
        _positions(window, inputs.dims[i], kernel.dims[k], outputs.dims[o])
        for window, (i, k, o) in zip(windows, axes, strict=True)
    )
    features = inputs.dims[numbers.integer(8)] // max(x.attributes.integer(50), 1)
    batch = inputs.dims[numbers.integer(7)] // max(x.attributes.integer(58), 1)
    return features * batch * outputs.dims[numbers.integer(10)] * positions


def _positions(window: Message, inputs: int, kernel: int, outputs: int) -> int:
    """Counts the pairs of kernel and output positions with an element of the input.

    Kernel position k and output position o meet position (o stride + k dilation - padding) of the
    dilated input. Outputs go in steps of `period`: the position modulo the input's dilation then
    repeats, and the valid outputs of each run are an interval.
    """
    stride, low = max(window.integer(2), 1), window.integer(3)
    dilation, gaps = max(window.integer(5), 1), max(window.integer(6), 1)
    period = gaps // math.gcd(stride, gaps)
    start = np.arange(period)
    position = np.arange(kernel)[:, None] * dilation + start * stride - low
    step = period * stride
    least = np.maximum(-(position // step), 0)
    most = np.minimum(((inputs - 1) * gaps - position) // step, (outputs - 1 - start) // period)
    valid = np.maximum(most - least + 1, 0)
    return int(valid[position % gaps == 0].sum())
