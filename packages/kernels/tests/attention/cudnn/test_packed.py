# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed rows give the documented answer whatever the ids: by cuDNN in runs, else by the next one.

No cuDNN is here. Its custom calls are computed from their operands, as cuDNN documents them
(conftest.py), and the answers are compared with NumPy in float64.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.cudnn import packed as cudnn_packed
from dovetail_kernels.attention.cudnn.runs import OTHER, RISING, SOME_FLAT, find_runs
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.dispatch import Device

H200 = Device(platform="gpu", kind="NVIDIA H200")
B, T, N, K, H = 4, 48, 4, 2, 16


pytestmark = pytest.mark.usefixtures("cudnn_by_numbers")


def restarted(ids):
    """Positions from 0 in each run, and 0 in padding, as packers give them."""
    before = np.pad(ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    first = np.maximum.accumulate(np.where(ids != before, np.arange(ids.shape[1]), 0), 1)
    return np.where(ids == 0, 0, np.arange(ids.shape[1]) - first).astype(np.int32)


def packed(lengths, padding=0):
    """Ids of one row: runs of these lengths from 1 on, then padding of id 0."""
    return np.repeat([*range(1, len(lengths) + 1), 0], [*lengths, padding])


IDS = {
    "runs": [packed([10, 1, 37]), packed([48]), packed([1, 1, 1, 45]), packed([20, 20, 8])],
    "padding": [packed([10, 20], 18), packed([47], 1), packed([48]), packed([], 48)],
    "gap": [np.repeat([1, 0, 2], [9, 30, 9])] * 4,
    "one id in two runs": [packed([10, 20, 18]), np.repeat([5, 7, 5], 16), *[packed([48])] * 2],
    "padding on both sides": [np.repeat([0, 1, 0], 16)] * 4,
    "more runs than cuDNN gets": [np.arange(48)] * 4,
    "many in one row, few in others": [np.arange(48) // 2 + 1, *[packed([48])] * 3],
}
BY_CUDNN = {"runs", "padding", "gap", "many in one row, few in others"}


def arrays_of(name, dtype=jnp.float32):
    rng = np.random.default_rng(sum(map(ord, name)))
    shapes = [(B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def visible(ids, positions, causal):
    seen = ids[:, :, None] == ids[:, None]
    return seen & (positions[:, :, None] >= positions[:, None]) if causal else seen


def expected(q, k, v, g, seen):
    """out, dq, dk and dv in float64."""
    q, k, v, g = (np.asarray(x, np.float64) for x in (q, k, v, g))
    wide = [np.repeat(x, N // K, 2) for x in (k, v)]
    logits = np.einsum("btnh,bsnh->bnts", q, wide[0]) * H**-0.5
    logits = np.where(seen[:, None], logits, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("bnts,bsnh->btnh", p, wide[1])
    dp = np.einsum("btnh,bsnh->bnts", g, wide[1])
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * H**-0.5
    narrow = lambda x: x.reshape(B, T, K, N // K, H).sum(3)  # noqa: E731
    dq = np.einsum("bnts,bsnh->btnh", ds, wide[0])
    dk = narrow(np.einsum("bnts,btnh->bsnh", ds, q))
    return out, dq, dk, narrow(np.einsum("bnts,btnh->bsnh", p, g))


def attention(q, k, v, ids, positions=None, causal=True):
    """Attention by "cudnn_packed", as on an H200."""
    pair = lambda x: None if x is None else (jnp.asarray(x),) * 2  # noqa: E731
    options = {"segment_ids": pair(ids), "positions": pair(positions)}
    call = plan_attention(q, k, v, causal=causal, **options).call
    call = dataclasses.replace(call, device=H200)
    assert cudnn_packed.refuse(dataclasses.replace(call, dtype=jnp.dtype("bfloat16"))) is None
    return cudnn_packed.run(call, Inputs(q, k, v, **options))


@functools.cache
def program(causal, positions, grad=True):
    """One program for all ids, as for the batches of a run."""

    def run(ids, places, *arrays):
        function = functools.partial(
            attention, ids=ids, positions=places if positions else None, causal=causal
        )
        if not grad:
            return (function(*arrays[:3]),)
        out, pull = jax.vjp(function, *arrays[:3])
        return out, *pull(arrays[3])

    return jax.jit(run)


def compare(results, answers, name=""):
    # Sums of at most T terms in float32, of order 1.
    for result, answer in zip(results, answers, strict=True):
        np.testing.assert_allclose(result, answer, atol=T * 2**-23 * 8, rtol=0, err_msg=name)


def check(name, *, causal=True, positions=False, grad=True, run=None):
    ids = np.stack(IDS[name]).astype(np.int32)
    places = restarted(ids) if positions else np.tile(np.arange(T, dtype=np.int32), (B, 1))
    arrays = arrays_of(name)
    results = (run or program(causal, positions, grad))(ids, places, *arrays)
    answers = expected(*arrays, visible(ids, places, causal))
    compare(results, answers if grad else answers[:1], name)


@pytest.mark.parametrize("name", IDS)
def test_answers_for_rows_of_a_packer(name):
    check(name, positions=True)


@pytest.mark.thorough
@pytest.mark.parametrize("causal, grad", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("name", IDS)
def test_answers(name, causal, grad):
    check(name, causal=causal, grad=grad)


@pytest.mark.parametrize("causal, positions", [(True, True), (True, False), (False, True)])
def test_ids_decide_between_cudnn_and_the_next(causal, positions):
    kinds = {}
    for name, rows in IDS.items():
        ids = jnp.asarray(np.stack(rows), jnp.int32)
        places = jnp.asarray(restarted(np.asarray(ids))) if positions else None
        pair = None if places is None else (places, places)
        inputs = Inputs(*(jnp.zeros((B, T, 1, 1)),) * 3, segment_ids=(ids, ids), positions=pair)
        kinds[name] = int(find_runs(inputs, causal=causal, rows=B, most=8).kind)
    of_flat = {"padding", "gap"} if causal and positions else set()
    wanted = {
        name: OTHER if name not in BY_CUDNN else SOME_FLAT if name in of_flat else RISING
        for name in IDS
    }
    assert kinds == wanted


def test_batches_go_slice_by_slice(monkeypatch):
    monkeypatch.setattr(cudnn_packed, "_BYTES", 2 * 8 * 4 * T * N * H)  # two rows of 8 runs
    for name in ("padding", "one id in two runs"):
        check(name, positions=True, run=program.__wrapped__(True, True))
    with jax.numpy_rank_promotion("allow"):
        text = str(jax.make_jaxpr(program.__wrapped__(True, True))(*abstract()))
    assert "length=2" in text


def abstract(dtype=jnp.float32):
    ids = jax.ShapeDtypeStruct((B, T), jnp.int32)
    q, k = (jax.ShapeDtypeStruct((B, T, n, H), dtype) for n in (N, K))
    return ids, ids, q, k, k, q


@pytest.mark.thorough
def test_under_vmap():
    """Elements with own ids, and a vmap of the gradient alone (jacrev)."""
    names = ["runs", "padding", "one id in two runs"]
    ids = np.stack([np.stack(IDS[name]) for name in names]).astype(np.int32)
    arrays = [jnp.stack(x) for x in zip(*map(arrays_of, names), strict=True)]
    places = np.stack([restarted(x) for x in ids])
    results = jax.vmap(program(True, True))(ids, places, *arrays)
    for i, name in enumerate(names):
        one = [x[i] for x in arrays]
        compare([x[i] for x in results], expected(*one, visible(ids[i], places[i], True)), name)
    q, k, v, _ = arrays_of("runs")
    g = jnp.stack([arrays_of(name)[3] for name in names])
    pull = jax.vjp(functools.partial(attention, ids=ids[0]), q, k, v)[1]
    for i, gradients in enumerate(zip(*jax.vmap(pull)(g), strict=True)):
        compare(
            gradients,
            expected(q, k, v, g[i], visible(ids[0], places[0], False) & np.tri(T, dtype=bool))[1:],
        )


@pytest.mark.thorough
def test_under_scan_and_checkpoint():
    """A policy that saves "attn_out" runs the forward pass once."""
    arrays, ids = arrays_of("runs"), np.stack(IDS["runs"]).astype(np.int32)
    policy = jax.checkpoint_policies.save_only_these_names("attn_out")

    def loss(q, k, v, policy=None):
        layer = jax.checkpoint(lambda q: attention(q, k, v, ids), policy=policy)
        return jax.lax.scan(lambda q, _: (layer(q), None), q, length=2)[0].sum()

    saved, again = (
        jax.jit(jax.grad(functools.partial(loss, policy=policy))).lower(*arrays[:3]).as_text()
        for policy in (policy, None)
    )
    assert 0 < saved.count("stablehlo.log ") < again.count("stablehlo.log ")
    q, k, v, _ = arrays
    one = expected(*arrays, visible(ids, np.tile(np.arange(T), (B, 1)), True))[0]
    two = expected(one, k, v, one, visible(ids, np.tile(np.arange(T), (B, 1)), True))[0]
    np.testing.assert_allclose(loss(q, k, v), two.sum(), rtol=1e-4)


def test_second_derivatives_are_refused():
    q, k, v, _ = arrays_of("runs")
    ids = np.stack(IDS["runs"]).astype(np.int32)
    loss = lambda q: attention(q, k, v, ids).sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match="attention has first derivatives alone"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(q)


def call_of(t=512, s=None, heads=4, width=64, dtype=jnp.bfloat16, device=H200, **options):
    shapes = [(2, t, heads, width), (2, s or t, 2, width), (2, s or t, 2, width)]
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    ids = jax.ShapeDtypeStruct((2, t), jnp.int32)
    ids = ids if s is None else (ids, jax.ShapeDtypeStruct((2, s), jnp.int32))
    options = {"segment_ids": ids, **options}
    return dataclasses.replace(plan_attention(*arrays, **options).call, device=device)


REFUSED = {
    "cpu": ({"device": Device(platform="cpu", kind="cpu")}, "NVIDIA GPUs, not on cpu"),
    "before Hopper": (
        {"device": Device(platform="gpu", kind="NVIDIA A100-SXM4-80GB")},
        "need a Hopper GPU or a later one, not NVIDIA A100",
    ),
    "no segments": ({"segment_ids": None}, "is for packed rows, with segment_ids"),
    "two lengths": ({"s": 256}, "of one length, not T=512, S=256"),
    "head_dim": ({"width": 72}, "multiple of 16 up to 128, not 72"),
    "wide": ({"width": 256}, "multiple of 16 up to 128, not 256"),
    "float32": ({"dtype": jnp.float32}, "bfloat16 and float16, not float32"),
    "odd": ({"t": 511}, "odd lengths, T=511, S=511"),
    "window": ({"window": 9, "causal": True}, "with window or kv_lengths are not known"),
    "lengths": ({"kv_lengths": jax.ShapeDtypeStruct((2,), jnp.int32)}, "window or kv_lengths"),
    "soft cap": ({"soft_cap": 2.0}, "no soft_cap"),
    "stats": ({"stats": True}, "no stats"),
    "long": ({"t": 2**18, "heads": 16}, "bound the documents per row at 2, fewer than 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    options, reason = REFUSED[name]
    assert reason in (cudnn_packed.refuse(call_of(**options)) or "not refused")


def test_another_jax_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 13, 0))
    assert "from jax 0.10.2 to before 0.13, not in 0.13.0" in (
        cudnn_packed.refuse(call_of()) or "not refused"
    )


@pytest.mark.parametrize("positions", [None, jax.ShapeDtypeStruct((2, 512), jnp.int32)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_taken(positions, causal, dtype):
    call = call_of(positions=positions, causal=causal, dtype=dtype)
    assert cudnn_packed.refuse(call) is None
    assert cudnn_packed.CUDNN_PACKED.work(call).flops > 0


def test_the_memory_of_sums_bounds_runs_and_rows():
    """16 runs of 4096 tokens: 2 GiB hold the sums of 4 rows of 16 heads of 128."""
    call = dataclasses.replace(call_of(t=4096, heads=16, width=128), batch=6)
    assert (cudnn_packed._most(call), cudnn_packed._rows(call)) == (16, 3)
    wide = dataclasses.replace(call_of(t=8192, heads=32, width=128), batch=6)
    assert (cudnn_packed._most(wide), cudnn_packed._rows(wide)) == (16, 1)
