# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Our calls of cuDNN are those of JAX, attribute by attribute, operand by operand.

JAX's are lowered for CUDA without a GPU, by skipping its checks of the device. They are private, so
a JAX that moves them fails here: compare again, then move the range in `refuse_version`.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels import paged_attention
from dovetail_kernels.attention.cudnn import call as ours
from dovetail_kernels.attention.cudnn.call import Form, Lengths, Offsets, Pages

B, T, S, N, K, H, RUNS = 2, 6, 10, 4, 2, 16, 3


def normal(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def ints(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def calls(f, *arrays):
    """The calls of cuDNN in `f`, without the names of the values, in text."""
    text = jax.jit(f).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    texts = re.findall(r"@(__cudnn\$\w+)\(.*?\) (\{.*\} : .*)", text)
    assert texts
    return texts


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91900)
    monkeypatch.setattr(fused, "check_is_flash_attention", lambda *_, **__: None)


def both(arrays, lengths=None, offsets=None, pages=None, **form):
    """The calls of JAX and ours: forward, forward with statistics, and both gradients."""
    q = arrays[0]
    options = {"scale": form["scale"], "mask_type": fused.MaskType[form["mask"]]}
    options["sliding_window_length"] = form.get("window")
    optional = [*(lengths or ()), *(offsets or ()), *(pages or ())]
    named = [f"{side}_seqlen" for side in ("q", "kv") if lengths]
    named += [f"{side}_offsets" for side in ("q", "kv") if offsets]
    named += [f"page_table_{side}" for side in ("k", "v") if pages]
    call = fused.paged_attention if pages else fused.dot_product_attention

    def theirs(q, k, v, *rest, **more):
        return call(q, k, v, **dict(zip(named, rest, strict=True)), **options, **more)

    def groups(rest):
        rest = list(rest)
        kinds = ((lengths, Lengths), (offsets, Offsets), (pages, Pages))
        names = ("lengths", "offsets", "pages")
        return {
            name: kind(rest.pop(0), rest.pop(0))
            for name, (given, kind) in zip(names, kinds, strict=True)
            if given
        }

    def forward(q, k, v, *rest, **more):
        return ours.forward(Form(**form), q, k, v, **groups(rest), **more)

    def both_ways(q, k, v, g, *rest):
        out, lse = forward(q, k, v, *rest, stats=True)
        kept = {"lse": lse, "out": out, "cotangent": g}
        return ours.backward(Form(**form), q, k, v, **kept, **groups(rest))

    def gradients(q, k, v, g, *rest):
        return jax.vjp(lambda *x: theirs(*x, *rest), q, k, v)[1](g)

    arrays = [*arrays, *optional]
    yield calls(theirs, *arrays), calls(forward, *arrays)
    residual = lambda *x: theirs(*x, return_residual=True)  # noqa: E731
    yield calls(residual, *arrays), calls(lambda *x: forward(*x, stats=True), *arrays)
    if not pages:
        with_g = [*arrays[:3], q, *optional]
        yield calls(gradients, *with_g), calls(both_ways, *with_g)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
    "form",
    [
        {"scale": 0.3, "mask": "NO_MASK"},
        {"scale": 0.25, "mask": "CAUSAL"},
        {"scale": 0.25, "mask": "CAUSAL", "window": 3},
    ],
    ids=str,
)
def test_plain(form, dtype):
    arrays = [normal((B, n, heads, H), dtype) for n, heads in ((T, N), (S, K), (S, K))]
    for theirs, mine in both(arrays, **form):
        assert mine == theirs


@pytest.mark.parametrize("mask", ["PADDING", "PADDING_CAUSAL"])
@pytest.mark.parametrize("packed", [False, True])
def test_lengths_and_runs(mask, packed):
    arrays = [normal((B, n, heads, H)) for n, heads in ((T, N), (S, K), (S, K))]
    sizes = (B, RUNS) if packed else (B,)
    offsets = Offsets(ints(B, RUNS + 1), ints(B, RUNS + 1)) if packed else None
    extents = Lengths(ints(*sizes), ints(*sizes))
    for theirs, mine in both(arrays, extents, offsets, scale=0.5, mask=mask):
        assert mine == theirs
        assert ("\\22max_seg_per_batch\\22: 3" in str(mine).replace("\\\\", "\\")) == packed


def test_pages():
    pages, page = 3, 8
    tables = Pages(ints(B, 1, pages, 1), ints(B, 1, pages, 1))
    pool = normal((B * pages, page, K, H))
    arrays = [normal((B, 1, N, H)), pool, pool]
    for theirs, mine in both(
        arrays, Lengths(ints(B), ints(B)), None, tables, scale=0.5, mask="PADDING"
    ):
        assert mine == theirs


def test_decoding_over_pages():
    """One pool of 24 blocks is both containers; JAX's check asks for as many as the tables name."""
    rows, pages, page, columns = 4, 12, 16, 6
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")

    def attend(q, pool, table, lengths, starts):
        return paged_attention(q, pool, page_table=table, kv_lengths=lengths, q_starts=starts)

    def expected(q, pool, table, lengths):
        ones = jnp.ones_like(lengths)
        options = {"scale": 64**-0.5, "mask_type": fused.MaskType.PADDING}
        return fused.paged_attention(q, pool, pool, ones, lengths, table, table, **options)

    q, pool = normal((rows, 8, 64)), normal((pages, 2, page, 2, 64))
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        (mine,) = calls(attend, q, pool, ints(rows, columns), ints(rows), ints(rows + 1))
    blocks = normal((2 * pages, page, 2, 64))
    tables = ints(rows, 1, columns, 1)
    assert [mine] == calls(expected, normal((rows, 1, 8, 64)), blocks, tables, ints(rows))
