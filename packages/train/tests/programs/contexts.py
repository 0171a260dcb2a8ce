# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes, as JSON, the largest differences between attention on 8 devices and on one, by case."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import forced_devices
from dovetail_train import balanced_order, context_parallel, make_mesh

B, T, H, G = 4, 16, 6, 5
CASES = {
    "all_to_all": {"mesh": {"data": 2, "fsdp": 1, "context": 4}, "heads": (4, 4)},
    "gather": {"mesh": {"fsdp": 2, "context": 4}, "heads": (4, 4), "method": "gather"},
    "tensor": {"mesh": {"context": 2, "tensor": 2}, "heads": (8, 4)},
    "explicit": {"mesh": {"context": 2, "tensor": 2}, "heads": (8, 4), "explicit": True},
    "tensor gather": {
        "mesh": {"context": 4, "tensor": 2},
        "heads": (6, 2),
        "method": "gather",
        "positions": False,
    },
    "one key head": {"mesh": {"context": 4}, "heads": (4, 1), "sinks": True},
    "odd key heads": {"mesh": {"context": 2}, "heads": (12, 3), "positions": False},
    "no context": {"mesh": {"data": 4, "tensor": 2}, "heads": (4, 2), "sinks": True},
    "no context gather": {"mesh": {"tensor": 4}, "heads": (4, 2), "method": "gather"},
    "balanced": {
        "mesh": {"context": 4},
        "heads": (4, 2),
        "method": "gather",
        "sinks": True,
        "order": True,
    },
}


def attention(q, k, v, *, causal, positions, segment_ids, sinks, window=None):
    """By the formula; positions and segment_ids for both sides, or a pair."""

    def sides(x):
        return x if isinstance(x, tuple) else (x, x)

    rows, heads = q.shape[0], q.shape[2]
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(q.shape[1]), (rows, q.shape[1]))
    (query, key), (mine, theirs) = sides(positions), sides(segment_ids)
    ahead = query[:, :, None] - key[:, None, :]
    seen = (mine[:, :, None] == theirs[:, None, :]) & ((ahead >= 0) | (not causal))
    if window is not None:
        seen &= jnp.abs(ahead) < window
    k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k)
    scores = jnp.where(seen[:, None], scores, -1e30)
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total += jnp.exp(sinks[None, :, None, None] - top)
    return jnp.einsum("bnts,bsng->btng", weights / total, v)


def arrays(case):
    rng = np.random.default_rng(0)
    n, k = case["heads"]
    shapes = {"q": (B, T, n, H), "k": (B, T, k, H), "v": (B, T, k, G), "out": (B, T, n, G)}
    made = {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    made["sinks"] = rng.normal(size=n).astype("f4") if case.get("sinks") else None
    segments = np.sort(rng.integers(1, 4, (B, T)), axis=1).astype(np.int32)
    first = np.array([[np.flatnonzero(row == i)[0] for i in row] for row in segments])
    positions = (np.arange(T) - first).astype(np.int32) if case.get("positions", True) else None
    if case.get("order"):
        order = balanced_order(T, shards=case["mesh"]["context"])
        made |= {name: made[name][:, order] for name in ("q", "k", "v", "out")}
        segments, positions = segments[:, order], positions[:, order]
    return made, segments, positions


def both(attend, made, segments, positions):
    """The result and the gradients of all inputs."""

    def total(q, k, v, sinks, out):
        options = {"positions": positions, "segment_ids": segments, "window": 5}
        found = attend(q, k, v, causal=True, sinks=sinks, **options)
        return (found * out).sum(), found

    given = [made[name] for name in ("q", "k", "v", "sinks")]
    wrt = [i for i, x in enumerate(given) if x is not None]
    return jax.jit(jax.grad(total, argnums=wrt, has_aux=True))(*given, made["out"])


def run(case, want):
    made, segments, positions = arrays(case)
    sizes = {"fsdp": -1} | case["mesh"]
    if "data" in sizes and "fsdp" not in case["mesh"]:
        sizes["fsdp"] = 1
    mesh = make_mesh(**sizes)
    if case.get("explicit"):
        mesh = mesh.update(axis_types=(AxisType.Explicit,) * len(mesh.axis_names))
    with jax.set_mesh(mesh):
        parallel = context_parallel(attention, method=case.get("method", "all_to_all"))
        found = both(parallel, made, segments, positions)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


wanted = {name: both(attention, *arrays(case)) for name, case in CASES.items()}
forced_devices.stop_caching()
json.dump({name: run(case, wanted[name]) for name, case in CASES.items()}, sys.stdout)
