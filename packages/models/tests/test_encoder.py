# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import forced_devices
import warm_start
from dovetail_models import Remat, attention, bert, init, siglip_text

SIZES = {"vocab_size": 31, "embed": 12, "depth": 3, "heads": 3, "mlp": 20, "max_length": 17}
CONFIG = bert(**SIZES, token_types=3)
LENGTH = 11
MASK = np.array([[1] * 11, [1] * 6 + [0] * 5], np.int32)
TAPS = ("layers.0", "layers.2")


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    return rng.integers(0, 31, (2, LENGTH), np.int32), rng.integers(0, 3, (2, LENGTH), np.int32)


@nnx.jit
def forward(model, tokens, types, **options):
    return model.features(tokens, token_types=types, taps=TAPS, **options)


@pytest.fixture(scope="module")
def result(model, given):
    with jax.default_matmul_precision("highest"):
        return forward(model, *given, mask=MASK)


@pytest.fixture
def expected(model, given, leaves, encoder_oracle):
    tokens, types = given
    p = {name: leaf.astype(np.float64) for name, leaf in leaves(model).items()}
    x = p["embed.embedding"][tokens] + p["types.embedding"][types]
    x = x + p["positions.embedding"][np.arange(LENGTH)]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    x = x * p["embed_norm.scale"] + p["embed_norm.bias"]
    seen = np.broadcast_to(MASK[:, None] == 1, (2, LENGTH, LENGTH))
    return encoder_oracle(model, x, seen, eps=1e-12, activation="gelu")


@pytest.mark.thorough
def test_features_and_taps_are_those_of_the_oracle(result, expected):
    x, tapped = result
    streams, want = expected
    real = MASK == 1
    # float32 sums of at most 20 terms through three layers; values are of order 3.
    np.testing.assert_allclose(np.asarray(x)[real], want[real], atol=2e-5)
    assert tapped.keys() == set(TAPS)
    for tap in TAPS:
        stream = streams[int(tap.removeprefix("layers."))]
        np.testing.assert_allclose(np.asarray(tapped[tap])[real], stream[real], atol=2e-5)


def test_the_pooler_is_the_tanh_of_the_first_token(model, result, leaves):
    p = {name: leaf.astype(np.float64) for name, leaf in leaves(model).items()}
    x = np.asarray(result[0], np.float64)[:, 0]
    want = np.tanh(x @ p["pooler.dense.kernel"] + p["pooler.dense.bias"])
    np.testing.assert_allclose(model.pooled(result[0]), want, atol=2e-6)


@pytest.mark.thorough
def test_packed_documents_do_not_meet(model, given):
    tokens, types = given[0][:1], given[1][:1]
    segments = np.array([[1] * 4 + [2] * 6 + [0]], np.int32)
    got, _ = forward(model, tokens, types, segment_ids=segments)
    for part in (slice(0, 4), slice(4, 10)):
        alone = model.features(tokens[:, part], token_types=types[:, part])
        # The sums run over as many terms, in another order.
        np.testing.assert_allclose(got[:, part], alone, atol=5e-6)


@pytest.mark.thorough
def test_a_mask_moves_no_position(model, given):
    # As in transformers: with padding on the left, the first token is at position 5.
    tokens, types = given[0][:1], given[1][:1]
    mask = np.array([[0] * 5 + [1] * 6], np.int32)
    got, _ = forward(model, tokens, types, mask=mask)
    where = np.arange(5, 11, dtype=np.int32)[None]
    want = model.features(tokens[:, 5:], token_types=types[:, 5:], positions=where)
    np.testing.assert_allclose(got[:, 5:], want, atol=5e-6)


@pytest.mark.thorough
def test_token_types_are_0_unless_given(model, given):
    tokens = given[0]
    got = model.features(tokens)
    want, _ = forward(model, tokens, np.zeros_like(tokens))
    np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.thorough
