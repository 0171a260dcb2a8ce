# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import abstract, llama, load, save
from dovetail_models.surgery.vocab import cast, resize_vocab, untie

CONFIG = llama(vocab_size=31, embed=12, depth=2, heads=2, kv_heads=1, mlp=20)
TIED = dataclasses.replace(CONFIG, tie=True)
TOKENS = jnp.asarray(np.random.default_rng(4).integers(0, 31, (2, 9), np.int32))


@pytest.mark.thorough
@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["head", "tied"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_new_rows_are_the_mean_of_the_old(random_model, leaves, jitted, config, dtype):
    model = random_model(config, dtype=dtype)
    old = {name: leaf.astype(np.float64) for name, leaf in leaves(model).items()}
    wide = resize_vocab(model, 37)
    assert wide.config == dataclasses.replace(config, vocab_size=37)
    assert nnx.graphdef(wide) == nnx.graphdef(abstract(wide.config))
    new = leaves(wide)
    table = new["embed.embedding"]
    assert table.dtype == dtype
    np.testing.assert_array_equal(table[:31], old["embed.embedding"].astype(dtype))
    # One rounding to the table's dtype, of a mean of 31 numbers in float32.
    close = 2.0**-8 if dtype == jnp.bfloat16 else 1e-6
    rows = np.tile(old["embed.embedding"].mean(0), (6, 1))
    np.testing.assert_allclose(table[31:].astype(np.float64), rows, rtol=close, atol=1e-7)
    if not config.tie:
        kernel = new["lm_head.kernel"].astype(np.float64)
        columns = np.tile(old["lm_head.kernel"].mean(1)[:, None], (1, 6))
        np.testing.assert_allclose(kernel[:, 31:], columns, rtol=close, atol=1e-7)
    logits, before = jitted(wide, TOKENS), jitted(model, TOKENS)
    # The same products, in a matrix of another width.
    close = 2e-6 * float(jnp.abs(before).max())
    np.testing.assert_allclose(logits[..., :31], before, rtol=0, atol=close)


@pytest.mark.thorough
def test_new_rows_can_be_drawn(random_model, leaves):
    model = random_model(dataclasses.replace(CONFIG, init_std=0.5))
    new = leaves(resize_vocab(model, 2031, init="normal", key=jax.random.key(3)))
    rows, columns = new["embed.embedding"][31:], new["lm_head.kernel"][:, 31:]
    # 24000 draws: the deviation is known to half a percent, here four times that.
    np.testing.assert_allclose([rows.std(), columns.std()], 0.5, rtol=0.02)
    # Each from a key of its own: of the 24000 few come by chance in both.
    assert np.intersect1d(rows, columns).size < 1000


def test_rows_are_cut_when_that_is_meant(random_model, jitted, tmp_path):
    model = random_model(CONFIG)
    small = resize_vocab(model, 29, allow_shrink=True)
    np.testing.assert_allclose(
        jitted(small, TOKENS % 29), jitted(model, TOKENS % 29)[..., :29], rtol=0, atol=1e-5
    )
    save(small, tmp_path / "small")
    assert load(tmp_path / "small").config == small.config


@pytest.mark.parametrize(
    "change",
    [
        lambda model: resize_vocab(model, 40),
        lambda model: resize_vocab(model, 29, allow_shrink=True),
        lambda model: untie(model),
        lambda model: cast(model, jnp.bfloat16),
    ],
)
def test_the_old_model_stays_as_it_was(random_model, leaves, change):
    model = random_model(TIED)
    graph, before = nnx.graphdef(model), leaves(model)
    change(model)
    assert nnx.graphdef(model) == graph
    assert all(np.array_equal(leaf, before[name]) for name, leaf in leaves(model).items())


def test_an_outline_is_resized():
    outline = resize_vocab(abstract(CONFIG), 40)
    assert outline.embed.embedding.shape == (40, 12)
    assert nnx.graphdef(outline) == nnx.graphdef(abstract(outline.config))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_an_untied_head_is_the_embedding(random_model, jitted, dtype):
    model = random_model(TIED, dtype=dtype)
    free = untie(model)
    assert free.config == CONFIG
    assert nnx.graphdef(free) == nnx.graphdef(abstract(CONFIG))
    np.testing.assert_array_equal(free.lm_head.kernel[...].T, model.embed.embedding[...])
    want = jitted(model, TOKENS)
    # float32 sums of 12 products in another order.
    close = 1e-6 * float(jnp.abs(want).max())
    np.testing.assert_allclose(jitted(free, TOKENS), want, rtol=0, atol=close)
    free.embed.embedding[...] = 0 * free.embed.embedding[...]
    assert jnp.abs(free.lm_head.kernel[...]).max() > 0


def test_every_parameter_is_cast(random_model, adapt, leaves):
    model = adapt(random_model(CONFIG), "layers.*.attn.q", dtype=np.float16)
    old, new = leaves(model), leaves(cast(model, jnp.bfloat16))
    assert {leaf.dtype for leaf in new.values()} == {np.dtype(jnp.bfloat16)}
    for name, leaf in new.items():
        np.testing.assert_array_equal(leaf, old[name].astype(jnp.bfloat16))
    assert cast(model, np.float32).config == model.config
    outline = cast(abstract(CONFIG), jnp.bfloat16)
    assert outline.norm.scale.get_value().dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "call, parts",
    [
        (
            lambda m: resize_vocab(m, 30),
            ["must keep its 31 tokens", "size=30", "allow_shrink=True"],
        ),
        (
            lambda m: resize_vocab(m, 0, allow_shrink=True),
            ["must keep its 31 tokens", "size=0", "at least 1"],
        ),
        (
            lambda m: resize_vocab(m, 33, init="normal"),
            ["draws with a key", "init='normal', key=None", "key=jax.random.key(0)"],
        ),
        (
            lambda m: resize_vocab(m, 33, key=jax.random.key(0)),
            ["takes none", "init='mean', key=a key", "leave both out"],
        ),
        (lambda m: untie(m), ["whose head is its embedding", "config.tie=False", "as it is"]),
        (lambda m: cast(m, np.int8), ["floating-point dtype", "dtype=int8", "Use jnp.bfloat16"]),
    ],
)
def test_what_cannot_be_done_is_refused(call, parts):
    with pytest.raises(ValueError, match=parts[0]) as error:
        call(abstract(CONFIG))
    for part in parts:
        assert part in str(error.value)


def test_a_head_with_an_adapter_is_refused(random_model, adapt):
    with pytest.raises(ValueError, match="path='lm_head'") as error:
        resize_vocab(adapt(random_model(CONFIG), "lm_head"), 33)
    assert "lora.merge(model)" in str(error.value)
