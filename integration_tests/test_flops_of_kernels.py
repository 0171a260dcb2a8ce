# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's count of a fused operation is the count by hand, with all rounds of its loops.

The products of the operations run in loops whose length values decide. Expected numbers are
formulas over shapes, and visible pairs of attention are counted from masks in NumPy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jax.sharding import PartitionSpec as P

import dovetail_kernels as kernels
from dovetail_models import Remat, abstract, llama
from dovetail_train import (
    Precision,
    Trainer,
    abstract_mesh,
    context_parallel,
    count_flops,
    estimate,
    lm_loss,
)
from dovetail_train.mesh.mesh import ambient


def _shape(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def _qkv(b, t, n, k, h):
    return _shape(b, t, n, h), _shape(b, t, k, h), _shape(b, t, k, h)


def _sum(fn, **options):
    return lambda *args: fn(*args, **options).sum()


def _pairs(length, *, window=None):
    """Visible pairs of a causal row, from the mask itself."""
    ahead = np.arange(length)[:, None] - np.arange(length)[None]
    return int(((ahead >= 0) & (ahead < (window or length))).sum())


def test_packed_attention_of_an_absent_gpu_counts_as_one_document():
    """By calls of cuDNN with FLOPs in names; the branch for other ids has whole tiles."""
    b, t, n, k, h = 2, 4096, 16, 4, 128
    arrays = (x.update(dtype=jnp.bfloat16) for x in _qkv(b, t, n, k, h))
    mesh = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda"))
    loss = jax.grad(_sum(_packed, causal=True), (0, 1, 2))
    with use_abstract_mesh(mesh):
        grads = count_flops(loss, *arrays, _shape(b, t, dtype=jnp.int32))
    product = 2 * b * n * _pairs(t) * h
    assert grads.model == pytest.approx(6 * product, rel=0.02)
    assert grads.recomputed == pytest.approx(product, rel=0.02)
    assert grads.opaque == {}


def _packed(q, k, v, ids, **options):
    return kernels.attention(q, k, v, segment_ids=ids, positions=ids, **options)


def test_causal_attention_at_32k_counts_half_of_the_scores():
    b, t, n, k, h = 1, 32_768, 8, 2, 128
    full = 4 * b * n * t * t * h
    forward = count_flops(lambda *a: kernels.attention(*a, causal=True), *_qkv(b, t, n, k, h))
    assert forward.model == pytest.approx(0.5 * full, rel=1e-4)
    assert (forward.recomputed, forward.opaque) == (0, {})
    loss = _sum(kernels.attention, causal=True)
    grads = count_flops(jax.grad(loss, (0, 1, 2)), *_qkv(b, t, n, k, h))
    # FlashAttention-2 (2307.08691): the backward pass takes five products for the forward's two.
    # The logits, one of the five, are computed again.
    assert grads.model == 3 * forward.model
    assert grads.recomputed == forward.model / 2
    assert grads.opaque == {}


@pytest.mark.thorough
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
@pytest.mark.parametrize("length, window", [(1000, None), (1001, 130), (100, None), (2048, 4096)])
def test_windows_odd_lengths_and_grouped_queries_count_visible_pairs(length, window, heads):
    b, (n, k), h = 2, heads, 32
    options = {"causal": True, "window": window}
    counted = count_flops(lambda *a: kernels.attention(*a, **options), *_qkv(b, length, n, k, h))
    assert counted.model == 4 * b * n * h * _pairs(length, window=window)
    everywhere = count_flops(kernels.attention, *_qkv(b, length, n, k, h))
    assert everywhere.model == 4 * b * n * h * length**2


@pytest.mark.thorough
def test_packed_rows_count_as_one_document():
    b, t, n, h = 2, 512, 2, 32
    ids = _shape(b, t, dtype=jnp.int32)

    def packed(q, k, v, ids, positions):
        return kernels.attention(q, k, v, causal=True, segment_ids=ids, positions=positions)

    counted = count_flops(packed, *_qkv(b, t, n, n, h), ids, ids)
    assert counted.model == 4 * b * n * h * _pairs(t)
    # Queries of the end of a row, as in a prefill of a long prompt by chunks: at most all pairs.
    chunk = (_shape(b, 64, n, h), *_qkv(b, t, n, n, h)[1:], _shape(b, 64, dtype=jnp.int32), ids)
    prefill = count_flops(
        lambda q, k, v, mine, every: kernels.attention(
            q, k, v, causal=True, positions=(mine, every)
        ),
        *chunk,
    )
    assert prefill.model == 4 * b * n * h * 64 * t


@pytest.mark.thorough
def test_transformations_scale_the_count():
    t, n, h = 300, 2, 32
    once = 4 * n * h * _pairs(t)
    attend = lambda q, k, v: kernels.attention(q, k, v, causal=True)  # noqa: E731, an argument
    several = [_shape(5, *x.shape) for x in _qkv(1, t, n, n, h)]
    assert count_flops(jax.vmap(attend), *several).model == 5 * once
    assert count_flops(jax.jit(jax.vmap(attend)), *several).opaque == {}

    def layers(q, wrap):
        body = wrap(lambda q, _: (attend(jnp.tanh(q), q, q), None))
        return jax.lax.scan(body, q, length=7)[0].sum()

    q = _shape(1, t, n, h)
    plain = count_flops(jax.grad(lambda q: layers(q, lambda f: f)), q)
    assert (plain.model, plain.recomputed) == (7 * 3 * once, 7 * once // 2)
    again = count_flops(jax.grad(lambda q: layers(q, jax.checkpoint)), q)
    assert (again.model, again.recomputed) == (7 * 3 * once, 7 * (once + once // 2))

    mesh = abstract_mesh(8)
    rows = P(("fsdp",))
    with ambient(mesh):
        split = jax.shard_map(
            lambda q: jax.grad(_sum(attend))(q, q, q), in_specs=rows, out_specs=rows
        )
        shards = count_flops(split, _shape(16, t, n, h))
    assert shards.model == 16 * 3 * once
    assert shards.opaque == {}


@pytest.mark.parametrize(
    "tokens, width, vocabulary",
    [
        (1000, 64, 50_257),
        pytest.param(4096, 2048, 128_256, marks=pytest.mark.thorough),  # forms its logits twice
        pytest.param(7, 5, 11, marks=pytest.mark.thorough),
    ],
)
def test_a_fused_loss_counts_its_head_once_and_its_gradient_twice(tokens, width, vocabulary):
    args = _shape(tokens, width), _shape(width, vocabulary), _shape(tokens, dtype=jnp.int32)
    head = 2 * tokens * width * vocabulary
    loss = lambda *a: kernels.linear_cross_entropy(*a).sum  # noqa: E731, an argument
    forward = count_flops(loss, *args)
    assert (forward.model, forward.recomputed, forward.opaque) == (head, 0, {})
    grads = count_flops(jax.value_and_grad(loss, (0, 1)), *args)
    assert (grads.model, grads.opaque) == (3 * head, {})
    assert grads.recomputed in (0, head)
    frozen = count_flops(jax.grad(loss), *args)
    assert frozen.model == 2 * head
    logps = count_flops(jax.grad(lambda *a: kernels.linear_logprobs(*a)[0].sum(), (0, 1)), *args)
    assert (logps.model, logps.recomputed, logps.opaque) == (3 * head, head, {})


@pytest.mark.thorough
@pytest.mark.parametrize("rows, experts", [(1000, 8), (7, 3), (64, 100)])
def test_grouped_products_count_each_row_once(rows, experts):
    width, hidden = 24, 40
    args = _shape(rows, width), _shape(experts, width, hidden), _shape(experts, dtype=jnp.int32)
    product = 2 * rows * width * hidden
    forward = count_flops(kernels.grouped_matmul, *args)
    assert (forward.model, forward.opaque) == (product, {})
    grads = count_flops(jax.grad(_sum(kernels.grouped_matmul), (0, 1)), *args)
    assert (grads.model, grads.recomputed, grads.opaque) == (3 * product, 0, {})
    batched = [_shape(3, *x.shape, dtype=x.dtype) for x in args]
    assert count_flops(jax.vmap(kernels.grouped_matmul), *batched).model == 3 * product


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "H200", "v5e"])
@pytest.mark.parametrize("rows, window", [(4, None), (300, None), (9, 64)])
def test_paged_attention_counts_requests_of_full_length(rows, window, device):
    requests, columns, page, n, k, h = 4, 80, 16, 4, 2, 32
    ids = lambda *shape: _shape(*shape, dtype=jnp.int32)  # noqa: E731, shorter
    args = (
        _shape(rows, n, h),
        _shape(requests * columns, 2, page, k, h),
        ids(requests, columns),
        ids(requests),
        ids(requests + 1),
    )

    def paged(q, pages, table, lengths, starts):
        given = {"page_table": table, "kv_lengths": lengths, "q_starts": starts}
        return kernels.paged_attention(q, pages, window=window, **given)

    with ambient(abstract_mesh(1, device=device)):
        counted = count_flops(paged, *args)
    assert counted.model == 4 * rows * n * h * (window or columns * page)
    assert counted.opaque == {}


ROWS, LENGTH = 8, 4096
SIZES = {"vocab_size": 96, "embed": 64, "depth": 2, "heads": 2, "kv_heads": 1, "mlp": 128}
CONFIG = llama(**SIZES, tie=True)
FIELDS = {"tokens": jnp.int32, "targets": jnp.int32, "mask": jnp.float32}


def _needs(mesh, *, remat=None, fields=FIELDS, **options):
    trainer = Trainer(
        optax.adam(1e-3),
        lm_loss(
            attention=context_parallel(kernels.attention, **options),
            cross_entropy=kernels.linear_cross_entropy,
        ),
        mesh=mesh,
        precision=Precision(compute="bfloat16"),
    )
    model = abstract(CONFIG, mesh=mesh)
    if remat is not None:
        model = model.configure(remat=remat)
    batch = {name: _shape(ROWS, LENGTH, dtype=dtype) for name, dtype in fields.items()}
    return estimate(trainer, model, batch)


def _six_n_d():
    """6 N D and the products of attention, by hand."""
    embed, width = SIZES["embed"], SIZES["embed"] // SIZES["heads"]
    projections = embed * width * 2 * (SIZES["heads"] + SIZES["kv_heads"])
    matrices = SIZES["depth"] * (projections + 3 * embed * SIZES["mlp"])
    matrices += SIZES["vocab_size"] * embed
    attention = SIZES["depth"] * SIZES["heads"] * 4 * width * _pairs(LENGTH)
    return ROWS * LENGTH * 6 * matrices, ROWS * 3 * attention


@pytest.mark.parametrize(
    "device, count, axes",
    [
        ("v5e", 1, {}),
        pytest.param("cpu", 1, {}, marks=pytest.mark.thorough),
        pytest.param("H200", 1, {}, marks=pytest.mark.thorough),
        pytest.param("v5e", 8, {"fsdp": 8}, marks=pytest.mark.thorough),
        pytest.param("v5e", 8, {"fsdp": 4, "context": 2}, marks=pytest.mark.thorough),
    ],
)
def test_a_whole_step_is_six_n_d_and_its_attention(device, count, axes):
    needs = _needs(abstract_mesh(count, device=device, **axes))
    products, attention = _six_n_d()
    assert needs.model_flops == products + attention
    assert needs.opaque == {}
    assert needs.recomputed_flops in (attention // 6, attention // 6 + products // 3)


@pytest.mark.thorough
def test_a_step_that_gathers_keys_and_one_that_recomputes_count_the_same():
    products, attention = _six_n_d()
    fields = FIELDS | {"positions": jnp.int32, "segment_ids": jnp.int32}
    mesh = abstract_mesh(8, device="v5e", fsdp=4, context=2)
    gathered = _needs(mesh, method="gather", fields=fields)
    assert gathered.model_flops == pytest.approx(products + attention, rel=1e-3)
    assert gathered.opaque == {}
    plain = _needs(abstract_mesh(1, device="v5e"))
    again = _needs(abstract_mesh(1, device="v5e"), remat=Remat(save=()))
    assert again.model_flops == plain.model_flops
    # The forward pass of the layers once more.
    head = ROWS * LENGTH * 2 * SIZES["vocab_size"] * SIZES["embed"]
    most = (products + attention) // 3 - head
    assert 0.7 * most < again.recomputed_flops - plain.recomputed_flops <= most
