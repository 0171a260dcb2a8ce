# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_data import Bytes
from dovetail_models import gpt2, init, llama
from dovetail_stack.recipes import generation
from dovetail_stack.recipes.generation import generate


@pytest.fixture(scope="module")
def model():
    config = llama(vocab_size=258, embed=32, depth=2, heads=4, kv_heads=2, head_dim=8, mlp=48)
    model = init(config, seed=1)
    # Fresh weights of std 0.02 give nearly equal logits: a wrong cache would go unseen.
    state = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, nnx.state(model))
    nnx.update(model, state)
    return model


def _ids(model, ids, **options):
    defaults = {"temperature": 0.0, "top_p": 1.0, "seed": 0}
    return list(generation._tokens(model, ids, **{**defaults, **options}))


@pytest.mark.capability("generating text by the command")
def test_greedy_equals_the_argmax_of_a_full_forward_pass_across_a_bucket_border(model):
    prompt = [256, *np.random.default_rng(0).integers(0, 256, 60).tolist()]
    got = _ids(model, prompt, max_tokens=12)
    full = nnx.jit(lambda model, tokens: jnp.argmax(model(tokens)[0], axis=-1))
    row = np.zeros((1, 80), np.int32)  # causal: what follows a position does not alter it
    row[0, : len(prompt)] = prompt
    for i in range(len(prompt), len(prompt) + 12):
        row[0, i] = full(model, row)[i - 1]
    assert got == row[0, len(prompt) : len(prompt) + 12].tolist()
    assert len(set(got)) > 3


@pytest.mark.capability("generating text by the command")
def test_samples_follow_the_tempered_nucleus(model):
    ids = [256, 65, 66]
    logits = np.asarray(model(jnp.asarray([ids], jnp.int32))[0, -1], np.float64) / 0.8
    p = np.exp(logits - logits.max())
    p /= p.sum()
    ranked = np.argsort(-p)
    kept = ranked[: int(np.searchsorted(np.cumsum(p[ranked]), 0.7)) + 1]
    n = 500
    draws = [
        *itertools.chain(
            *(_ids(model, ids, max_tokens=1, temperature=0.8, top_p=0.7, seed=i) for i in range(n))
        )
    ]
    assert set(draws) <= set(kept.tolist())
    expected = p[kept[0]] / p[kept].sum()
    deviation = (expected * (1 - expected) / n) ** 0.5
    assert 0.02 < expected < 0.98  # else the draw would say little
    assert abs(draws.count(kept[0]) / n - expected) < 4 * deviation


def test_logits_that_are_not_finite_are_an_error(model):
    broken = nnx.clone(model)
    nnx.update(broken, jax.tree.map(lambda leaf: leaf * jnp.nan, nnx.state(broken)))
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"must be finite, got NaN .* after 3 tokens: check"):
            _ids(broken, [256, 65, 66], max_tokens=2, temperature=temperature)


def test_a_tiny_nucleus_is_greedy_and_one_seed_gives_one_text(model):
    prompt = [256, 65, 66]
    assert _ids(model, prompt, max_tokens=6, temperature=3.0, top_p=1e-6) == _ids(
        model, prompt, max_tokens=6
    )
    hot = {"max_tokens": 16, "temperature": 2.0}
    assert _ids(model, prompt, **hot, seed=5) == _ids(model, prompt, **hot, seed=5)
    assert _ids(model, prompt, **hot, seed=5) != _ids(model, prompt, **hot, seed=6)


def test_characters_come_whole_and_the_end_of_text_ends_it():
    ids = [*"aé€😀".encode(), 0xFF, 257, 65]
    pieces = list(generation._pieces(Bytes(), iter(ids)))
    assert pieces == ["a", "é", "€", "😀", "�"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got max_tokens=0: try"),
        ({"temperature": -1.0}, "temperature must be 0 .* got temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature must be 0 .* got temperature=nan"),
        (
            {"temperature": float("inf")},
            "temperature must .* finite, got temperature=inf: try 1.0",
        ),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got top_p=0.0: pass top_p=1 to"),
        ({"top_p": 1.5}, r"top_p must lie in \(0, 1\], got top_p=1.5"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(model, options, message):
    with pytest.raises(ValueError, match=message):
        generate(model, Bytes(), "x", **{"max_tokens": 4, **options})


def test_a_tokenizer_with_more_ids_than_the_model_is_refused():
    config = llama(
        vocab_size=200, embed=16, depth=1, heads=2, kv_heads=1, head_dim=8, mlp=16, tie=True
    )
    with pytest.raises(ValueError, match="tokenizer has 258 ids and the model 200: use the"):
        generate(init(config, seed=0), Bytes(), "x", max_tokens=1)


class _Numbers(Bytes):
    """Bytes whose ids are decoded as numbers, and no id ends a text."""

    eos_id = None

    def decode(self, ids):
        return "".join(f"{i} " for i in ids)


def test_a_model_with_learned_positions_ends_at_the_last():
    config = gpt2(vocab_size=258, embed=16, depth=1, heads=2, mlp=16, max_length=9)
    model = init(config, seed=0)
    nnx.update(model, jax.tree.map(lambda leaf: leaf * 8, nnx.state(model)))
    tokenizer = _Numbers()
    text = "".join(generate(model, tokenizer, "abc", max_tokens=64))
    full = nnx.jit(lambda model, tokens: jnp.argmax(model(tokens)[0], axis=-1))
    row = np.zeros((1, 9), np.int32)
    row[0, :4] = [256, *b"abc"]
    for i in range(4, 9):
        row[0, i] = full(model, row)[i - 1]
    assert text == "".join(f"{token} " for token in row[0, 4:])
    with pytest.raises(ValueError, match=r"one of the model's 9 positions, got 9 tokens: give a"):
        generate(model, Bytes(), "abcdefgh", max_tokens=1)
