# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import abstract, bert, qwen3
from dovetail_models.surgery.layers import relayer

BASE = qwen3(vocab_size=31, embed=12, depth=3, heads=2, kv_heads=1, head_dim=6, mlp=20)
TOKENS = jnp.asarray(np.random.default_rng(4).integers(0, 31, (2, 9), np.int32))


def windowed():
    """BASE with another window in each layer, so that their order is seen in the config."""
    layers = [
        dataclasses.replace(la, attention=dataclasses.replace(la.attention, window=window))
        for la, window in zip(BASE.layers, (None, 4, 3), strict=True)
    ]
    return dataclasses.replace(BASE, layers=tuple(layers))


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(windowed())


def test_the_identity_changes_no_bit(model, jitted):
    same = relayer(model, range(3))
    assert same.config == model.config
    assert nnx.graphdef(same) == nnx.graphdef(model)
    np.testing.assert_array_equal(jitted(same, TOKENS), jitted(model, TOKENS))


@pytest.mark.thorough
@pytest.mark.parametrize("order", [[2, 0], [0, 1, 1, 2], [1, 1]])
def test_layers_come_in_the_order(model, jitted, oracle, random_model, leaves, order):
    new = relayer(model, order)
    assert model.config == windowed()
    assert len(model.layers) == 3
    windows = [None, 4, 3]
    assert [la.attention.window for la in new.config.layers] == [windows[i] for i in order]
    # The same model written by hand: a config of these layers, and each leaf copied by name.
    by_hand = random_model(
        dataclasses.replace(BASE, layers=tuple(windowed().layers[i] for i in order))
    )
    old = leaves(model)
    for path, param in nnx.to_flat_state(nnx.state(by_hand, nnx.Param)):
        at = ("layers", order[path[1]], *path[2:]) if path[0] == "layers" else path
        param[...] = jnp.asarray(old[".".join(map(str, at))])
    assert new.config == by_hand.config
    want = oracle(by_hand, TOKENS)
    np.testing.assert_allclose(jitted(new, TOKENS), want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_repeated_layers_are_trained_apart(model, jitted):
    new = relayer(model, [0, 1, 1])
    first, second = new.layers[1].attn.q.kernel, new.layers[2].attn.q.kernel
    assert first is not second
    second[...] = 0 * second[...]
    assert jnp.abs(first[...]).min() > 0
    assert jnp.abs(model.layers[1].attn.q.kernel[...]).min() > 0


def test_a_model_of_repeated_layers_can_be_donated(model):
    graph, state = nnx.split(relayer(model, [0, 1, 1, 0]))
    state = jax.tree.map(jnp.copy, state)  # keep the fixture's arrays
    graph, state = nnx.split(relayer(nnx.merge(graph, state), [1, 1, 2, 3]))
    doubled = jax.jit(lambda s: jax.tree.map(lambda x: 2 * x, s), donate_argnums=0)(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    jax.block_until_ready(doubled)


@pytest.mark.thorough
def test_equal_layers_still_scan(random_model, jitted):
    model = relayer(random_model(BASE), [0, 2, 0, 2, 1])
    scanned = model.configure(scan=True)
    want = jitted(model, TOKENS)
    # The same float32 sums, fused in another way.
    close = 2e-6 * float(jnp.abs(want).max())
    np.testing.assert_allclose(jitted(scanned, TOKENS), want, rtol=0, atol=close)
    assert jitted.lower(scanned, TOKENS).as_text().count("stablehlo.while") == 1


def test_layers_of_an_encoder(random_model, leaves):
    config = bert(vocab_size=31, embed=12, depth=3, heads=2, mlp=20)
    model = random_model(config)
    new = relayer(model, [2, 0])
    assert new.config == dataclasses.replace(config, layers=config.layers[:2])
    assert nnx.graphdef(new) == nnx.graphdef(abstract(new.config))
    old, got = leaves(model), leaves(new)
    for i, source in enumerate((2, 0)):
        name = "mlp.up.kernel"
        np.testing.assert_array_equal(got[f"layers.{i}.{name}"], old[f"layers.{source}.{name}"])


def test_an_outline_is_reordered():
    outline = relayer(abstract(windowed()), [2, 2, 0])
    assert [la.attention.window for la in outline.config.layers] == [3, 3, None]
    assert isinstance(outline.layers[1].mlp.up.kernel.get_value(), jax.ShapeDtypeStruct)


@pytest.mark.parametrize("order", [[], [0, 3], [-1]])
def test_what_is_no_layer_is_refused(order):
    with pytest.raises(ValueError, match="must name layers 0 to 2, at least one") as error:
        relayer(abstract(BASE), order)
    assert f"got order={order}" in str(error.value)
    assert "Use order=[0, 1, 2]" in str(error.value)
