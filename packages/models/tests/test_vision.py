# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import siglip, siglip_text, siglip_vision, vit

SIZES = {"embed": 12, "depth": 2, "heads": 3, "mlp": 20}
LABELS = ("a cat", "a dog", "rain", "snow", "fog")
VIT = vit(image_size=(6, 9), patch=3, channels=2, labels=LABELS, **SIZES)
# 3 divides no side of 8: the last two rows and columns are left out.
SIGLIP = siglip(
    text=siglip_text(vocab_size=31, max_length=7, norm_eps=1e-3, **SIZES),
    vision=siglip_vision(image_size=8, patch=3, **SIZES),
)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(VIT)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal((2, 6, 9, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def pair(random_model):
    model = random_model(SIGLIP)
    rng = np.random.default_rng(1)
    pictures = rng.standard_normal((3, 8, 8, 3)).astype(np.float32)
    return model, rng.integers(0, 31, (2, 7), np.int32), pictures


def patches(p, images, size):
    """Each patch times the kernel, one by one."""
    rows, columns = images.shape[1] // size, images.shape[2] // size
    cut = [
        images[:, i * size : (i + 1) * size, j * size : (j + 1) * size]
        for i in range(rows)
        for j in range(columns)
    ]
    products = [
        np.einsum("bijc,ijcd->bd", part.astype(np.float64), p["patch.kernel"]) for part in cut
    ]
    return np.stack(products, axis=1) + p["patch.bias"]


def doubled(leaves, prefix=""):
    found = {k: v.astype(np.float64) for k, v in leaves.items() if k.startswith(prefix)}
    return {k.removeprefix(prefix): v for k, v in found.items()}


def everyone(x):
    return np.ones((x.shape[0], x.shape[1], x.shape[1]), bool)


@nnx.jit
def forward(model, images):
    x, tapped = model.features(images, taps=("layers.0",))
    return x, tapped["layers.0"], model.head(x)


@pytest.mark.thorough
def test_vit_is_the_oracle(model, images, leaves, encoder_oracle):
    p = doubled(leaves(model))
    token = np.broadcast_to(p["class_token"], (2, 1, 12))
    x = np.concatenate([token, patches(p, images, 3)], axis=1) + p["positions.embedding"]
    streams, want = encoder_oracle(model, x, everyone(x), eps=1e-12, activation="gelu")
    with jax.default_matmul_precision("highest"):
        got, first, logits = forward(model, images)
    # float32 sums of at most 20 terms through two layers; values are of order 3.
    np.testing.assert_allclose(got, want, atol=2e-5)
    np.testing.assert_allclose(first, streams[0], atol=2e-5)
    labelled = want[:, 0] @ p["classifier.kernel"] + p["classifier.bias"]
    np.testing.assert_allclose(logits, labelled, atol=2e-5)
    assert logits.shape == (2, 5)
    assert logits.dtype == jnp.float32


@pytest.mark.thorough
def test_a_vit_without_labels_has_no_head(random_model):
    model = random_model(dataclasses.replace(VIT, labels=()))
    with pytest.raises(ValueError, match="head needs a model with labels") as error:
        model.head(jnp.zeros((2, 7, 12)))
    assert "config.labels=()" in str(error.value)
    assert "Use features or pooled" in str(error.value)


@nnx.jit
def compare(model, tokens, pictures):
    text, image = model.embed_text(tokens), model.embed_images(pictures)
    return text, image, model.logits(image, text), model(tokens, pictures)


@pytest.mark.thorough
def test_siglip_is_the_oracle(pair, leaves, encoder_oracle):
    model, tokens, pictures = pair
    mine = leaves(model)
    p = doubled(mine, "text.")
    x = p["embed.embedding"][tokens] + p["positions.embedding"]
    options = {"eps": 1e-3, "activation": "gelu_tanh"}
    _, x = encoder_oracle(model.text, x, everyone(x), **options)
    text = unit(x[:, -1] @ p["pooler.dense.kernel"] + p["pooler.dense.bias"])
    p = doubled(mine, "vision.")
    x = patches(p, pictures, 3) + p["positions.embedding"]
    options = {"eps": 1e-6, "activation": "gelu_tanh"}
    _, x = encoder_oracle(model.vision, x, everyone(x), **options)
    image = unit(attended(doubled(p, "pooler."), x, heads=3))
    with jax.default_matmul_precision("highest"):
        got_text, got_image, logits, whole = compare(model, tokens, pictures)
    # Parts of a vector of length 1.
    np.testing.assert_allclose(got_text, text, atol=2e-6)
    np.testing.assert_allclose(got_image, image, atol=2e-6)
    scale, bias = (float(mine[f"logit_{name}"][0]) for name in ("scale", "bias"))
    np.testing.assert_allclose(logits, image @ text.T * np.exp(scale) + bias, atol=5e-6)
    np.testing.assert_array_equal(whole, logits)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def attended(p, x, heads):
    """What the probe attends to, head by head, and the feed-forward block on it."""
    q = p["probe"] @ p["q.kernel"] + p["q.bias"]
    k, v = (x @ p[f"{name}.kernel"] + p[f"{name}.bias"] for name in "kv")
    seen = []
    for part in np.split(np.arange(len(q)), heads):
        weights = np.exp(k[..., part] @ q[part] / np.sqrt(len(part)))
        weights /= weights.sum(1, keepdims=True)
        seen.append(np.einsum("bt,bth->bh", weights, v[..., part]))
    y = np.concatenate(seen, axis=1) @ p["o.kernel"] + p["o.bias"]
    h = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)
    h = (h * p["norm.scale"] + p["norm.bias"]) @ p["mlp.up.kernel"] + p["mlp.up.bias"]
    h = h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2
    return y + h @ p["mlp.down.kernel"] + p["mlp.down.bias"]


@pytest.mark.thorough
def test_both_encoders_are_configured(pair):
    model, tokens, pictures = pair
    other = model.configure(scan=True, remat=False)
    assert (other.text.scan, other.vision.scan, model.text.scan) == (True, True, False)
    assert other.logit_scale[...] is model.logit_scale[...]
    assert other.vision.patch.kernel[...] is model.vision.patch.kernel[...]
    # The same sums, fused in another way, of values of order 1.
    want, got = compare(model, tokens, pictures)[3], compare(other, tokens, pictures)[3]
    np.testing.assert_allclose(got, want, atol=5e-6)


BAD = {
    "channels first": (
        np.zeros((2, 2, 6, 9), np.float32),
        (ValueError, "got shape=(2, 2, 6, 9) for (6, 9, 2)", "move their channels last"),
    ),
    "another size": (
        np.zeros((2, 9, 6, 2), np.float32),
        (ValueError, "got shape=(2, 9, 6, 2) for (6, 9, 2)", "Resize them"),
    ),
    "whole numbers": (
        np.zeros((2, 6, 9, 2), np.uint8),
        (TypeError, "got dtype=uint8", "Rescale and normalise"),
    ),
}


@pytest.mark.parametrize("images, parts", BAD.values(), ids=BAD)
def test_bad_images_are_refused(model, images, parts):
    kind, *texts = parts
    # Around beartype, which would refuse it first here and is not there outside tests.
    with pytest.raises(kind, match="Images must be") as error:
        model._check(jnp.asarray(images))
    assert all(text in str(error.value) for text in texts)
