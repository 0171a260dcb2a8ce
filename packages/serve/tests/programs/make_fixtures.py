# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the bundles of tests/fixtures that this version of JAX makes.

Usage: python make_fixtures.py, once with each version of JAX that is tested

tests/loading/test_fixtures.py loads them with every version and has their functions in NumPy.
"""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_serve import Tensor, export

FIXTURES = Path(__file__).parents[1] / "fixtures" / f"jax-{jax.__version__}"


def classifier(random):
    """An embedding, an attention over 5 positions with a mask, a normalization, logits."""
    weights = {
        "table": random.normal(size=(23, 8)),
        "query": random.normal(size=(8, 8)),
        "scale": random.normal(size=8),
        "head": random.normal(size=(8, 3)),
    }

    def fn(p, *, ids, mask):
        x = p["table"][ids]
        scores = jnp.einsum("btd,de,bse->bts", x, p["query"], x) / 8**0.5
        x = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e9), axis=-1) @ x
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return {"logits": (x * p["scale"]).mean(1) @ p["head"]}

    inputs = {"ids": Tensor(("batch", 5), "int32"), "mask": Tensor(("batch", 5), "bool")}
    example = {
        "ids": random.integers(0, 23, size=(3, 5)).astype("int32"),
        "mask": np.arange(5) < np.array([[5], [2], [4]]),
    }
    arrays = {name: array.astype("float32") for name, array in weights.items()}
    return export(fn, arrays, inputs=inputs, example=example, batch_sizes=(1, 4))


def quantized(random):
    """Weights of 4 bits with a scale for each column, and a bias in bfloat16."""
    weights = {
        "codes": random.integers(-8, 8, size=(6, 5)).astype(jnp.int4),
        "scale": random.uniform(0.5, 1.5, size=5).astype("float32"),
        "bias": random.normal(size=5).astype(jnp.bfloat16),
    }

    def fn(p, *, x):
        y = x @ p["codes"].astype("float32") * p["scale"] + p["bias"]
        return {"y": y, "best": jnp.argmax(y, axis=1).astype("int32")}

    inputs = {"x": Tensor(("batch", 6), "float32")}
    example = {"x": random.normal(size=(3, 6)).astype("float32")}
    return export(fn, weights, inputs=inputs, example=example, batch_sizes=(1, 4))


def wide(random):
    """64-bit types."""
    weights = {"w": random.normal(size=(4, 3)), "n": np.int64(2**40)}

    def fn(p, *, x, n):
        return {"y": jnp.tanh(x @ p["w"]), "n": n * 3 + p["n"]}

    inputs = {"x": Tensor(("batch", 4), "float64"), "n": Tensor(("batch",), "int64")}
    example = {"x": random.normal(size=(3, 4)), "n": random.integers(-(2**50), 2**50, size=3)}
    with jax.enable_x64(True):
        return export(fn, weights, inputs=inputs, example=example, batch_sizes=(2,))


def fixed(random):
    """No batch axis, and a Cholesky factor, which is a custom call on CPUs."""
    weights = {"ridge": np.float32(0.5)}

    def fn(p, *, a):
        gram = a.T @ a + p["ridge"] * jnp.eye(4, dtype="float32")
        return {"factor": jnp.linalg.cholesky(gram)}

    inputs = {"a": Tensor((6, 4), "float32")}
    example = {"a": random.normal(size=(6, 4)).astype("float32")}
    return export(fn, weights, inputs=inputs, example=example, platforms=["cpu"])


if __name__ == "__main__":
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for seed, make in enumerate((classifier, quantized, wide, fixed)):
        make(np.random.default_rng(seed)).save(FIXTURES / make.__name__)
