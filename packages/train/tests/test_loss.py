# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_train import lm_loss
from dovetail_train.testing import TinyDecoder

pytestmark = pytest.mark.usefixtures("strict_promotion")
KEY = None  # lm_loss draws nothing


class _Lookup(nnx.Module):
    """Features by table, logits by matrix: an oracle needs two lines."""

    def __init__(self, rng, vocab=11, width=4):
        self.table = nnx.Param(jnp.asarray(rng.normal(size=(vocab, width)), jnp.float32))
        self.matrix = nnx.Param(jnp.asarray(rng.normal(size=(width, vocab)) * 2, jnp.float32))
        self.options = {}

    def features(self, tokens, **options):
        self.options = nnx.data({k: v for k, v in options.items() if k != "attention"})
        return self.table[...][tokens], None

    def head(self, x):
        return x @ self.matrix[...]

    def head_weight(self):
        return self.matrix[...], None


def _batch(rng, rows=3, length=7, vocab=11):
    return {
        "tokens": rng.integers(0, vocab, (rows, length), dtype=np.int32),
        "targets": rng.integers(0, vocab, (rows, length), dtype=np.int32),
        "mask": (rng.random((rows, length)) * (rng.random((rows, length)) < 0.7)).astype("f4"),
    }


def _oracle(model, batch):
    """(Σ mask·nll, Σ mask·logsumexp², Σ mask) in float64."""
    table, matrix = (np.asarray(p[...], np.float64) for p in (model.table, model.matrix))
    logits = table[batch["tokens"]] @ matrix
    top = logits.max(-1, keepdims=True)
    normalizer = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    picked = np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    mask = batch["mask"].astype(np.float64)
    return (mask * (normalizer - picked)).sum(), (mask * normalizer**2).sum(), mask.sum()


@pytest.mark.parametrize(
    "chunk", [1, 3, 6, 9, 12, 15, 1024]
)  # 1, 1, 2, 3, 4, 5 of 7 positions, all
def test_any_chunk_gives_the_whole_cross_entropy(chunk):
    rng = np.random.default_rng(chunk)
    model, batch = _Lookup(rng), _batch(rng)
    nll, _, count = _oracle(model, batch)
    total, n = jax.jit(lambda m, b: lm_loss(chunk=chunk)(m, b, key=KEY))(model, batch)
    # 21 terms of float32, each within a few epsilons.
    np.testing.assert_allclose(total, nll, rtol=3e-6)
    np.testing.assert_allclose(n, count, rtol=1e-6)


def test_chunks_do_not_change_the_gradient():
    rng = np.random.default_rng(5)
    model, batch = _Lookup(rng), _batch(rng)

    def grads(chunk):
        loss = lm_loss(chunk=chunk, z=0.1)
        return nnx.jit(nnx.grad(lambda m: sum(s for s, _ in loss(m, batch, key=KEY).values())))(
            model
        )

    for a, b in zip(jax.tree.leaves(grads(6)), jax.tree.leaves(grads(99)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_z_is_a_term_of_its_own():
    rng = np.random.default_rng(2)
    model, batch = _Lookup(rng), _batch(rng)
    nll, squares, count = _oracle(model, batch)
    terms = lm_loss(z=0.01, chunk=6)(model, batch, key=KEY)
    np.testing.assert_allclose(terms["nll"][0], nll, rtol=3e-6)
    np.testing.assert_allclose(terms["z"][0], 0.01 * squares, rtol=3e-6)
    np.testing.assert_allclose(terms["z"][1], count, rtol=1e-6)


@pytest.mark.thorough
def test_a_masked_target_may_be_anything_and_an_unmasked_one_may_not():
    rng = np.random.default_rng(3)
    model, batch = _Lookup(rng), _batch(rng)
    batch["mask"][0, 0] = 0
    expected, _, _ = _oracle(model, batch)
    for wrong in (-1, -100, 11, 10**6):
        batch["targets"][0, 0] = wrong
        batch["mask"][0, 0] = 0
        np.testing.assert_allclose(lm_loss()(model, batch, key=KEY)[0], expected, rtol=3e-6)
        batch["mask"][0, 0] = 1
        assert np.isnan(lm_loss()(model, batch, key=KEY)[0])


def test_the_model_gets_positions_segments_and_the_attention():
    rng = np.random.default_rng(4)
    seen = {}

    class Spy(_Lookup):
        def features(self, tokens, **options):
            seen.update(options)
            return super().features(tokens)

    batch = _batch(rng) | {
        "positions": rng.integers(0, 9, (3, 7), dtype=np.int32),
        "segment_ids": rng.integers(1, 3, (3, 7), dtype=np.int32),
    }
    lm_loss(attention=len)(Spy(rng), batch, key=KEY)
    assert seen["attention"] is len
    np.testing.assert_array_equal(seen["positions"], batch["positions"])
    np.testing.assert_array_equal(seen["segment_ids"], batch["segment_ids"])


@pytest.mark.thorough
def test_a_packed_row_is_its_documents_alone():
    rng = np.random.default_rng(6)
    model = TinyDecoder(vocab_size=11, width=8, depth=1, rngs=nnx.Rngs(1))
    loss = jax.jit(lambda m, b: lm_loss(chunk=8)(m, b, key=KEY))
    lengths = [5, 2, 4]
    docs = [rng.integers(0, 11, n + 1, dtype=np.int32) for n in lengths]
    pad = 3
    packed = {
        "tokens": np.concatenate([d[:-1] for d in docs] + [np.zeros(pad, np.int32)])[None],
        "targets": np.concatenate([d[1:] for d in docs] + [np.zeros(pad, np.int32)])[None],
        "mask": np.concatenate([np.ones(11, "f4"), np.zeros(pad, "f4")])[None],
        "segment_ids": np.repeat(np.int32([1, 2, 3, 0]), [*lengths, pad])[None],
        "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in [*lengths, pad]])[None],
    }
    alone = [
        loss(model, {"tokens": d[None, :-1], "targets": d[None, 1:], "mask": np.ones((1, n), "f4")})
        for d, n in zip(docs, lengths, strict=True)
    ]
    total, count = loss(model, packed)
    np.testing.assert_allclose(total, sum(float(nll) for nll, _ in alone), rtol=1e-5)
    assert count == 11
    without = {k: v for k, v in packed.items() if k not in ("segment_ids", "positions")}
    assert abs(float(loss(model, without)[0]) - float(total)) > 1e-2


@pytest.mark.thorough
def test_the_logits_of_the_whole_batch_never_exist():
    vocab, rows, length = 911, 2, 64
    rng = np.random.default_rng(7)
    model = _Lookup(rng, vocab=vocab)
    batch = _batch(rng, rows=rows, length=length, vocab=vocab)
    graphdef, state = nnx.split(model)

    def sizes(chunk):
        def scalar(state, batch):
            return lm_loss(chunk=chunk)(nnx.merge(graphdef, state), batch, key=KEY)[0]

        text = jax.jit(jax.grad(scalar)).lower(state, batch).compile().as_text()
        shapes = {tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", text)}
        return max(np.prod(s) for s in shapes if vocab in s)

    assert sizes(1024) == rows * length * vocab
    assert sizes(16) == 16 * vocab  # 8 positions of 2 rows


def test_a_chunk_counts_the_positions_of_one_device():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "fsdp"), axis_types=auto)
    rng = np.random.default_rng(8)
    batch = _batch(rng, rows=8, length=6)
    seen = set()

    class Spy(_Lookup):
        def head(self, x):
            seen.add(x.shape)
            return super().head(x)

    def shapes(model, batch):
        return lm_loss(chunk=6)(model, batch, key=KEY)

    model = Spy(rng)
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(shapes, model, batch)
    assert seen == {(8, 3, 4)}  # 8 rows on 4 devices: 2 rows × 3 positions each


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"chunk must be at least 1.*chunk=0.*write for example"):
        lm_loss(chunk=0)
    with pytest.raises(ValueError, match=r"z at least 0, got .*z=-1.*write for example"):
        lm_loss(z=-1.0)


