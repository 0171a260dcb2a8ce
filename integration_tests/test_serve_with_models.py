# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Families of models, quantized ones and a recommender: from a directory to an answer.

Each is exported for three platforms, saved, and answers in a process without flax and without any
other library of the house.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_kernels import attention, grouped_matmul
from dovetail_models.placing.shard import WEIGHTS
from dovetail_models.testing import logits
from dovetail_quant import Spec, apply, plan
from dovetail_serve import Tensor, export
from dovetail_serve.bundle.folder import open_bundle
from dovetail_stack.recipes.products import KernelsProduct

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).parent / "programs" / "serve_answers.py"
BATCH_SIZES = (1, 4)
ROWS = 7  # one batch of 4, and 3 rows with one of padding
T, V = 9, 29
TOWER = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24}
HEADS = {"vocab_size": V, **TOWER, "kv_heads": 1, "head_dim": 8}
VISION = models.siglip_vision(image_size=8, patch=3, channels=1, **{**TOWER, "embed": 24})
TEXT = models.siglip_text(vocab_size=V, max_length=T, width=24, **TOWER)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, V, (ROWS, T), dtype=np.int32)
MASK = (np.arange(T)[None] < RNG.integers(1, T + 1, (ROWS, 1))).astype(np.int32)
IMAGES = RNG.standard_normal((ROWS, 8, 8, 1), np.float32)
USERS, ITEMS, LENGTH = 53, 31, 5


class Case(NamedTuple):
    """A model, its call, the inputs, and the outputs that are expected."""

    params: Any
    fn: Callable[..., dict[str, Any]]
    inputs: dict[str, np.ndarray]
    expected: dict[str, Any]


def of_module(model, call, inputs, expected=None):
    graph, state = nnx.split(model)
    alone = nnx.jit(call)(model, **inputs) if expected is None else expected
    return Case(state, lambda p, **x: call(nnx.merge(graph, p), **x), inputs, alone)


def from_directory(config, folder, seed):
    """A random model of `config`, written to a directory and read from it."""
    rng = np.random.default_rng(seed)
    model = models.abstract(config)

    def draw(param):  # no ones and zeros, which hide biases and scales
        value = 0.3 * rng.standard_normal(param.shape) + (0 if len(param.shape) > 1 else 0.7)
        return jnp.asarray(value, jnp.float32)

    nnx.update(model, jax.tree.map(draw, nnx.state(model, WEIGHTS)))
    models.save(model, folder)
    is_decoder = isinstance(model, models.Decoder)
    return models.load(folder) if is_decoder else models.load_encoder(folder)


def vit(folder):
    config = models.vit(image_size=8, patch=3, channels=1, labels=("a", "b", "c"), **TOWER)
    model = from_directory(config, folder, 1)
    return of_module(model, lambda m, *, images: {"logits": m(images)}, {"images": IMAGES})


def bert(folder):
    model = from_directory(models.bert(vocab_size=V, max_length=12, **TOWER), folder, 2)

    def call(m, *, tokens, mask):
        features = m.features(tokens, mask=mask)
        mean = models.pool(features, mask=mask, kind="mean", normalize=True)
        return {"mean": mean, "pooled": m.pooled(features)}

    return of_module(model, call, {"tokens": TOKENS, "mask": MASK})


def siglip(folder):
    model = from_directory(models.siglip(text=TEXT, vision=VISION), folder, 3)

    def call(m, *, tokens, images):
        text, image = m.embed_text(tokens), m.embed_images(images)
        # The logit of each image with its own text: that with the others' would mix rows.
        own = jax.vmap(lambda i, t: m.logits(i[None], t[None])[0, 0])(image, text)
        return {"text": text, "image": image, "logits": own}

    return of_module(model, call, {"tokens": TOKENS, "images": IMAGES})


def llama(folder):
    model = from_directory(models.llama(**{**HEADS, "depth": 2}, max_length=16), folder, 4)
    expected = {"logits": logits(model, TOKENS)}  # NumPy, float64
    inputs = {"tokens": TOKENS}
    return of_module(model, lambda m, *, tokens: {"logits": m(tokens)}, inputs, expected)


def mixtral(folder):
    """With the operations of dovetail_kernels."""
    model = from_directory(models.mixtral(**HEADS, experts=5, top_k=2), folder, 5)
    expected = {"logits": logits(model, TOKENS)}
    model = model.configure(ragged_dot=grouped_matmul)

    def call(m, *, tokens):
        return {"logits": m(tokens, attention=attention)}

    return of_module(model, call, {"tokens": TOKENS}, expected)


