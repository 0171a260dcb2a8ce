# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.test_util import check_grads

from dovetail_kernels.layers.glu import glu

RNG = np.random.default_rng(0)
GATE, UP, G = RNG.standard_normal((3, 4, 7, 9)) * 3

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


FUNCTIONS = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_values_and_gradients(activation, dtype):
    with jax.enable_x64(dtype == "float64"):
        gate, up, g = (jnp.asarray(a.astype(jnp.dtype(dtype))) for a in (GATE, UP, G))
        run = jax.jit(lambda gate, up: glu(gate, up, activation=activation))
        out, pull = jax.vjp(run, gate, up)
        got = (out, *pull(g))
    gate, up, g = (np.asarray(a, np.float64) for a in (gate, up, g))
    act, step = FUNCTIONS[activation], 1e-5
    slope = (act(gate + step) - act(gate - step)) / (2 * step)
    want = (act(gate) * up, g * slope * up, g * act(gate))
    fine = float(jnp.finfo(np.promote_types(jnp.dtype(dtype), np.float32)).eps)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == dtype
        error = abs(np.asarray(one, np.float64) - other)
        # A few roundings of numbers of up to 100, the differences' step² and eps / step, and the
        # result's own rounding.
        assert (error <= 100 * (8 * fine + 1e-9) + float(jnp.finfo(dtype).eps) * abs(other)).all()


@pytest.mark.thorough
def test_the_form_of_gpt_oss():
    gate, up = (jnp.asarray(a * 4, jnp.float32) for a in (GATE, UP))
    got = glu(gate, up, alpha=1.702, limit=7.0, offset=1.0)
    left, right = np.minimum(GATE * 4, 7), np.clip(UP * 4, -7, 7)
    want = (right + 1) * left * sigmoid(1.702 * left)
    assert abs(GATE * 4).max() > 7
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_what_a_limit_cuts_has_no_gradient():
    gate, up = jnp.asarray([-9.0, 9.0, 1.0, 1.0]), jnp.asarray([1.0, 1.0, 9.0, -9.0])
    d_gate, d_up = jax.grad(lambda *a: glu(*a, limit=7.0).sum(), (0, 1))(gate, up)
    assert ((d_gate == 0) == jnp.asarray([False, True, False, False])).all()
    assert ((d_up == 0) == jnp.asarray([False, False, True, True])).all()


def test_the_backward_pass_keeps_gate_and_up_alone():
    gate, up = jnp.asarray(GATE, jnp.bfloat16), jnp.asarray(UP, jnp.bfloat16)
    _, pull = jax.vjp(lambda gate, up: glu(gate, up), gate, up)
    kept = [leaf for leaf in jax.tree.leaves(pull) if getattr(leaf, "size", 0) >= gate.size]
    assert sorted(str(leaf.dtype) for leaf in kept) == ["bfloat16", "bfloat16"]


@pytest.mark.thorough
def test_forward_mode_vmap_and_repeated_bits():
    gate, up = jnp.asarray(GATE, jnp.float32), jnp.asarray(UP, jnp.float32)
    run = jax.jit(lambda gate, up: glu(gate, up))
    check_grads(run, (gate[0], up[0]), order=1, modes=["fwd", "rev"], rtol=2e-2)
    np.testing.assert_array_equal(run(gate, up), run(gate, up))
    np.testing.assert_allclose(jax.vmap(run)(gate, up), run(gate, up), rtol=1e-6)


def test_arguments_that_do_not_fit(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    gate = jnp.ones((2, 3))
    for up in (jnp.ones((2, 1)), jnp.ones((2, 3), jnp.bfloat16)):
        with pytest.raises(ValueError, match="gate and up of one shape and dtype") as error:
            glu(gate, up)
        assert f"gate float32[2, 3], up {up.dtype}{list(up.shape)}" in str(error.value)
        assert "Cast or reshape" in str(error.value)
    with pytest.raises(ValueError, match=r"activation among \['silu'.*got activation='tanh'. Use"):
        glu(gate, gate, activation="tanh")
    with pytest.raises(ValueError, match=r"activation='silu', got alpha=2.0, activation='relu'"):
        glu(gate, gate, activation="relu", alpha=2.0)
    for limit in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"above 0, got limit={limit}. Leave it out"):
            glu(gate, gate, limit=limit)
