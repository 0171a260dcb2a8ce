# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from dovetail_models import (
    Llama3Scaling,
    Remat,
    attention,
    dense_kv,
    gpt2,
    llama,
    mixtral,
    qwen3,
    qwen3_moe,
    replace,
)

SCALING = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=32)
LLAMA = {"vocab_size": 61, "embed": 24, "depth": 2, "heads": 6, "kv_heads": 2, "mlp": 40}
CONFIGS = {
    "llama-mha": llama(**{**LLAMA, "kv_heads": 6}),
    "llama-gqa-tied": llama(**LLAMA, tie=True, rope_theta=500_000.0),
    "llama-scaled-biased": llama(
        **{**LLAMA, "kv_heads": 1},
        rope_scaling=SCALING,
        attention_bias=True,
        mlp_bias=True,
    ),
    "qwen3": qwen3(vocab_size=53, embed=20, depth=3, heads=4, kv_heads=2, head_dim=14, mlp=36),
}


def windowed(config, window):
    """The same config with a sliding window on its last layer."""
    last = config.layers[-1]
    attention = dataclasses.replace(last.attention, window=window)
    layers = (*config.layers[:-1], dataclasses.replace(last, attention=attention))
    return dataclasses.replace(config, layers=layers)


# Contracts that hold for any decoder are tested on this one; the formulas on all.
CONFIGS["qwen3-window"] = windowed(CONFIGS["qwen3"], 5)


def tokens_of(config, shape, seed=7):
    return np.random.default_rng(seed).integers(0, config.vocab_size, shape, np.int32)


# The other families keep the same contract in families/test_contract.py.
@pytest.fixture(params=["llama-scaled-biased", "qwen3-window"], scope="module")
def model(request, random_model):
    return random_model(CONFIGS[request.param])


@pytest.fixture(scope="module")
def one(random_model):
    return random_model(CONFIGS["qwen3-window"])


@nnx.jit
def jitted(model, tokens, **options):
    return model(tokens, **options)


@nnx.jit(static_argnames="taps")
def features(model, tokens, **options):
    return model.features(tokens, **options)


def close(got, want):
    # float32 against float64, through 2-3 layers: a few hundred roundings of 6e-8, relative to the
    # largest logit.
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.thorough
def test_logits_are_the_formula(model, oracle):
    tokens = tokens_of(model.config, (2, 41))
    close(jitted(model, tokens), oracle(model, tokens))


@pytest.mark.thorough
def test_a_packed_row_gives_the_logits_of_its_documents(model, oracle):
    documents = [tokens_of(model.config, (1, n), seed=n) for n in (7, 1, 11)]
    row = np.concatenate([*documents, np.zeros((1, 3), np.int32)], axis=1)
    segments = np.repeat([1, 2, 3, 0], [7, 1, 11, 3])[None].astype(np.int32)
    alone = np.concatenate([oracle(model, document) for document in documents], axis=1)
    packed = jitted(model, row, segment_ids=jnp.asarray(segments))
    close(packed[:, :19], alone)
    positions = np.concatenate([np.arange(n) for n in (7, 1, 11, 3)])[None].astype(np.int32)
    given = jitted(model, row, segment_ids=jnp.asarray(segments), positions=jnp.asarray(positions))
    np.testing.assert_array_equal(given, packed)


@pytest.mark.thorough
def test_positions_shift_nothing_but_rope(model, oracle):
    tokens = tokens_of(model.config, (1, 9))
    positions = np.arange(30, 39, dtype=np.int32)[None]
    close(
        jitted(model, tokens, positions=jnp.asarray(positions)),
        oracle(model, tokens, positions=positions),
    )


