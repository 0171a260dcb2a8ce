# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small bundle for tests of servers and clients, with its results in NumPy."""

import itertools
import os
from collections.abc import Callable, Sequence

import jax
import numpy as np

from dovetail_serve.exporting.export import export
from dovetail_serve.types import Tensor


def save_mlp(
    path: str | os.PathLike[str],
    *,
    widths: Sequence[int] = (6, 5, 3),
    seed: int = 0,
    batch_sizes: Sequence[int] = (1, 8),
) -> Callable[[np.ndarray], np.ndarray]:
    """Saves a bundle of a multilayer perceptron, f32["x": batch, in] to f32["y": batch, out].

    Args:
        path: Directory of the new bundle.
        widths: Width of the input, of each hidden layer, and of the output.
        seed: Seed of its weights; another seed gives other results.
        batch_sizes: As for `export`.

    Returns:
        The same function in NumPy, float64.
    """
    generator = np.random.default_rng(seed)
    weights = {
        f"layers.{i}.kernel": generator.normal(size=(rows, columns)).astype("float32")
        for i, (rows, columns) in enumerate(itertools.pairwise(widths))
    }

    def fn(params: dict[str, jax.Array], *, x: jax.Array) -> dict[str, jax.Array]:
        for i in range(len(weights)):
            x = jax.numpy.tanh(x @ params[f"layers.{i}.kernel"])
        return {"y": x}

    def expected(x: np.ndarray) -> np.ndarray:
        for i in range(len(weights)):
            x = np.tanh(x.astype("float64") @ weights[f"layers.{i}.kernel"])
        return x

    export(
        fn,
        weights,
        inputs={"x": Tensor(("batch", widths[0]), "float32")},
        example={"x": generator.normal(size=(3, widths[0])).astype("float32")},
        batch_sizes=batch_sizes,
    ).save(path)
    return expected
