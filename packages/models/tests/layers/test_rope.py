# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_models import LinearScaling, Llama3Scaling, Rope, YarnScaling
from dovetail_models.layers.rope import frequencies, rope_angles, rotate


def test_frequencies():
    want = [10_000.0 ** (-2 * i / 10) for i in range(5)]
    np.testing.assert_allclose(frequencies(Rope(theta=1e4), 10), want, rtol=3e-7)


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones():
    scaling = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192
    )
    plain = frequencies(Rope(theta=5e5), 128)
    scaled = frequencies(Rope(theta=5e5, scaling=scaling), 128)
    wavelength = 2 * np.pi / plain.astype(np.float64)
    short, long = wavelength < 2048, wavelength > 8192
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-6)
    between = ~short & ~long
    assert between.sum() >= 5
    assert (np.diff(scaled) < 0).all()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 0.03)])
def test_scores_depend_on_the_distance_alone(dtype, tolerance):
    rng = np.random.default_rng(1)
    q, k = (jnp.asarray(rng.standard_normal((1, 1, 2, 10)), dtype) for _ in range(2))

    def score(query, key):
        turned = [
            rotate(x, rope_angles(Rope(theta=100.0), 10, positions=jnp.array([[p]])))
            for x, p in ((q, query), (k, key))
        ]
        assert turned[0].dtype == dtype
        wide = [x.astype(jnp.float32) for x in turned]
        return np.asarray((wide[0] * wide[1]).sum(-1))

    np.testing.assert_allclose(score(9, 4), score(25, 20), atol=tolerance, rtol=tolerance)
    assert np.abs(score(9, 4) - score(9, 5)).max() > 0.1


@pytest.mark.thorough
def test_element_i_pairs_with_element_i_plus_half():
    x = jnp.zeros((1, 1, 1, 6)).at[..., 1].set(1.0)
    cos, sin = rope_angles(Rope(theta=8.0), 6, positions=jnp.array([[1]]))
    got = np.asarray(rotate(x, (cos, sin)))[0, 0, 0]
    radians = 8.0 ** (-2 / 6)
    np.testing.assert_allclose(got, [0, np.cos(radians), 0, 0, np.sin(radians), 0], atol=1e-6)


def test_linear_scaling_divides_every_frequency():
    plain = frequencies(Rope(theta=1e4), 10).astype(np.float64)
    scaled = frequencies(Rope(theta=1e4, scaling=LinearScaling(factor=8.0)), 10)
    np.testing.assert_allclose(scaled, plain / 8, rtol=1e-7)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_keeps_fast_pairs_slows_slow_ones_and_ramps_between(truncate):
    # DeepSeek-V3's numbers.
    scaling = YarnScaling(factor=40.0, original_length=4096, truncate=truncate)
    plain = frequencies(Rope(theta=1e4), 64).astype(np.float64)
    scaled = frequencies(Rope(theta=1e4, scaling=scaling), 64)
    turns = 4096 * plain / (2 * np.pi)
    # Whole indices widen the ramp by less than a pair on either side.
    step = plain[0] / plain[1] if truncate else 1.0
    fast, slow = turns > 32 * step, turns < 1 / step
    assert fast.sum() >= 9
    assert slow.sum() >= 8
    np.testing.assert_allclose(scaled[fast], plain[fast], rtol=1e-6)
    np.testing.assert_allclose(scaled[slow], plain[slow] / 40, rtol=1e-6)
    keep = (scaled / plain - 1 / 40) / (1 - 1 / 40)
    between = ~fast & ~slow
    # A line over the index of the pair: equal steps, but for the ends.
    steps = np.diff(keep[between])[1:-1]
    np.testing.assert_allclose(steps, steps[0], rtol=1e-4)
    assert steps[0] < -0.05


def test_yarn_multiplies_cos_and_sin():
    positions = jnp.arange(3)[None]

    def length(**numbers):
        scaling = YarnScaling(factor=40.0, original_length=4096, **numbers)
        cos, sin = rope_angles(Rope(theta=1e4, scaling=scaling), 8, positions=positions)
        return np.sqrt(np.asarray(cos) ** 2 + np.asarray(sin) ** 2)

    # 2309.00071, eq. 15: 0.1 ln(s) + 1; DeepSeek divides by mscale_all_dim's.
    np.testing.assert_allclose(length(), 0.1 * np.log(40) + 1, rtol=1e-6)
    np.testing.assert_allclose(length(mscale=0.7, mscale_all_dim=0.7), 1.0, rtol=1e-6)
    want = (0.05 * np.log(40) + 1) / (0.1 * np.log(40) + 1)
    np.testing.assert_allclose(length(mscale=0.5, mscale_all_dim=1.0), want, rtol=1e-6)
    np.testing.assert_allclose(length(attention_factor=1.25), 1.25, rtol=1e-6)


def test_interleaved_element_2i_pairs_with_2i_plus_1():
    x = jnp.zeros((1, 1, 1, 6)).at[..., 2].set(1.0)
    angles = rope_angles(Rope(theta=8.0, interleaved=True), 6, positions=jnp.array([[1]]))
    got = np.asarray(rotate(x, angles, interleaved=True))[0, 0, 0]
    radians = 8.0 ** (-2 / 6)
    np.testing.assert_allclose(got, [0, 0, np.cos(radians), np.sin(radians), 0, 0], atol=1e-6)