def test_a_batch_without_targets_is_refused():
    rng = np.random.default_rng(9)
    batch = _batch(rng)
    del batch["targets"]
    with pytest.raises(
        ValueError, match=r"must have tokens.*got \['mask', 'tokens'\]; add targets"
    ):
        lm_loss()(_Lookup(rng), batch, key=KEY)


class _Sums(NamedTuple):
    sum: jax.Array
    count: jax.Array
    z_sum: jax.Array


def _plain_sums(x, w, labels, *, where, soft_cap, z_loss):
    """What an operation without logits gives, from the logits."""
    logits = x @ w if soft_cap is None else soft_cap * jnp.tanh(x @ w / soft_cap)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    nll = normalizer - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    squares = (where * normalizer**2).sum()
    return _Sums((where * nll).sum() + z_loss * squares, where.sum(), squares)


@pytest.mark.thorough
@pytest.mark.parametrize("z", [0.0, 0.1])
def test_an_operation_may_take_the_place_of_the_logits(z):
    rng = np.random.default_rng(7)
    model, batch = _Lookup(rng), _batch(rng)
    nll, squares, count = _oracle(model, batch)

    def terms(**options):
        found = lm_loss(z=z, **options)(model, batch, key=KEY)
        return list(found.values()) if z else [found]

    (first, *rest) = terms(cross_entropy=_plain_sums)
    np.testing.assert_allclose(first, (nll, count), rtol=3e-6)
    for term in rest:
        np.testing.assert_allclose(term, (z * squares, count), rtol=3e-6)

    def gradient(**options):
        loss = lm_loss(z=z, **options)

        def total(model):
            found = loss(model, batch, key=KEY)
            return sum(s for s, _ in found.values()) if z else found[0]

        return nnx.grad(total)(model)

    ours, theirs = gradient(cross_entropy=_plain_sums), gradient()
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_operation_gets_the_soft_cap_and_one_dtype():
    rng = np.random.default_rng(8)
    seen = {}

    class Capped(_Lookup):
        def features(self, tokens, **options):
            x, cache = super().features(tokens, **options)
            return x.astype(jnp.bfloat16), cache

        def head_weight(self):
            return self.matrix[...], 3.0

    def spy(x, w, labels, **options):
        seen.update(options, x=x, w=w, labels=labels)
        return _plain_sums(x, w, labels, **options)

    lm_loss(cross_entropy=spy)(Capped(rng), _batch(rng), key=KEY)
    assert seen["soft_cap"] == 3.0
    assert seen["x"].shape == (21, 4)
    assert seen["x"].dtype == seen["w"].dtype == jnp.float32
    assert seen["labels"].shape == seen["where"].shape == (21,)


def test_chunk_and_cross_entropy_exclude_each_other():
    message = (
        "chunk divides the logits, which cross_entropy does not make, got chunk=5 and .*; leave"
    )
    with pytest.raises(ValueError, match=message):
        lm_loss(chunk=5, cross_entropy=_plain_sums)


@pytest.mark.thorough
def test_a_model_without_features_is_refused_with_what_to_pass():
    tokens = jnp.ones((2, 4), jnp.int32)
    batch = {"tokens": tokens, "targets": tokens, "mask": tokens}
    message = "needs a decoder with features, .* got Linear; pass a decoder such as"
    with pytest.raises(TypeError, match=message):
        lm_loss()(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), batch, key=jax.random.key(0))
