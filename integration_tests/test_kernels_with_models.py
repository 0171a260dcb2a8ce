# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Models and the trainer with the operations of dovetail-kernels: the same answers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_kernels import (
    attention,
    grouped_matmul,
    linear_cross_entropy,
    paged_attention,
    paged_write,
)
from dovetail_models import Remat, gemma2, gpt_oss, init, kv_bytes, llama
from dovetail_models.testing import logits
from dovetail_train import Trainer, lm_loss

pytestmark = pytest.mark.thorough

SMALL = {"vocab_size": 53, "embed": 24, "depth": 2, "heads": 4, "mlp": 20}
HEADS = {**SMALL, "kv_heads": 2, "head_dim": 8}
LATENT = models.LatentAttention(
    heads=4, q_rank=8, kv_rank=12, nope_dim=6, rope_dim=4, v_dim=10, rope=models.Rope(theta=1e4)
)
DEEPSEEK = {"vocab_size": 53, "embed": 24, "mlp": 20, "depth": 2, "dense": 1}
EXPERTS = models.Experts(count=6, top_k=2, hidden=8, shared=8)
DECODED = {
    "llama": llama(**HEADS),
    "mistral": models.mistral(**HEADS, window=5),
    "qwen2": models.qwen2(**SMALL, kv_heads=2, tie=True),
    "qwen3": models.qwen3(**HEADS),
    "gemma2": gemma2(**HEADS, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0),
    "gemma3": models.gemma3(**HEADS, window=4, query_scalar=6.0, pattern=2),
    "gpt2": models.gpt2(**SMALL, max_length=32),
    "mixtral": models.mixtral(**HEADS, experts=5, top_k=2),
    "gpt_oss": gpt_oss(**HEADS, window=4, experts=5, top_k=2),
    "deepseek_v2": models.deepseek_v2(**DEEPSEEK, attention=LATENT, experts=EXPERTS),
    "deepseek_v3": models.deepseek_v3(**DEEPSEEK, attention=LATENT, experts=EXPERTS),
}
CONFIGS = {
    "llama": llama(**SMALL, kv_heads=2, head_dim=8),
    "gemma2": gemma2(**SMALL, kv_heads=2, head_dim=8, window=5, query_scalar=8.0, score_cap=2.0),
    "gpt_oss": gpt_oss(**SMALL, kv_heads=2, head_dim=8, window=5, experts=5, top_k=2),
}


@pytest.fixture(scope="module")
def batch():
    """Packed rows of odd documents, with padding at the end, and targets that do not count."""
    rng = np.random.default_rng(0)
    segments = np.repeat([[1, 2, 3, 0], [1, 2, 3, 4]], [11, 3, 20, 3], axis=1).astype(np.int32)
    shape = segments.shape
    starts = np.diff(segments, axis=1, prepend=-1) != 0
    index = np.broadcast_to(np.arange(shape[1]), shape)
    return {
        "tokens": rng.integers(0, 53, shape, dtype=np.int32),
        "targets": rng.integers(0, 53, shape, dtype=np.int32),
        "segment_ids": segments,
        "positions": index - np.maximum.accumulate(np.where(starts, index, 0), axis=1),
        "mask": (segments != 0).astype(np.float32) * (rng.random(shape) < 0.8),
    }


def _random(config):
    """A model without the ones and zeros that hide sinks, biases and scales."""
    model = init(config, seed=0)
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


@pytest.mark.capability("the training step with the kernels' attention and loss")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_loss_and_its_gradients_do_not_change(family, batch):
    model = _random(CONFIGS[family])
    batch = {**batch, "positions": batch["positions"].astype(np.int32)}

    def gradients(loss, model):
        def mean(model):
            total, count = loss(model, batch, key=None)
            return total / count

        return nnx.jit(nnx.value_and_grad(mean))(model)

    value, grads = gradients(lm_loss(), model)
    fast = lm_loss(attention=attention, cross_entropy=linear_cross_entropy)
    ours, moved = gradients(fast, model.configure(ragged_dot=grouped_matmul))
    # float32 in other orders of summation, through two layers.
    assert float(ours) == pytest.approx(float(value), rel=2e-6)
    for path, wanted in nnx.to_flat_state(grads):
        got = dict(nnx.to_flat_state(moved))[path]
        scale = float(jnp.abs(wanted[...]).max())
        np.testing.assert_allclose(got[...], wanted[...], atol=2e-5 * scale, err_msg=str(path))