def test_the_attention_operation_is_an_argument(model, given):
    asked = []

    def spy(q, k, v, **options):
        asked.append(options)
        return attention(q, k, v, **options)

    segments = np.array([[1] * 11, [2] * 11], np.int32)
    got = model.features(given[0], segment_ids=segments, attention=spy)
    np.testing.assert_array_equal(got, model.features(given[0], segment_ids=segments))
    assert len(asked) == 3
    assert not any(options["causal"] for options in asked)
    np.testing.assert_array_equal(asked[0]["segment_ids"], segments)
    np.testing.assert_array_equal(asked[0]["positions"], [np.arange(11)] * 2)


@pytest.mark.thorough
@pytest.mark.parametrize("remat", [False, Remat(save=())])
def test_scanned_and_recomputed_layers_give_the_same(model, given, result, remat):
    other = model.configure(scan=True, remat=remat)
    with jax.default_matmul_precision("highest"):
        x, tapped = forward(other, *given, mask=MASK)
    # The same sums, fused in another way: a few float32 epsilons of values of order 3.
    np.testing.assert_allclose(x, result[0], atol=3e-6)
    np.testing.assert_allclose(tapped["layers.2"], result[1]["layers.2"], atol=3e-6)
    assert other.embed.embedding[...] is model.embed.embedding[...]
    assert model.scan is False


@pytest.mark.thorough
@pytest.mark.parametrize("config", [CONFIG, siglip_text(**SIZES)])
def test_fresh_parameters_are_those_of_the_config(config, leaves):
    fresh = leaves(init(config, seed=1))
    for name, leaf in fresh.items():
        if name.endswith(("scale", "bias")):
            np.testing.assert_array_equal(leaf, float(name.endswith("scale")))
        else:
            # The sample deviation of n normals is off by 1/sqrt(2n): five of those.
            assert leaf.std() == pytest.approx(0.02, rel=5 / np.sqrt(2 * leaf.size))
    assert ("embed_norm.scale" in fresh) == (config.family == "bert")
    assert ("norm.scale" in fresh) == (config.family != "bert")


BAD = {
    "a tap that is not": (
        {"taps": ("layers.3",)},
        ["A tap must be one of 'layers.0' to 'layers.2'", "'layers.3'", "Remove"],
    ),
    "both masks": (
        {"mask": MASK, "segment_ids": MASK},
        ["mask or segment_ids", "got mask and segment_ids", "Pass segment_ids alone"],
    ),
    "a token type": (
        {"token_types": np.full((2, LENGTH), 3, np.int32)},
        ["[0, token_types)", "from 3 to 3 with token_types=3", "Use the types"],
    ),
    "a position": (
        {"positions": np.full((2, LENGTH), 17, np.int32)},
        ["learned vector", "position of 17 with max_length=17", "Pass a shorter sequence"],
    ),
}


@pytest.mark.parametrize("options, parts", BAD.values(), ids=BAD)
def test_bad_input_is_refused(model, given, options, parts):
    with pytest.raises(ValueError, match=r".") as error:
        model.features(given[0], **options)
    assert all(part in str(error.value) for part in parts)


@pytest.mark.thorough
def test_a_token_without_a_vector_is_refused_and_is_nan_under_jit(model, given):
    tokens = given[0].copy()
    tokens[1, 3] = 31
    with pytest.raises(ValueError, match=r"Every token must be in \[0, vocab_size\)") as error:
        model.features(tokens)
    assert "to 31 with vocab_size=31" in str(error.value)
    assert "Use the tokenizer" in str(error.value)
    assert np.isnan(forward(model, tokens, given[1], mask=MASK)[0]).any()


def test_a_sequence_that_is_too_long_is_refused_under_jit_too(model):
    tokens = jnp.zeros((1, 18), jnp.int32)
    with pytest.raises(ValueError, match="position of 17 with max_length=17"):
        jax.eval_shape(model.features, tokens)


