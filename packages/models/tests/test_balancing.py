# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Balance of experts by a selection bias, by hand and in a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import (
    Experts,
    Groups,
    LatentAttention,
    Rope,
    cast,
    deepseek_v3,
    load,
    mixtral,
    record_load,
    save,
    track_load,
    update_selection_bias,
)

RATE, COUNT = 0.01, 6


@pytest.fixture(scope="module")
def model(random_model):
    attention = LatentAttention(
        heads=2, q_rank=None, kv_rank=4, nope_dim=4, rope_dim=2, v_dim=4,
        rope=Rope(theta=1e4, interleaved=True),
    )  # fmt: skip
    experts = Experts(
        count=COUNT, top_k=2, hidden=5, score="sigmoid", selection_bias=True,
        groups=Groups(count=3, top_k=2, score="top2"),
    )  # fmt: skip
    sizes = {"vocab_size": 17, "embed": 8, "depth": 3, "mlp": 12, "dense": 1}
    return track_load(random_model(deepseek_v3(attention=attention, experts=experts, **sizes)))


def biases(model):
    return np.stack([np.asarray(la.mlp.router.selection_bias[...]) for la in model.layers[1:]])


def counts(model):
    return np.stack([np.asarray(la.mlp.router.load[...]) for la in model.layers[1:]])


@nnx.jit
def counted(model, tokens):
    *_, taps = model.features(tokens, taps=("router",))
    record_load(model, taps["router"])


@pytest.mark.thorough("it routes for many steps")
@pytest.mark.parametrize("scan", [False, True])
def test_biases_are_those_of_numpy(model, scan):
    model = nnx.clone(model).configure(scan=scan)
    want, rng = biases(model).astype(np.float64), np.random.default_rng(2)
    for _ in range(3):
        batches = rng.integers(0, 17, (2, 3, 7)).astype(np.int32)
        loads = np.zeros((2, COUNT), np.int64)
        for tokens in batches:
            *_, taps = model.features(jnp.asarray(tokens), taps=("router",))
            loads += np.asarray(taps["router"].load)
            counted(model, tokens)
        assert loads.sum() == 2 * batches.size * 2
        np.testing.assert_array_equal(counts(model), loads)
        update_selection_bias(model, rate=RATE)
        want += RATE * np.sign(loads.mean(1, keepdims=True) - loads)
        # Three sums of numbers below 1, each rounded by half of float32's epsilon.
        np.testing.assert_allclose(biases(model), want, atol=3 * 2**-24)
        assert not counts(model).any()


def test_an_expert_at_the_mean_stays(model):
    model = nnx.clone(model)
    router = model.layers[1].mlp.router
    before = np.asarray(router.selection_bias[...])
    router.load.set_value(jnp.array([4, 3, 5, 4, 0, 8], jnp.int32))
    update_selection_bias(model, rate=RATE)
    moved = np.asarray(router.selection_bias[...]) - before
    np.testing.assert_array_equal(np.sign(moved), [0, 1, -1, 0, 1, -1])


@pytest.mark.thorough
def test_a_forward_pass_counts_nothing_and_files_hold_no_counts(model, tmp_path):
    tokens = jnp.ones((1, 4), jnp.int32)
    jax.jit(lambda x: model(x))(tokens)
    assert not counts(model).any()
    save(model, tmp_path / "m")
    assert load(tmp_path / "m").layers[1].mlp.router.load is None
    assert cast(model, jnp.bfloat16).layers[1].mlp.router.load.dtype == jnp.int32


@pytest.mark.parametrize(
    "call, parts",
    [
        (
            lambda m, r: track_load(r(mixtral(vocab_size=5, embed=4, depth=1, heads=2, mlp=3))),
            ["moves a selection bias", "no router has one", "Experts(selection_bias=True)"],
        ),
        (
            lambda m, r: update_selection_bias(r(m.config), rate=RATE),
            ["must count its load", "one without counts", "track_load(model)"],
        ),
        (
            lambda m, r: update_selection_bias(m, rate=0.0),
            ["rate must be positive", "rate=0.0", "Use rate=0.001"],
        ),
    ],
    ids=["no bias", "no counts", "rate"],
)
def test_bad_calls_are_refused(model, random_model, call, parts):
    with pytest.raises(ValueError, match=parts[0]) as error:
        call(model, random_model)
    assert all(part in str(error.value) for part in parts), error.value
