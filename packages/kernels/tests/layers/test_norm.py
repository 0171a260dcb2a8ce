# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.test_util import check_grads

from dovetail_kernels.layers.norm import layer_norm, rms_norm

EPS = 1e-5
RNG = np.random.default_rng(0)
# Far from 0, so that a variance by the difference of two means would lose its digits.
X = RNG.standard_normal((3, 4, 10)) * 2 + 50
RESIDUAL, G = RNG.standard_normal((2, 3, 4, 10))
SCALE, BIAS = RNG.standard_normal((2, 10))


def rounded(array, dtype):
    """As `dtype` holds it, in float64."""
    return array.astype(jnp.dtype(dtype)).astype(np.float64)


def expected(x, g, scale, *, centred):
    """(normed, gradients of x and of scale), float64; Ba et al., and without the mean for RMS."""
    y = x - x.mean(-1, keepdims=True) if centred else x
    inverse = 1 / np.sqrt((y * y).mean(-1, keepdims=True) + EPS)
    normed, h = y * inverse, g * scale
    dx = inverse * (h - normed * (h * normed).mean(-1, keepdims=True))
    if centred:
        dx = dx - dx.mean(-1, keepdims=True)
    return normed * scale, dx, (g * normed).sum((0, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("centred", [False, True])
def test_values_and_gradients(dtype, centred):
    with jax.enable_x64(dtype == "float64"):
        x, g, scale = (jnp.asarray(a.astype(jnp.dtype(dtype))) for a in (X, G, SCALE))
        bias = jnp.asarray(BIAS.astype(jnp.dtype(dtype)))

        def function(x, scale):
            if centred:
                return layer_norm(x, scale, bias, eps=EPS)
            return rms_norm(x, scale, eps=EPS)

        out, pull = jax.vjp(jax.jit(function), x, scale)
        got = (out, *pull(g))
    wide = [rounded(a, dtype) for a in (X, G, SCALE)]
    want = list(expected(*wide, centred=centred))
    want[0] = want[0] + (rounded(BIAS, dtype) if centred else 0)
    # Sums of 10 or 12 terms in float32 (float64) of numbers as large as 60, then one rounding.
    fine = float(jnp.finfo(np.promote_types(jnp.dtype(dtype), np.float32)).eps)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == dtype
        bound = 12 * 60 * fine + float(jnp.finfo(dtype).eps)
        error = abs(np.asarray(one, np.float64) - other).max()
        assert error <= bound * max(1, abs(other).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_residual_is_added_first(dtype):
    x, residual = (jnp.asarray(a.astype(jnp.dtype(dtype))) for a in (X, RESIDUAL))
    scale, bias = jnp.asarray(SCALE, jnp.float32), jnp.asarray(BIAS, jnp.float32)
    normed, stream = rms_norm(x, scale, eps=EPS, residual=residual)
    np.testing.assert_array_equal(stream, x + residual)
    assert stream.dtype == normed.dtype == dtype
    np.testing.assert_array_equal(normed, rms_norm(x + residual, scale, eps=EPS))
    normed, stream = layer_norm(x, scale, bias, eps=EPS, residual=residual)
    np.testing.assert_array_equal(stream, x + residual)
    np.testing.assert_array_equal(normed, layer_norm(x + residual, scale, bias, eps=EPS))


def test_a_scale_less_one():
    x, scale = jnp.asarray(X, jnp.float32), jnp.asarray(SCALE, jnp.float32)
    for wide in (True, False):
        got = rms_norm(x, scale, eps=EPS, unit_offset=True, wide=wide)
        want = rms_norm(x, scale + 1, eps=EPS, wide=wide)
        np.testing.assert_array_equal(got, want)


def test_where_the_product_with_scale_is_rounded():
    x, scale = jnp.asarray(X, jnp.bfloat16), jnp.asarray(SCALE, jnp.float32)
    narrow, wide = (rms_norm(x, scale, eps=EPS, wide=one) for one in (False, True))
    normed = rms_norm(x, None, eps=EPS)
    np.testing.assert_array_equal(narrow, normed * scale.astype(jnp.bfloat16)[None, None])
    exact = expected(rounded(X, "bfloat16"), G, np.asarray(scale, np.float64), centred=False)[0]
    # One rounding against three: half a unit in the last place is 2**-8 at most.
    assert (abs(np.asarray(wide, np.float64) - exact) <= 1.01 * 2.0**-8 * abs(exact)).all()
    assert (abs(np.asarray(narrow, np.float64) - exact) > 1.01 * 2.0**-8 * abs(exact)).any()


def test_without_scale_or_bias():
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_array_equal(rms_norm(x, None, eps=EPS), rms_norm(x, jnp.ones(10), eps=EPS))
    plain = layer_norm(x, jnp.ones(10), jnp.zeros(10), eps=EPS)
    np.testing.assert_array_equal(layer_norm(x, None, None, eps=EPS), plain)


def test_eps_is_inside_the_root():
    # A row of zeros gives 0; one of 1e-3 is far from normal where eps is as large as its square.
    x = jnp.asarray([[0.0] * 4, [1e-3] * 4])
    got = rms_norm(x, None, eps=1e-6)
    np.testing.assert_allclose(got, [[0.0] * 4, [0.5**0.5] * 4], rtol=1e-6)


def test_numbers_whose_squares_float16_cannot_hold():
    x = jnp.full((2, 8), 1000.0, jnp.float16)
    np.testing.assert_array_equal(rms_norm(x, None, eps=EPS), np.ones((2, 8)))


@pytest.mark.thorough
def test_forward_mode_vmap_checkpoint_and_repeated_bits():
    x, scale = jnp.asarray(X, jnp.float32), jnp.asarray(SCALE, jnp.float32)
    run = jax.jit(lambda x, scale: rms_norm(x, scale, eps=EPS))
    check_grads(run, (x[0] - 50, scale), order=1, modes=["fwd", "rev"], rtol=2e-2)
    np.testing.assert_array_equal(run(x, scale), run(x, scale))
    np.testing.assert_allclose(jax.vmap(run, (0, None))(x, scale), run(x, scale), rtol=1e-6)
    kept, again = (
        jax.grad(lambda x, f=f: (f(x, scale) ** 3).sum()) for f in (run, jax.checkpoint(run))
    )
    np.testing.assert_allclose(kept(x), again(x), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x = jnp.ones((2, 10))
    for call in (
        lambda: rms_norm(x, jnp.ones(9), eps=EPS),
        lambda: layer_norm(x, jnp.ones(9), None, eps=EPS),
    ):
        with pytest.raises(ValueError, match=r"needs scale \[D\] .*scale.shape=\(9,\).*Give one"):
            call()
    with pytest.raises(ValueError, match=r"layer_norm needs bias \[D\].*bias.shape=\(1,\)"):
        layer_norm(x, None, jnp.ones(1), eps=EPS)
    for residual in (jnp.ones((2, 1)), jnp.ones((2, 10), jnp.bfloat16)):
        with pytest.raises(ValueError, match=r"needs residual of x's shape and dtype") as error:
            rms_norm(x, None, eps=EPS, residual=residual)
        assert f"residual {residual.dtype}{list(residual.shape)}" in str(error.value)
        assert "residual.astype(x.dtype)" in str(error.value)
