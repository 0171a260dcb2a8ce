# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Exports, loads and calls under a guard against implicit transfers of the whole process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import Tensor, export, load, measure_costs, verify


@pytest.fixture
def _guarded():
    jax.config.update("jax_transfer_guard", "disallow")  # for all threads, as a program sets it
    yield
    jax.config.update("jax_transfer_guard", "allow")


@pytest.mark.usefixtures("_guarded")
@pytest.mark.capability("bundles work under a guard against transfers")
@pytest.mark.parametrize("width", [200, 256])
def test_a_bundle_is_made_loaded_and_called_under_a_guard_against_transfers(tmp_path, width):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(width, width)).astype(np.float32) / width
    x = rng.normal(size=(3, width)).astype(np.float32)
    bundle = export(
        lambda params, *, x: {"y": jnp.tanh(x @ params["w"]) * params["scale"]},
        {"w": w, "scale": np.float32(2)},
        inputs={"x": Tensor(("batch", width), "float32")},
        example={"x": x},
        batch_sizes=(1, 4),
    )
    bundle.save(tmp_path / "m")
    verify(tmp_path / "m")
    model = load(tmp_path / "m")
    expected = 2 * np.tanh(x.astype(np.float64) @ w)
    # Sums of `width` products of float32.
    np.testing.assert_allclose(model(x=x)["y"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(x=x[:1])["y"], expected[:1], rtol=1e-5, atol=1e-6)
    assert set(measure_costs(model)) == {1, 4}
