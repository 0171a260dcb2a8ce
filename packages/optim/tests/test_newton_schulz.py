# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz against the SVD, and its polynomials of one number, in float64."""

import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_optim.matrix.newton_schulz import coefficients, orthogonalize

SHAPES = [(5, 5), (4, 9), (11, 3), (2, 3, 6, 4), (1, 7), (7, 1)]


def jordan(x):
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    return x


def polar_express(x, steps=5):
    """Algorithm 1 of arXiv 2505.16932, of one number of a matrix of norm 1."""
    table = [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    ]
    x = x / 1.01
    for a, b, c in table[:steps]:
        x = a * (x / 1.01) + b * (x / 1.01) ** 3 + c * (x / 1.01) ** 5
    return 1.875 * x - 1.25 * x**3 + 0.375 * x**5 if steps > 7 else x


SCALAR = {"jordan": jordan, "polar_express": polar_express, "exact": lambda x: polar_express(x, 8)}


def oracle(x, scalar):
    """U p(Σ/‖x‖) Vᵀ."""
    u, s, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    s = s / np.linalg.norm(s, axis=-1, keepdims=True)
    return (u * scalar(s)[..., None, :]) @ v


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ns", list(SCALAR))
def test_the_polynomial_acts_on_singular_values(ns, shape):
    x = random(*shape)
    found = orthogonalize(jnp.asarray(x), ns=ns, dtype=jnp.float32)
    # A rounding error grows with the slopes of the polynomials at 0: 485 and 1040 times 6e-8.
    np.testing.assert_allclose(found, oracle(x, SCALAR[ns]), atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_is_the_polar_factor(shape):
    x = random(*shape, seed=1)
    found = orthogonalize(jnp.asarray(x), ns="exact", dtype=jnp.float32)
    # The last steps converge from wherever rounding has left the values: float32's few eps remain.
    np.testing.assert_allclose(found, oracle(x, np.ones_like), atol=3e-5)


def test_rows_of_ones_own():
    x = random(4, 6)
    found = orthogonalize(jnp.asarray(x), ns=[(1.5, -0.5, 0.0)] * 2, dtype=jnp.float32)

    def cubic(s):
        for _ in range(2):
            s = 1.5 * s - 0.5 * s**3
        return s

    np.testing.assert_allclose(found, oracle(x, cubic), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("ns, low, high", [("jordan", 0.47, 1.21), ("polar_express", 0.84, 1.13)])
def test_bands_of_the_docstring(ns, low, high):
    s = np.geomspace(1e-3, 1, 10_000)
    assert low <= SCALAR[ns](s).min() < low + 0.01
    assert high - 0.01 < SCALAR[ns](s).max() <= high
    # Singular values from 1 down to 1e-2 of the norm, in bfloat16: each product rounds by 2^-8, and
    # five steps of three products each stay within 15 times that.
    u, _, v = np.linalg.svd(random(40, 24, seed=2), full_matrices=False)
    x = (u * np.geomspace(1, 1e-2, 24)) @ v
    found = orthogonalize(jnp.asarray(x, jnp.float32), ns=ns)
    values = np.linalg.svd(np.asarray(found, np.float64), compute_uv=False)
    assert values.min() > low - 0.06
    assert values.max() < high + 0.06


def test_exact_converges_from_a_thousandth():
    assert abs(SCALAR["exact"](np.geomspace(1e-3, 1, 10_000)) - 1).max() < 1e-7


@pytest.mark.thorough
@pytest.mark.parametrize("ns", list(SCALAR))
def test_nothing_in_nothing_out(ns):
    x = np.stack([random(3, 5), np.zeros((3, 5), np.float32)])
    found = orthogonalize(jnp.asarray(x), ns=ns)
    assert not np.asarray(found[1]).any()
    np.testing.assert_array_equal(found[0], orthogonalize(jnp.asarray(x[:1]), ns=ns)[0])


@pytest.mark.thorough
def test_the_size_of_a_matrix_does_not_matter_but_below_1e_7():
    x = random(4, 3)
    for size in (1e-6, 1e30):
        big = jnp.asarray(x * np.float32(size))
        found = orthogonalize(big, ns="exact", dtype=jnp.float32)
        np.testing.assert_allclose(found, oracle(x, np.ones_like), atol=3e-5)
    x = x / np.linalg.norm(x)
    found = orthogonalize(jnp.asarray(x * np.float32(1e-10)), dtype=jnp.float32)
    # All is as a matrix of norm 1e-3: linear in it but for the cubic terms, which take up to a
    # tenth of the 0.48 that the largest value grows to.
    np.testing.assert_allclose(found, 3.4445**5 * 1e-3 * x, rtol=0.1, atol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("inside", [jnp.bfloat16, jnp.float32])
def test_the_dtype_comes_back(dtype, inside):
    x = jnp.asarray(random(3, 5), dtype)
    found = orthogonalize(x, ns="exact", dtype=inside)
    assert found.dtype == dtype
    # Each step of bfloat16 rounds products by 2^-8, which the next ones take for singular values.
    np.testing.assert_allclose(
        np.asarray(found, np.float32), oracle(np.asarray(x, np.float32), np.ones_like), atol=0.05
    )


def test_float64():
    with jax.enable_x64(True):
        x = np.random.default_rng(3).standard_normal((6, 4))
        found = orthogonalize(jnp.asarray(x), ns="exact", dtype=jnp.float64)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, oracle(x, np.ones_like), atol=1e-12)


@pytest.mark.parametrize("shape", [(20, 3), (3, 20)])
def test_the_small_side_is_multiplied(shape):
    jaxpr = jax.make_jaxpr(lambda x: orthogonalize(x))(jnp.zeros(shape))
    shapes = {
        v.aval.shape for e in jaxpr.eqns for v in e.outvars if e.primitive.name == "dot_general"
    }
    text = str(jaxpr)
    assert "20,20" not in text
    assert "3,3" in text
    assert (20, 20) not in shapes


@pytest.mark.parametrize(
    "ns, got",
    [
        ("newton", r"ns must be one of \['jordan', 'polar_express', 'exact'\].*got ns='newton'"),
        ((), r"at least one row of three numbers.*got ns=\(\)"),
        (
            ((1.0, 2.0),),
            r"three numbers \(a, b, c\).*got ns=\(\(1.0, 2.0\),\); write ns=\(\(3.4445",
        ),
    ],
)
def test_coefficients_are_refused(ns, got):
    with pytest.raises(ValueError, match=got):
        coefficients(ns)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_less_than_a_matrix_is_refused(monkeypatch, shape):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    message = re.escape(f"got x of shape {shape}; write x[None]")
    with pytest.raises(ValueError, match=message):
        orthogonalize(jnp.ones(shape))