def int8(folder):
    return quantized(folder, Spec(), "own")


def int4(folder):
    return quantized(folder, Spec(weight="int4", group=8), "own")


def int4_of_kernels(folder):
    return quantized(folder, Spec(weight="int4", group=8), KernelsProduct())


def quantized(folder, spec, matmul):
    model = from_directory(models.llama(**HEADS, max_length=16), folder, 6)
    small = apply(model, plan(model, [("**", spec)]), matmul=matmul)
    return of_module(small, lambda m, *, tokens: {"logits": m(tokens)}, {"tokens": TOKENS})


def recommender(folder):
    """Two towers of embedding tables, with ragged histories, in plain JAX."""
    rng = np.random.default_rng(7)
    shapes = {"users": (USERS, 8), "items": (ITEMS, 8), "mix": (16, 8), "bias": (ITEMS,)}
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def fn(p, *, user, history, count):
        seen = (jnp.arange(LENGTH)[None] < count[:, None])[..., None]
        taste = jnp.where(seen, p["items"][history], 0).sum(1) / jnp.maximum(count, 1)[:, None]
        query = jnp.tanh(jnp.concatenate([p["users"][user], taste], -1) @ p["mix"])
        return {"scores": query @ p["items"].T + p["bias"]}

    inputs = {
        "user": rng.integers(0, USERS, ROWS, dtype=np.int32),
        "history": rng.integers(0, ITEMS, (ROWS, LENGTH), dtype=np.int32),
        "count": np.array([0, 5, 1, 2, 3, 4, 2], np.int32),
    }
    wide = {name: array.astype(np.float64) for name, array in params.items()}
    scores = []
    for user, history, count in zip(*inputs.values(), strict=True):
        taste = wide["items"][history[:count]].sum(0) / max(count, 1)
        query = np.tanh(np.concatenate([wide["users"][user], taste]) @ wide["mix"])
        scores.append(wide["items"] @ query + wide["bias"])
    return Case(params, fn, inputs, {"scores": np.stack(scores)})


CASES = {
    make.__name__: make
    for make in (vit, bert, siglip, llama, mixtral, int8, int4, int4_of_kernels, recommender)
}


@pytest.fixture(scope="module")
def elsewhere():
    """A function of a folder: the report of another process, which has answered from its bundle."""
    line = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def answer(folder):
            assert None not in (process.stdin, process.stdout, process.stderr)
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            answered = process.stdout.readline()
            assert answered, process.stderr.read()
            return json.loads(answered)

        yield answer
        process.communicate()  # closes its input, and so ends it


@pytest.mark.parametrize("name", CASES)
def test_from_a_directory_to_an_answer_where_flax_is_absent(name, tmp_path, elsewhere):
    case = CASES[name](tmp_path / "hf")
    tensors = {k: Tensor(("batch", *x.shape[1:]), x.dtype.name) for k, x in case.inputs.items()}
    example = {k: x[:3] for k, x in case.inputs.items()}
    bundle = export(case.fn, case.params, inputs=tensors, example=example, batch_sizes=BATCH_SIZES)
    digest = bundle.save(tmp_path / "bundle")
    np.savez(tmp_path / "inputs.npz", **case.inputs)

    report = elsewhere(tmp_path)
    assert report["digest"] == digest
    assert {"flax", "dovetail_models", "dovetail_quant", "dovetail_kernels"} <= {*report["absent"]}
    with np.load(tmp_path / "outputs.npz") as found:
        assert found.keys() == case.expected.keys()
        for key, wanted in case.expected.items():
            # Sums of at most 24 float32 products through a layer or two, in another order for each
            # number of rows.
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(found[key], wanted, rtol=0, atol=2e-5 * scale, err_msg=key)

    manifest = open_bundle(tmp_path / "bundle").manifest
    programs = [(program.batch, program.platforms) for program in manifest.programs]
    platforms = ("cpu", "cuda", "tpu")
    assert programs == [(1, platforms), (4, platforms), ("symbolic", platforms)]
    assert manifest.symbolic is None
    if name.startswith("int4"):  # half a byte for each weight, not a float
        codes = manifest.weights["layers.0.mlp.up.kernel.value.prepared.values"]
        assert codes.dtype == "uint8"
        assert np.prod(codes.shape) == 16 * 24 / 2