def test_token_types_need_vectors_and_pooled_a_pooler(random_model, given):
    model = random_model(dataclasses.replace(CONFIG, token_types=0, pooler=None))
    with pytest.raises(ValueError, match=r"token_types need .* config.token_types=0\. Leave"):
        model.features(given[0], token_types=given[1])
    x = jnp.zeros((2, 3, 12))
    with pytest.raises(ValueError, match=r"needs a model with a pooler, got config.pooler=None"):
        model.pooled(x)


@pytest.mark.thorough
def test_the_token_that_is_pooled_must_count(random_model, given):
    model = random_model(siglip_text(**SIZES))
    with pytest.raises(ValueError, match="pools the last token") as error:
        model.features(given[0], mask=MASK)
    assert "rows=[1]" in str(error.value)
    assert "without a mask, or on the left" in str(error.value)
    x = model.features(given[0], mask=MASK[:, ::-1])
    assert np.isfinite(model.pooled(x)).all()


EIGHT_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType
import forced_devices
from dovetail_models import (
    abstract, bert, init, load_encoder, save, shardings, siglip, siglip_text, siglip_vision, vit
)

sizes = {"embed": 16, "depth": 2, "heads": 4, "mlp": 24}
text = siglip_text(vocab_size=32, max_length=12, **sizes)
vision = siglip_vision(image_size=9, patch=4, **sizes)
configs = {
    "bert": bert(vocab_size=32, max_length=12, **sizes),
    "vit": vit(image_size=(8, 12), patch=4, pooler=16, **sizes | {"depth": 1}),
    "siglip": siglip(text=text, vision=vision),
}
rng = np.random.default_rng(0)
tokens = rng.integers(0, 32, (8, 12)).astype(np.int32)
mask = (np.arange(12) < rng.integers(1, 13, (8, 1))).astype(np.int32)
images = rng.standard_normal((8, 9, 9, 3)).astype(np.float32)
wide = rng.standard_normal((8, 8, 12, 3)).astype(np.float32)
mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

def output(model):
    if model.config.family == "siglip":
        return model(tokens, images)
    if model.config.family == "vit":
        return model.pooled(model.features(wide))
    return model.pooled(model.features(tokens, mask=mask))

@jax.jit
def graded(model):
    return nnx.grad(lambda m: ((output(m) ** 2).sum(), output(m)), has_aux=True)(model)

def equal(model, alone):
    trees = nnx.state(model, nnx.Param), shardings(model, mesh), nnx.state(alone)
    for leaf, place, one in zip(*map(jax.tree.leaves, trees), strict=True):
        assert leaf.sharding == place, (leaf.sharding, place)
        np.testing.assert_array_equal(leaf, one)

config = configs[sys.argv[2]]
alone = abstract(config)
draw = lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape).astype(np.float32) * 0.3)
nnx.update(alone, jax.tree.map(draw, nnx.state(alone)))
save(alone, sys.argv[1] + "/model")
want, initial = graded(alone), init(config, seed=3) if config.family == "siglip" else None
forced_devices.stop_caching()
model = load_encoder(sys.argv[1] + "/model", mesh=mesh)
equal(model, alone)
if initial:
    equal(init(config, mesh=mesh, seed=3), initial)
with jax.set_mesh(mesh):
    got = graded(model.configure(scan=config.family == "bert"))
for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    # float32 sums of at most 24 terms in two orders, forward and backward; the gradient of k's
    # bias is rounding alone.
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * max(1e-1, float(np.abs(y).max())))
print("equal")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family",
    ["vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "siglip"))],
)
def test_eight_devices_compute_what_one_does(tmp_path, family):
    environment = forced_devices.environment(8, cached=True)
    command = ["-W", "error", "-c", EIGHT_DEVICES, str(tmp_path), family]
    done = warm_start.run(command, env=environment)
    assert done.stdout == "equal\n", done.stderr