@pytest.mark.parametrize("remat", [None, Remat()])
def test_a_run_has_the_same_losses(batch, remat):
    def losses(**operations):
        model = init(CONFIGS["llama"], seed=0).configure(scan=True, remat=remat)
        trainer = Trainer(optax.adamw(1e-2), lm_loss(z=1e-3, **operations))
        state, found = trainer.init(model), []
        for _ in range(5):
            state, metrics = trainer.step(state, batch)
            found.append(float(metrics.scalars["loss"]))
        return found

    plain = losses()
    assert plain[-1] < plain[0] - 0.1
    fast = losses(attention=attention, cross_entropy=linear_cross_entropy)
    # Adam divides by the root of a second moment: rounding grows over five steps.
    np.testing.assert_allclose(fast, plain, rtol=2e-5)


PAGE, STEP = 4, 16  # tokens of a page, and rows of a step, padding included
LENGTHS = (11, 9, 14)
TABLE = np.array([[5, 2, 9, 0], [7, 1, 4, 0], [3, 11, 6, 8]], np.int32)  # page 0 and 10: nobody's


def _pages(config):
    """One array of pages per layer: of keys alone where the keys hold the values."""
    kinds = [la.attention for la in config.layers]
    entries = [1 if a.cached[1] is None else 2 for a in kinds]
    shapes = [(12, n, PAGE, *a.cached[0]) for n, a in zip(entries, kinds, strict=True)]
    return [jnp.zeros(shape) for shape in shapes]


def _paged(value_widths, q, k, v, *, table, starts, lengths, positions, kv, **options):
    """The adapter of an engine: the attention of a decoder over pages."""
    options = {name: options[name] for name in ("window", "soft_cap", "scale", "sinks")}
    pages, layer = kv
    width = value_widths[int(layer.shape[0])]
    request = jnp.repeat(jnp.arange(3), jnp.diff(starts), total_repeat_length=q.shape[1])
    where = positions[0]
    slots = table[request, where // PAGE] * PAGE + where % PAGE
    slots = jnp.where(jnp.arange(q.shape[1]) < starts[-1], slots, -1)
    pages = paged_write(pages, k[0], None if width else v[0], slots=slots)
    rows = {"page_table": table, "kv_lengths": lengths, "q_starts": starts}
    out = paged_attention(q[0], pages, value_width=width, **rows, **options)
    return out[None], (pages, layer)


@nnx.jit
def _step(model, tokens, positions, pages, starts, lengths):
    """The logits of the rows [1, STEP] of three requests, and the pages after them."""
    widths = [la.attention.value_width for la in model.config.layers]
    # A layer's entry tells its index by the length of an empty array: a static value.
    kv = [(page, jnp.zeros((i, 0))) for i, page in enumerate(pages)]
    where = {"table": jnp.asarray(TABLE), "starts": starts, "lengths": lengths}
    attend = functools.partial(_paged, widths, **where)
    real = (jnp.arange(STEP) < starts[-1]).astype(jnp.int32)[None]
    options = {"positions": positions, "segment_ids": real}
    x, kv = model.features(tokens, attention=attend, kv=kv, **options)
    return model.head(x), [page for page, _ in kv]


@pytest.mark.parametrize("family", DECODED)
def test_pages_decode_what_whole_rows_do(family):
    config = DECODED[family]
    model = _random(config).configure(ragged_dot=grouped_matmul)
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 53, length, dtype=np.int32) for length in LENGTHS]
    pages, done, found = _pages(config), np.zeros(3, np.int32), [[], [], []]
    held = sum(page.nbytes for page in pages)
    assert held == 12 * PAGE * kv_bytes(config, dtype=jnp.float32)
    chunks = [(5, 3, 8), (1, 1, 1), (1, 3, 1), (4, 2, 4)]  # chunks and single rows, mixed
    for sizes in chunks:
        spans = [np.arange(d, d + n, dtype=np.int32) for d, n in zip(done, sizes, strict=True)]
        row = np.concatenate([t[s] for t, s in zip(tokens, spans, strict=True)])
        rows = [np.pad(x, (0, STEP - len(x)))[None] for x in (row, np.concatenate(spans))]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        done = done + np.array(sizes, np.int32)
        got, pages = _step(model, *rows, pages, starts, done)
        for request, (a, b) in enumerate(itertools.pairwise(starts)):
            found[request].append(got[0, a:b])
    assert tuple(done) == LENGTHS
    for request, ids in enumerate(tokens):
        want = logits(model, ids[None])[0]
        # float32 against float64: sums of at most 40 products of 6e-8, through two layers.
        bound = 1e-5 * np.abs(want).max()
        np.testing.assert_allclose(np.concatenate(found[request]), want, rtol=0, atol=bound)
