# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""cuDNN's calls of packed rows, by their documented meaning, in place of `jax.ffi.ffi_call`.

Every operand is read as cuDNN reads memory: a run is a length and an offset in elements, and the
log-sum-exp of its i-th token lies at [run, head, i]. What cuDNN does not write is NaN.
"""

import json

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels.attention.cudnn import call as cudnn_call


@pytest.fixture
def cudnn_by_numbers(monkeypatch):
    """Replaces `jax.ffi.ffi_call`, for calls of cuDNN alone, and adds float32."""
    monkeypatch.setitem(cudnn_call._ELEMENTS, "float32", "F32")
    monkeypatch.setattr(jax.ffi, "ffi_call", _ffi_call)


def _ffi_call(target, shapes, *, output_layouts, custom_call_api_version, legacy_backend_config):
    assert custom_call_api_version == 2
    assert output_layouts[-1] is None
    config = json.loads(legacy_backend_config)["cudnn_fmha_backend_config"]
    forward = target == "__cudnn$fmhaSoftmax"
    assert forward or target == "__cudnn$fmhaSoftmaxBackward"

    def call(*operands):
        with jax.numpy_rank_promotion("allow"):
            results = _forward(config, *operands) if forward else _backward(config, *operands)
        results = [*results[: len(shapes) - 1], jnp.zeros(0, jnp.uint8)]
        for x, shape, order in zip(results, shapes, output_layouts, strict=True):
            assert (x.shape, x.dtype) == (shape.shape, shape.dtype)
            assert order == ((0, 2, 1, 3) if x.ndim == 4 else None)
        return results

    return call


def _pairs(config, q, k, q_lengths, k_lengths, q_offsets, k_offsets):
    """Returns the run and index of each query, and the visible pairs [queries, keys]."""
    runs = q_lengths.size
    assert runs == config["max_seg_per_batch"] * q.shape[0]
    sides = []
    for x, lengths, offsets in ((q, q_lengths, q_offsets), (k, k_lengths, k_offsets)):
        token, stride = jnp.arange(x.shape[0] * x.shape[1]), x.shape[2] * x.shape[3]
        # A run that begins within a token would read parts of two: of no run here.
        begin = jnp.where(offsets.reshape(-1)[:runs, None] % stride, -1, 1)
        begin = begin * (offsets.reshape(-1)[:runs, None] // stride)
        inside = (begin <= token) & (token < begin + lengths.reshape(-1)[:, None]) & (begin >= 0)
        run = jnp.where(inside.any(0), inside.argmax(0), -1)
        sides.append((run, token - begin[run, 0]))
    (q_run, q_index), (k_run, k_index) = sides
    seen = (q_run[:, None] == k_run) & (q_run[:, None] >= 0)
    if config["mask_type"] == "PADDING_CAUSAL":
        seen &= q_index[:, None] >= k_index
    else:
        assert config["mask_type"] == "PADDING"
    return q_run, q_index, k_run, seen


def _logits(config, q, k, seen):
    q, k = (x.reshape(-1, *x.shape[2:]).astype(jnp.float32) for x in (q, k))
    k = jnp.repeat(k, q.shape[1] // k.shape[1], 1)
    return jnp.where(seen, config["fmha_scale"] * jnp.einsum("tnh,snh->nts", q, k), -jnp.inf)


def _written(x, like, run, dtype):
    """Returns tokens [tokens, n, h] as [b, n, t, h], NaN for tokens of no run."""
    x = jnp.where((run >= 0)[:, None, None], x, jnp.nan).reshape(*like.shape[:3], x.shape[-1])
    return x.swapaxes(1, 2).astype(dtype)


def _forward(config, q, k, v, *extents):
    run, index, _, seen = _pairs(config, q, k, *extents)
    logits = _logits(config, q, k, seen)
    lse = jax.nn.logsumexp(logits, -1)
    wide = jnp.repeat(v.reshape(-1, *v.shape[2:]), q.shape[2] // k.shape[2], 1)
    out = jnp.einsum("nts,snh->tnh", jnp.exp(logits - lse[..., None]), wide.astype(jnp.float32))
    kept = jnp.full((extents[0].size, q.shape[2], q.shape[1]), jnp.nan)
    place = jnp.where(run >= 0, run, kept.shape[0])
    kept = kept.at[place, :, index].set(lse.T, mode="drop")
    return _written(out, q, run, q.dtype), kept


def _backward(config, q, k, v, lse, g, out, *extents):
    run, index, k_run, seen = _pairs(config, q, k, *extents)
    row = lse[jnp.maximum(run, 0), :, index].T[..., None]
    p = jnp.where(seen, jnp.exp(_logits(config, q, k, seen) - row), 0)
    flat = lambda x: x.reshape(-1, *x.shape[2:]).astype(jnp.float32)  # noqa: E731
    group = q.shape[2] // k.shape[2]
    wide = lambda x: jnp.repeat(flat(x), group, 1)  # noqa: E731
    delta = (flat(g) * flat(out)).sum(-1).T[..., None]
    ds = p * (jnp.einsum("tnh,snh->nts", flat(g), wide(v)) - delta) * config["fmha_scale"]
    ds = jnp.where(seen, ds, 0)
    narrow = lambda x: x.reshape(len(x), -1, group, x.shape[-1]).sum(2)  # noqa: E731
    dq = jnp.einsum("nts,snh->tnh", ds, wide(k))
    dk = narrow(jnp.einsum("nts,tnh->snh", ds, flat(q)))
    dv = narrow(jnp.einsum("nts,tnh->snh", p, flat(g)))
    return (
        _written(dq, q, run, q.dtype),
        _written(dk, k, k_run, k.dtype),
        _written(dv, v, k_run, v.dtype),
    )
