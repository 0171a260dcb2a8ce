# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.test_util import check_grads

from dovetail_kernels.layers.rope import rope

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 3, 8))
POSITIONS = np.array([[0, 1, 2, 3, 4], [7, 100, 3, 0, 511]])
THETA = 500.0


def turned(x, positions, frequencies, *, interleaved):
    """Pairs as complex numbers times exp(i position frequency), float64."""
    x, dims = np.asarray(x, np.float64), 2 * len(frequencies)
    first = x[..., 0:dims:2] if interleaved else x[..., : dims // 2]
    second = x[..., 1:dims:2] if interleaved else x[..., dims // 2 : dims]
    angle = positions[..., None, None] * np.asarray(frequencies, np.float64)
    pair = (first + 1j * second) * np.exp(1j * angle)
    out = x.copy()
    if interleaved:
        out[..., 0:dims:2], out[..., 1:dims:2] = pair.real, pair.imag
    else:
        out[..., : dims // 2], out[..., dims // 2 : dims] = pair.real, pair.imag
    return out


def powers(dims):
    return THETA ** (-np.arange(0, dims, 2) / dims)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [None, 6])
def test_values_and_gradients(dtype, interleaved, dims):
    options = {"theta": THETA, "dims": dims, "interleaved": interleaved}
    with jax.enable_x64(dtype == "float64"):
        x, g = (jnp.asarray(a.astype(jnp.dtype(dtype))) for a in (X, X[::-1]))
        out, pull = jax.vjp(jax.jit(lambda x: rope(x, POSITIONS, **options)), x)
        got, back = out, pull(g)[0]
    assert got.dtype == back.dtype == dtype
    want = turned(x, POSITIONS, powers(dims or 8), interleaved=interleaved)
    # The transpose of a turn is the turn by the opposite angle.
    want_back = turned(g, -POSITIONS, powers(dims or 8), interleaved=interleaved)
    # Angles up to 511 are rounded, and twice where a power is: 2 × 511 eps; then x to its dtype.
    fine = float(jnp.finfo(np.promote_types(jnp.dtype(dtype), np.float32)).eps)
    bound = 4 * (2 * 511 * fine + float(jnp.finfo(dtype).eps))
    assert abs(np.asarray(got, np.float64) - want).max() < bound
    assert abs(np.asarray(back, np.float64) - want_back).max() < bound
    if dims:
        np.testing.assert_array_equal(got[..., 6:], x[..., 6:])


@pytest.mark.thorough
def test_given_frequencies():
    x, given = jnp.asarray(X, jnp.float32), np.array([0.3, 0.01, 2.0], np.float32)
    want = turned(X, POSITIONS, given, interleaved=False)
    for frequencies in (given, jnp.asarray(given)):
        got = rope(x, POSITIONS, frequencies=frequencies)
        # 1022 radians at most, rounded to float32.
        np.testing.assert_allclose(got, want, rtol=0, atol=4 * 1022 * np.finfo(np.float32).eps)
    same = rope(x, POSITIONS, theta=THETA, dims=6)
    np.testing.assert_allclose(
        rope(x, POSITIONS, frequencies=powers(6).astype(np.float32)), same, rtol=0, atol=1e-3
    )


@pytest.mark.thorough
def test_a_factor_multiplies_what_turns():
    x = jnp.asarray(X, jnp.float32)
    got = rope(x, POSITIONS, theta=THETA, dims=4, factor=1.5)
    plain = rope(x, POSITIONS, theta=THETA, dims=4)
    np.testing.assert_allclose(got[..., :4], 1.5 * plain[..., :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])


@pytest.mark.thorough
def test_positions_of_all_rows_or_of_each():
    x = jnp.asarray(X, jnp.float32)
    one = rope(x, POSITIONS[1], theta=THETA)
    np.testing.assert_array_equal(one, rope(x, POSITIONS[1:], theta=THETA))
    np.testing.assert_array_equal(one[0], rope(x[0], POSITIONS[1], theta=THETA))
    both = rope(x, jnp.asarray(POSITIONS), theta=THETA)
    np.testing.assert_array_equal(both[1], one[1])


@pytest.mark.thorough
def test_scores_depend_on_distance_alone():
    q, k = (jnp.asarray(x, jnp.float32)[:, :1, :1] for x in (X, X[::-1]))
    dots = [
        (rope(q, jnp.array([a]), theta=THETA) * rope(k, jnp.array([b]), theta=THETA)).sum()
        for a, b in ((3, 1), (40, 38))
    ]
    np.testing.assert_allclose(dots[0], dots[1], rtol=1e-4)


@pytest.mark.thorough
def test_forward_mode_and_a_gradient_of_frequencies():
    x, given = jnp.asarray(X[:1], jnp.float32), jnp.asarray([0.3, 0.01], jnp.float32)
    run = jax.jit(lambda x, f: rope(x, POSITIONS[:1], frequencies=f))
    check_grads(run, (x, given), order=1, modes=["fwd", "rev"], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, ("theta=None", "Give one of the two")),
        ({"theta": 1e4, "frequencies": np.ones(2, np.float32)}, ("theta=10000.0", "shape [2]")),
        ({"dims": 4, "frequencies": np.ones(2, np.float32)}, ("dims=4", "frequencies alone")),
        ({"theta": 1e4, "dims": 5}, ("even number", "dims=5", "at most 8")),
        ({"theta": 1e4, "dims": 10}, ("2 to H", "dims=10", "H=8")),
        ({"theta": 1e4, "dims": 0}, ("2 to H", "dims=0")),
        ({"frequencies": np.ones(5, np.float32)}, ("2 to H", "dims=10")),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match="rope needs") as error:
        rope(jnp.asarray(X, jnp.float32), POSITIONS, **options)
    assert [word for word in words if word not in str(error.value)] == []


def test_an_odd_head():
    with pytest.raises(ValueError, match=r"dims=7, H=7.*Use dims of at most 6"):
        rope(jnp.ones((1, 2, 1, 7)), jnp.arange(2), theta=THETA)


@pytest.mark.parametrize("shape", [(), (4,), (3, 5), (2, 1), (1, 2, 5)])
def test_positions_that_do_not_fit(shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"positions \[T\] or \[..., T\]") as error:
        rope(jnp.asarray(X, jnp.float32), np.zeros(shape, int), theta=THETA)
    assert f"x.shape=(2, 5, 3, 8), positions.shape={shape}" in str(error.value)
    assert "Put tokens before heads" in str(error.value)
