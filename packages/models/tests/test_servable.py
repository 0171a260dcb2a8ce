# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The call of each kind of model, and the options that it takes."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_models import servable
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.testing import logits

TOWER = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24}
V, T = 29, 9
PIXELS = {"image_size": 8, "patch": 3, "channels": 1}
VISION = models.siglip_vision(**PIXELS, **{**TOWER, "embed": 24})
TEXT = models.siglip_text(vocab_size=V, max_length=T, width=24, **TOWER)
CONFIGS = {
    "vit": models.vit(**PIXELS, **TOWER, labels=("a", "b", "c")),
    "vit, no labels": models.vit(**PIXELS, **TOWER),
    "bert": models.bert(vocab_size=V, max_length=T, **TOWER),
    "siglip": models.siglip(text=TEXT, vision=VISION),
    "siglip text": TEXT,
    "siglip vision": VISION,
    "llama": models.llama(vocab_size=V, kv_heads=1, head_dim=8, max_length=16, **TOWER),
}


@pytest.fixture(scope="module")
def model(random_model):
    """A function of a name: the random model, made once."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = random_model(CONFIGS[name])
        return made[name]

    return of


def answer(ready):
    outputs = nnx.jit(ready.call)(ready.module, **ready.example)
    return {name: np.asarray(value, np.float64) for name, value in outputs.items()}


def compiled(model, call):
    """What `call(model)` returns, in one program: op by op it would take seconds to compile."""
    return np.asarray(nnx.jit(call)(model), np.float64)


def lengths(x):
    return np.linalg.norm(x, axis=-1, keepdims=True)


def close(found, wanted):
    # Sums of at most 24 float32 products, compiled as one program and as several.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_images_with_labels_have_logits_and_others_features(model):
    ready = servable(model("vit"), seed=3)
    (images,) = ready.example.values()
    assert images.shape == (3, 8, 8, 1)
    assert answer(ready).keys() == {"logits"}
    close(answer(ready)["logits"], compiled(model("vit"), lambda m: m(images)))
    ready = servable(model("vit, no labels"))
    (images,) = ready.example.values()
    wanted = compiled(model("vit, no labels"), lambda m: m.features(images))
    close(answer(ready)["features"], wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", [None, "model", "mean", "first", "last"])
def test_texts_are_pooled_by_the_model_or_over_the_mask(model, pooling):
    ready = servable(model("bert"), length=7, pooling=pooling)
    tokens, mask = ready.example["tokens"], ready.example["mask"]
    assert tokens.shape == mask.shape == (3, 7)
    assert len({*mask.sum(1)}) > 1  # rows of several lengths
    assert (np.diff(mask, axis=1) <= 0).all()
    features = compiled(model("bert"), lambda m: m.features(tokens, mask=mask))
    last = mask.sum(1) - 1
    wanted = {
        "mean": (features * mask[..., None]).sum(1) / mask.sum(1, keepdims=True),
        "first": features[:, 0],
        "last": features[np.arange(3), last],
    }
    own = compiled(model("bert"), lambda m: m.pooled(jnp.asarray(features, jnp.float32)))
    close(answer(ready)["embedding"], wanted.get(pooling, own))


def test_an_embedding_of_norm_1(model):
    plain = answer(servable(model("bert"), pooling="mean"))["embedding"]
    ready = servable(model("bert"), pooling="mean", normalize=True)
    close(answer(ready)["embedding"], plain / lengths(plain))


@pytest.mark.thorough
@pytest.mark.parametrize("tower", ["images", "text"])
def test_a_tower_has_its_own_weights_and_embeddings_of_norm_1(model, tower):
    both = model("siglip")
    ready = servable(both, tower=tower)
    (rows,) = ready.example.values()
    name = "embed_images" if tower == "images" else "embed_text"
    close(answer(ready)["embedding"], compiled(both, lambda m: getattr(m, name)(rows)))
    assert ready.module is (both.vision if tower == "images" else both.text)
    assert ready.example.keys() == {"images" if tower == "images" else "tokens"}


@pytest.mark.thorough
def test_towers_alone_are_not_normalised(model):
    for name in ("siglip text", "siglip vision"):
        ready = servable(model(name))
        (rows,) = ready.example.values()
        wanted = compiled(model(name), lambda m, rows=rows: m.pooled(m.features(rows)))
        close(answer(ready)["embedding"], wanted)
        assert np.abs(lengths(wanted) - 1).min() > 1e-2


@pytest.mark.thorough
def test_a_decoder_scores_each_token_after_the_first(model):
    ready = servable(model("llama"), length=T)
    tokens = ready.example["tokens"]
    exact = logits(model("llama"), tokens)[:, :-1]  # NumPy, float64
    exact -= exact.max(-1, keepdims=True)
    logps = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    wanted = np.take_along_axis(logps, tokens[:, 1:, None], -1)[..., 0]
    assert wanted.shape == (3, T - 1)
    close(answer(ready)["logps"], wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("name, options", [("vit", {}), ("bert", {}), ("llama", {"length": T})])
def test_a_model_takes_another_attention(model, name, options):
    calls = []

    def recorded(*args, **kwargs):
        calls.append(kwargs)
        return models.attention(*args, **kwargs)

    found = answer(servable(model(name), attention=recorded, **options))
    assert len(calls) == 1  # one layer, traced once
    for output, wanted in answer(servable(model(name), **options)).items():
        close(found[output], wanted)


def test_the_seed_draws_the_example(model):
    first, same, other = (servable(model("bert"), seed=seed).example for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, dict(first), dict(same))
    assert (first["tokens"] != other["tokens"]).any()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("siglip", {}, r'for each, .* got tower=None: pass tower="images" or tower="text"'),
        ("siglip", {"tower": "both"}, r"got tower='both': pass"),
        ("siglip", {"tower": "images", "length": 3}, "length must be for a model of text, got"),
        ("vit", {"tower": "images"}, "two towers, got tower='images' for a VisionEncoder: leave"),
        ("vit", {"pooling": "mean"}, "pooling must be for an encoder of text, got pooling='mean'"),
        ("vit", {"normalize": True}, "normalize must be for an encoder of text, got"),
        ("llama", {"length": T, "pooling": "mean"}, "must be for an encoder of text, .*leave it"),
        ("llama", {}, "a fixed number of tokens, got length=None: pass length=16 or less"),
        ("llama", {"length": 17}, "must have 2 to 16 tokens, .* got length=17: pass length=16"),
        ("llama", {"length": 1}, "must have 2 to 16 tokens"),
        ("bert", {"length": 10}, "must have 1 to 9 tokens, .* got length=10: pass length=9"),
        ("bert", {"length": 0}, "must have 1 to 9 tokens"),
    ],
)
def test_an_option_that_is_missing_or_of_no_use_is_refused(
    model, name, options, words, monkeypatch
):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=words):
        servable(model(name), **options)


@pytest.mark.thorough
def test_pooling_by_a_model_without_a_pooler_is_refused():
    config = models.bert(vocab_size=V, max_length=T, pooler=False, **TOWER)
    encoder = models.init(config, seed=0)
    with pytest.raises(ValueError, match=r"one with a pooler, got pooling=.model. .* pass pool"):
        servable(encoder, pooling="model")
    assert answer(servable(encoder))["embedding"].shape == (3, 16)  # the mean


def test_another_module_is_answered_by_the_class_to_write():
    with pytest.raises(TypeError, match=r"got Linear: write Servable\(module=, call=, example="):
        servable(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))


def test_a_model_may_be_abstract():
    outline = models.abstract(CONFIGS["vit"])
    ready = servable(outline)
    leaves = jax.tree.leaves(nnx.state(ready.module, WEIGHTS))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def test_a_call_of_weights_is_that_of_the_module(model):
    ready = servable(model("vit"))
    fn, weights = ready.split()
    (outputs,) = jax.jit(fn)(weights, **ready.example).values()
    close(outputs, answer(ready)["logits"])
