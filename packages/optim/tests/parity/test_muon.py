# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Muon against torch.optim.Muon, and Newton-Schulz against what it calls."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim.matrix.muon import muon

torch = pytest.importorskip("torch", minversion="2.9")

pytestmark = pytest.mark.parity
STEPS = 20
SHAPES = {"wide": (6, 17), "tall": (13, 5), "square": (8, 8)}
RNG = np.random.default_rng(0)
START = {k: RNG.standard_normal(s).astype(np.float32) for k, s in SHAPES.items()}
GRADS = [{k: RNG.standard_normal(s).astype(np.float32) for k, s in SHAPES.items()}] * 2 + [
    {k: RNG.standard_normal(s).astype(np.float32) for k, s in SHAPES.items()}
    for _ in range(STEPS - 2)
]


def theirs(rates, dtype, **settings):
    """Kernels are (in, out) here and weights (out, in) there."""
    params = {k: torch.nn.Parameter(torch.tensor(x.T, dtype=dtype)) for k, x in START.items()}
    optimizer = torch.optim.Muon(list(params.values()), lr=rates[0], **settings)
    for rate, grads in zip(rates, GRADS, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for k, p in params.items():
            p.grad = torch.tensor(grads[k].T, dtype=dtype)
        optimizer.step()
    return {k: p.detach().double().numpy().T for k, p in params.items()}


def ours(tx, dtype):
    params = {k: jnp.asarray(x, dtype) for k, x in START.items()}
    state = tx.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for grads in GRADS:
        grads = {k: jnp.asarray(g, dtype) for k, g in grads.items()}
        params, state = step(params, state, grads)
    return params


@pytest.mark.parametrize("scale, torchs", [("spectral", "original"), ("rms", "match_rms_adamw")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_trajectory_in_float64(monkeypatch, scale, torchs, nesterov):
    """Torch iterates in bfloat16 alone; without that rounding both say the same to float64."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    rates = [0.02 * (1 - t / STEPS) for t in range(STEPS)]
    settings = {"weight_decay": 0.1, "nesterov": nesterov, "momentum": 0.9}
    expected = theirs(rates, torch.float64, adjust_lr_fn=torchs, **settings)
    with jax.enable_x64(True):
        schedule = lambda step: 0.02 * (1 - step.astype(jnp.float64) / STEPS)  # noqa: E731
        found = ours(muon(schedule, scale=scale, dtype=jnp.float64, **settings), jnp.float64)
        for k in SHAPES:
            np.testing.assert_allclose(found[k], expected[k], atol=1e-11, err_msg=k)


def test_the_trajectory_with_its_bfloat16():
    expected = theirs([0.02] * STEPS, torch.float32, weight_decay=0.1)
    found = ours(muon(0.02, weight_decay=0.1), jnp.float32)
    for k in SHAPES:
        moved = np.linalg.norm(expected[k] - START[k])
        # The same roundings in another order: some per cent of the small singular values a step.
        assert np.linalg.norm(found[k] - expected[k]) < 0.05 * moved, k
