# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The model that every server here serves: 64 inputs, 64 hidden units, 10 outputs, in NumPy."""

import numpy as np


def weights() -> tuple[np.ndarray, np.ndarray]:
    """Returns f32[64, 64] and f32[64, 10]."""
    generator = np.random.default_rng(0)
    return (
        generator.normal(size=(64, 64)).astype("float32") / 8,
        generator.normal(size=(64, 10)).astype("float32") / 8,
    )


def apply(layers: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Returns tanh(x w) v, f32[batch, 10]."""
    first, second = layers
    return np.tanh(x @ first) @ second
