# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Replay of a routing: the experts of each token, tapped from one run and given to another."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import (
    Experts,
    Groups,
    LatentAttention,
    Remat,
    Rope,
    deepseek_v3,
    dense_kv,
    llama,
    mixtral,
)

LATENT = LatentAttention(
    heads=2, q_rank=None, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=6, rope=Rope(theta=3e4)
)
EXPERTS = Experts(
    count=8,
    top_k=3,
    hidden=4,
    shared=4,
    score="sigmoid",
    scale=2.5,
    selection_bias=True,
    groups=Groups(count=4, top_k=2, score="top2"),
)
SIZES = {"vocab_size": 29, "embed": 12, "depth": 3, "mlp": 10}
CONFIGS = {
    "mixtral": mixtral(**SIZES, heads=6, kv_heads=2, experts=5, top_k=2, window=4),
    "deepseek_v3": deepseek_v3(**SIZES, dense=1, attention=LATENT, experts=EXPERTS),
}
ROUTED = {"mixtral": (3, 2), "deepseek_v3": (2, 3)}  # layers with experts, experts per token
TOKENS = np.random.default_rng(0).integers(0, 29, (2, 7), np.int32)
families = pytest.mark.parametrize("family", CONFIGS)


@pytest.fixture(scope="module")
def made(random_model):
    models = {name: random_model(config) for name, config in CONFIGS.items()}
    return models.__getitem__


@nnx.jit
def run(model, expert_ids=None):
    taps = ("experts", "router")
    x, _, tapped = model.features(TOKENS, taps=taps, expert_ids=expert_ids)
    return model.head(x), tapped["experts"], tapped["router"]


@nnx.jit
def gradients(model, expert_ids=None):
    return nnx.grad(lambda model: model(TOKENS, expert_ids=expert_ids).var())(model)


def other_routers(model):
    """The model with other routers: another choice, and other weights."""
    rng = np.random.default_rng(5)
    other = nnx.clone(model)
    for block in other.layers:
        if hasattr(block.mlp, "router"):
            kernel = block.mlp.router.kernel
            kernel.set_value(jnp.asarray(rng.standard_normal(kernel.shape), jnp.float32))
    return other


@pytest.mark.thorough
@families
@pytest.mark.parametrize("options", [{}, {"scan": True, "remat": Remat()}], ids=["plain", "scan"])
def test_a_tapped_routing_gives_the_same_bits(family, options, made):
    model = made(family).configure(**options)
    want, ids, balance = run(model)
    layers, top_k = ROUTED[family]
    assert (ids.shape, ids.dtype) == ((layers, 2, 7, top_k), jnp.int32)
    count = balance.load.shape[1]
    loads = [np.bincount(layer.ravel(), minlength=count) for layer in np.asarray(ids)]
    np.testing.assert_array_equal(balance.load, loads)
    got, again, _ = run(model, ids)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(again, ids)


@pytest.mark.thorough
@families
def test_another_routing_is_followed(family, made):
    model = made(family)
    logits, own, _ = run(model)
    _, ids, _ = run(other_routers(model))
    assert (ids != own).any()
    got, again, _ = run(model, ids)
    np.testing.assert_array_equal(again, ids)
    assert np.abs(got - logits).max() > 1e-3
    scanned, _, _ = run(model.configure(scan=True), ids)
    # One program's fusions against another's: a few roundings of float32.
    np.testing.assert_allclose(scanned, got, rtol=0, atol=1e-5 * np.abs(got).max())


@pytest.mark.thorough
def test_a_routing_stands_for_the_bias_that_selected_it(made):
    """A selection bias alters no weight: the routing under an old one gives its bits."""
    model = made("deepseek_v3")
    rollout = nnx.clone(model)
    for block in rollout.layers:
        if hasattr(block.mlp, "router"):
            bias = block.mlp.router.selection_bias
            bias.set_value(jnp.linspace(2.0, -2.0, bias.shape[0]))
    want, ids, _ = run(rollout)
    assert (np.asarray(run(model)[1]) != ids).any()
    np.testing.assert_array_equal(run(model, ids)[0], want)


@pytest.mark.thorough
@families
def test_gradients_flow_through_the_weights(family, made):
    model = made(family)
    _, ids, _ = run(model)
    own, replayed = gradients(model), gradients(model, ids)
    for (path, want), (_, got) in zip(*map(nnx.to_flat_state, (own, replayed)), strict=True):
        scale = np.abs(want[...]).max()
        # The same float32 sums, fused differently.
        np.testing.assert_allclose(got[...], want[...], atol=1e-5 * scale, err_msg=str(path))
        assert scale > 0 or "experts" in path  # an expert may meet no token


@pytest.mark.thorough
@families
def test_a_cache_takes_and_gives_routings(family, made):
    model = made(family)
    want, ids, _ = run(model)

    @nnx.jit
    def decode(model, tokens, ids, kv, positions):
        options = {"kv": kv, "positions": positions, "expert_ids": ids}
        x, kv, tapped = model.features(tokens, taps=("experts",), **options)
        return model.head(x), kv, tapped["experts"]

    kv = dense_kv(model.config, rows=2, length=7)
    found = []
    for start, stop in ((0, 5), (5, 7)):
        where = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
        part = ids[:, :, start:stop]
        logits, kv, again = decode(model, TOKENS[:, start:stop], part, kv, where)
        np.testing.assert_array_equal(again, part)
        found.append(logits)
    # float32 products in another order.
    bound = 2e-5 * np.abs(want).max()
    np.testing.assert_allclose(np.concatenate(found, axis=1), want, rtol=0, atol=bound)


def test_what_is_no_routing_of_the_model_is_refused(made, random_model):
    model = made("mixtral")
    ids = np.zeros((3, 2, 7, 2), np.int32)
    with pytest.raises(ValueError, match="experts per token") as error:
        model.features(TOKENS, expert_ids=ids[:2])
    assert "shape=(2, 2, 7, 2) for (3, 2, 7, 2)" in str(error.value)
    assert "taps=('experts',)" in str(error.value)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=r"must be in \[0, experts\)") as error:
            model.features(TOKENS, expert_ids=np.where(np.arange(7)[:, None] == 3, wrong, ids))
        assert "with experts=5" in str(error.value)
        assert "Fill the places of padding" in str(error.value)
    dense = random_model(llama(**SIZES, heads=2))
    with pytest.raises(ValueError, match="need a model with experts") as error:
        dense.features(TOKENS, expert_ids=ids)
    assert "Leave expert_ids out" in str(error.value)
    with pytest.raises(ValueError, match="or 'router' or 'experts' in a model with experts"):
        dense.features(TOKENS, taps=("experts",))