@pytest.mark.thorough
def test_a_cache_gives_the_logits_of_the_whole_for_ragged_rows(one, oracle):
    model = one
    lengths, total = np.array([3, 8, 5]), 12
    tokens = tokens_of(model.config, (3, total))
    want = oracle(model, tokens)
    kv = dense_kv(model.config, rows=3, length=total)
    width = lengths.max()
    real = np.arange(width) < lengths[:, None]
    prompt = jnp.asarray(np.where(real, tokens[:, :width], 0))
    x, kv = features(model, prompt, segment_ids=jnp.asarray(real.astype(np.int32)), kv=kv)
    logits = model.head(x)
    for row, length in enumerate(lengths):
        close(logits[row, :length], want[row, :length])
    for _ in range(total - width):
        token = jnp.asarray(np.take_along_axis(tokens, lengths[:, None], axis=1))
        logits, kv = step(model, kv, token, jnp.asarray(lengths[:, None], jnp.int32))
        close(logits[:, 0], np.take_along_axis(want, lengths[:, None, None], axis=1)[:, 0])
        lengths = lengths + 1


@nnx.jit(donate_argnames="kv")
def step(model, kv, token, positions):
    x, kv = model.features(token, positions=positions, kv=kv)
    return model.head(x), kv


@pytest.mark.thorough
def test_call_is_the_head_of_the_features(one):
    tokens = tokens_of(one.config, (2, 5))
    x, kv = one.features(tokens)
    weight, soft_cap = one.head_weight()
    assert kv is None
    assert soft_cap is None
    np.testing.assert_array_equal(one(tokens), one.head(x))
    np.testing.assert_allclose(one.head(x), x @ weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one.head(x[0, 0]), (x @ weight)[0, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_bfloat16_weights_give_bfloat16_features_and_float32_logits(one, oracle):
    tokens = tokens_of(one.config, (2, 9))
    want = oracle(one, tokens)
    graph, state = nnx.split(one)
    half = nnx.merge(graph, jax.tree.map(lambda x: x.astype(jnp.bfloat16), state))
    x = nnx.jit(lambda m, t: m.features(t)[0])(half, tokens)
    logits = jitted(half, tokens)
    assert x.dtype == jnp.bfloat16
    assert logits.dtype == jnp.float32
    # bfloat16 rounds to 3 digits (2^-8), and errors of each sublayer add up.
    np.testing.assert_allclose(logits, want, rtol=0, atol=0.05 * np.abs(want).max())


@pytest.mark.thorough
def test_another_attention_gets_the_arguments_of_the_contract(one):
    tokens = tokens_of(one.config, (2, 6))
    segments = jnp.ones((2, 6), jnp.int32)
    seen = []

    def spy(q, k, v, **options):
        seen.append((q.shape, k.shape, v.shape, options))
        return attention(q, k, v, **options)

    got = nnx.jit(lambda model: model(tokens, segment_ids=segments, attention=spy))(one)
    np.testing.assert_array_equal(got, jitted(one, tokens, segment_ids=segments))
    assert len(seen) == len(one.config.layers)
    for (q, k, v, options), layer in zip(seen, one.config.layers, strict=True):
        a = layer.attention
        assert q == (2, 6, a.heads, a.head_dim)
        assert k == v == (2, 6, a.kv_heads, a.head_dim)
        assert options.keys() == {
            *("causal", "positions", "segment_ids", "window", "soft_cap", "scale", "sinks")
        }
        assert options["causal"] is True
        assert options["window"] == a.window
        assert options["scale"] == pytest.approx(a.head_dim**-0.5)


@pytest.mark.thorough
def test_another_product_is_an_attribute_of_each_projection(one):
    seen = []

    def counted(x, kernel, *args, **options):
        seen.append(kernel.shape)
        return jax.lax.dot_general(x, kernel, *args, **options)

    def inject(path, linear):
        linear.dot_general = counted
        return linear

    tokens = tokens_of(one.config, (1, 3))
    other = replace(one, "layers.*.{attn,mlp}.{q,k,v,o,gate,up,down}", inject)
    np.testing.assert_array_equal(jitted(other, tokens), jitted(one, tokens))
    assert len(seen) == 7 * len(one.config.layers)


@pytest.mark.thorough
def test_a_cache_is_opaque_and_goes_layer_by_layer(one):
    tokens = tokens_of(one.config, (2, 5))

    def counting(q, k, v, *, kv, **options):
        return attention(q, k, v, **options), kv + 10

    depth = len(one.config.layers)
    _, kv = one.features(tokens, attention=counting, kv=list(range(depth)))
    assert kv == [i + 10 for i in range(depth)]


def test_configure_keeps_the_parameters(one):
    other = one.configure(scan=True, remat=Remat(save=()))
    assert other.layers[0].attn.q.kernel is one.layers[0].attn.q.kernel
    assert (one.scan, one.remat) == (False, None)
    assert (other.scan, other.remat) == (True, Remat(save=()))
    again = other.configure(remat=False)
    assert (again.scan, again.remat) == (True, None)
    assert again.configure(remat=True).remat == Remat(save=())
    assert other.configure(scan=False).remat == Remat(save=())


@pytest.mark.capability("decoder families, whole, scanned and cached", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("scan", [False, True])
def test_the_forward_lowers_for_accelerators(platform, scan, one):
    model = one.configure(scan=scan)
    graph, state = nnx.split(model)
    tokens = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    forward = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens, segment_ids=tokens))
    exported = export.export(forward, platforms=[platform])(state, tokens)
    assert exported.platforms == (platform,)
    assert exported.out_avals[0].shape == (2, 8, 53)


@pytest.mark.thorough
def test_a_token_outside_the_vocabulary_is_refused(one):
    size = one.config.vocab_size
    bad = np.array([[0, size]], np.int32)
    with pytest.raises(ValueError, match=r"\[0, vocab_size\)") as error:
        one(bad)
    assert f"from 0 to {size} with vocab_size={size}" in str(error.value)
    assert "Use the tokenizer that the model was trained with" in str(error.value)
    assert np.isnan(jitted(one, bad)[0, 1]).all()


@pytest.mark.thorough
def test_taps_are_the_stream_after_a_layer_scanned_or_not(one):
    tokens = tokens_of(one.config, (2, 9))
    taps = ("layers.1", "layers.2")

    @nnx.jit
    def tapped(model, tokens):
        return model.features(tokens, taps=taps)

    x, kv, found = tapped(one, tokens)
    assert kv is None
    assert found.keys() == set(taps)
    plain = nnx.jit(lambda model, tokens: model.features(tokens)[0])(one, tokens)
    np.testing.assert_allclose(x, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
    # The last layer's stream, normalised, is what features gives.
    np.testing.assert_allclose(one.norm(found["layers.2"]), x, rtol=1e-5, atol=1e-5)
    _, _, scanned = tapped(one.configure(scan=True), tokens)
    for tap in taps:
        bound = 1e-5 * np.abs(found[tap]).max()
        np.testing.assert_allclose(scanned[tap], found[tap], rtol=0, atol=bound)
    first = dataclasses.replace(one.config, layers=one.config.layers[:2])
    short = nnx.clone(one)
    short.config, short.layers = first, nnx.List(list(short.layers)[:2])
    np.testing.assert_allclose(
        nnx.jit(lambda model, tokens: model.features(tokens)[0])(short, tokens),
        one.norm(found["layers.1"]),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("scan", [False, True])
def test_the_router_tap_counts_the_real_tokens_of_every_mixture(scan, random_model):
    config = qwen3_moe(
        **{**LLAMA, "depth": 3}, head_dim=4, experts=5, top_k=2, dense=(0,), dense_mlp=7
    )
    model = random_model(config).configure(scan=scan)
    tokens = tokens_of(config, (2, 6))
    segments = jnp.asarray([[1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 2, 2]], jnp.int32)
    _, _, found = features(model, tokens, segment_ids=segments, taps=("router",))
    load, total, count = found["router"]
    assert load.shape == (2, 5)
    assert load.sum(1).tolist() == [2 * 10, 2 * 10]
    assert count.tolist() == [3.0, 3.0]  # documents
    assert (np.asarray(total) > 0).all()


@pytest.mark.parametrize("taps", [("layers.9",), ("router",), ("layers.0", "hidden")])
def test_an_unknown_tap_is_refused(taps, one):
    with pytest.raises(ValueError, match="A tap must be one of") as error:
        one.features(np.zeros((1, 2), np.int32), taps=taps)
    assert f"taps={taps!r}" in str(error.value)
    assert "Remove ['" in str(error.value)


@pytest.mark.thorough
def test_embeds_take_the_place_of_tokens(random_model):
    config = dataclasses.replace(CONFIGS["llama-gqa-tied"], embed_scale=3.0)
    model = random_model(config)
    tokens = tokens_of(config, (2, 5))
    vectors = 3.0 * model.embed.embedding[...][tokens]
    np.testing.assert_array_equal(
        model.features(None, embeds=vectors)[0], model.features(tokens)[0]
    )
    with pytest.raises(ValueError, match="tokens or embeds") as error:
        model.features(None)
    assert "tokens=None, embeds=None. Pass tokens" in str(error.value)


@pytest.mark.thorough
def test_a_position_without_a_learned_vector_is_refused(random_model):
    model = random_model(gpt2(vocab_size=7, embed=4, depth=1, heads=2, max_length=5))
    with pytest.raises(ValueError, match="must have a learned vector") as error:
        model(np.zeros((1, 6), np.int32))
    assert "position of 5 with max_length=5" in str(error.value)
    assert "Pass a shorter sequence" in str(error.value)
    assert np.isnan(jitted(model, np.zeros((1, 6), np.int32))[0, 5]).all()


@pytest.mark.thorough
def test_head_weight_brings_the_soft_cap(random_model):
    model = random_model(dataclasses.replace(CONFIGS["llama-mha"], soft_cap=2.0))
    x, _ = model.features(tokens_of(model.config, (1, 3)))
    weight, cap = model.head_weight()
    assert cap == 2.0
    np.testing.assert_allclose(model.head(x), 2 * np.tanh(x @ weight / 2), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_configure_puts_a_ragged_product_into_every_mixture(random_model):
    config = mixtral(vocab_size=11, embed=6, depth=2, heads=3, mlp=5, experts=3)
    model, calls = random_model(config), []

    def spy(x, kernels, sizes):
        calls.append(kernels.shape)
        return jax.lax.ragged_dot(x, kernels, sizes)

    tokens = tokens_of(config, (1, 4))
    got = jitted(model.configure(ragged_dot=spy), tokens)
    assert calls == 2 * [(3, 6, 5), (3, 6, 5), (3, 5, 6)]
    np.testing.assert_array_equal(got, jitted(model, tokens))
    assert len(calls) == 6


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.sampled_from([(1, 1), (3, 1), (4, 2), (5, 5)]),
    st.sampled_from([2, 6]),
    st.integers(1, 7),
    st.none() | st.integers(1, 8),
    st.booleans(),
    st.none() | st.just(1.5),
)
def test_any_heads_lengths_and_windows(
    random_model, oracle, heads, head_dim, length, window, sinks, cap
):
    config = llama(
        vocab_size=7, embed=5, depth=1, heads=heads[0], kv_heads=heads[1], head_dim=head_dim, mlp=3
    )
    layer = config.layers[0]
    attention = dataclasses.replace(layer.attention, window=window, sinks=sinks, soft_cap=cap)
    config = dataclasses.replace(config, layers=(dataclasses.replace(layer, attention=attention),))
    model = random_model(config, seed=length)
    tokens = tokens_of(config, (1, length))
    close(model(tokens), oracle(model, tokens))


def test_a_cache_of_another_depth_is_refused(one):
    kv = dense_kv(one.config, rows=1, length=4)
    with pytest.raises(ValueError, match="one entry per layer") as error:
        one.features(np.zeros((1, 2), np.int32), kv=kv[1:])
    assert f"len(kv)={len(kv) - 1} for {len(kv)} layers" in str(error.value)
    assert "Use dense_kv(model.config, rows=..., length=...)" in str(error.value)


@pytest.mark.thorough
def test_size_one(oracle, random_model):
    model = random_model(llama(vocab_size=1, embed=2, depth=1, heads=1, mlp=1))
    tokens = np.zeros((1, 1), np.int32)
    close(jitted(model, tokens), oracle(model, tokens))
    assert model(np.zeros((0, 3), np.int32)).shape == (0, 3, 1)
