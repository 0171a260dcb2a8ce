# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes of `jax.export`: the costs that are left out, and the errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels import attention, explain, linear_cross_entropy, rms_norm, rope


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_explain_chooses_without_costs():
    (t,) = jax.export.symbolic_shape("t")
    q = shape(2, t, 4, 8)
    report = explain(attention, q, q, q, causal=True)
    assert report.selected == "reference"
    assert [choice.work for choice in report.rows] == [None] * len(report.rows)
    assert "cuts blocks of known sizes, not T=t, S=t" in str(report)
    with pytest.raises(
        ValueError, match=r"got a symbolic dimension of jax.export in rms_norm, .*Use"
    ):
        explain(rms_norm, shape(t, 8), None, eps=1e-6)


def test_a_size_that_must_be_known_is_refused_with_its_argument():
    (h,) = jax.export.symbolic_shape("h")
    message = r"^rope needs .*, got .* in x.shape=\(3, 2, 2\*h\)\. Use a number there"
    with pytest.raises(NotImplementedError, match=message):
        jax.export.export(jax.jit(lambda x: rope(x, np.arange(3), theta=1e4)))(shape(3, 2, 2 * h))


@pytest.mark.parametrize("names", ["v", pytest.param("m, d, v", marks=pytest.mark.thorough)])
def test_a_loss_has_symbolic_axes(names):
    """Smoothing divides by V; V = 1100 would be two tiles. Against NumPy in float64."""
    symbols = dict(zip(names.split(", "), jax.export.symbolic_shape(names), strict=True))
    m, d, v = (symbols.get(name, size) for name, size in (("m", 5), ("d", 6), ("v", 33)))

    def gradients(x, w, labels):
        def loss(x, w):
            return linear_cross_entropy(x, w, labels, smoothing=0.1, z_loss=0.1).sum

        return jax.value_and_grad(loss, (0, 1))(x, w)

    shapes = shape(m, d), shape(d, v), shape(m, dtype=jnp.int32)
    exported = jax.export.export(jax.jit(gradients))(*shapes)
    for vocabulary in (33, 1100):
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((5, 6)), rng.standard_normal((6, vocabulary))
        labels = rng.integers(0, vocabulary, 5)
        z = x @ w
        lse = np.log(np.exp(z).sum(1))
        loss = lse - 0.9 * z[np.arange(5), labels] - 0.1 * z.mean(1) + 0.1 * lse**2
        p = np.exp(z - lse[:, None])
        g = p * (1 + 0.2 * lse[:, None]) - 0.1 / vocabulary
        g[np.arange(5), labels] -= 0.9
        arrays = x.astype(np.float32), w.astype(np.float32), labels.astype(np.int32)
        value, (dx, dw) = exported.call(*arrays)
        # Sums of at most 1,100 terms in float32.
        np.testing.assert_allclose(value, loss.sum(), rtol=1e-5)
        np.testing.assert_allclose(dx, g @ w.T, atol=1e-4)
        np.testing.assert_allclose(dw, x.T @ g, atol=1e-4)


def test_a_budget_needs_a_known_vocabulary():
    (v,) = jax.export.symbolic_shape("v")

    def loss(x, w, labels):
        return linear_cross_entropy(x, w, labels, budget=2**20).sum

    with pytest.raises(ValueError, match=r"^budget must .*, got budget=1048576 .* Leave it out"):
        jax.export.export(jax.jit(loss))(shape(5, 6), shape(6, v), shape(5, dtype=jnp.int32))
