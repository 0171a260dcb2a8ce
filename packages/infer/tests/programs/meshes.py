# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The executor on a mesh of eight devices, Auto and Explicit, and on one: prints "ok".

The tiny decoder says nothing about activations: kernels that are split by heads and by hidden units
are enough for the partitioner.
"""

import re
from collections import Counter

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_infer import reference
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.layout import discover
from dovetail_infer.step.memory import fits
from dovetail_infer.testing import TinyDecoder, drive

LIMIT = 24
SPLIT = {"q": 1, "k": 1, "v": 1, "o": 0, "gate": 1, "up": 1, "down": 0}  # axis of each kernel


def model(kv_heads):
    sizes = {"vocab_size": 48, "embed": 32, "heads": 8, "kv_heads": kv_heads}
    return TinyDecoder(**sizes, windows=(None, 5), rngs=nnx.Rngs(1))


def executor(model):
    layout = discover(model, max_length=LIMIT)
    groups = tuple(Group(window=window, pages=60) for window in layout.windows)
    limits = Limits(page_size=4, step_tokens=16, max_rows=3, max_length=LIMIT, groups=groups)
    return Executor(
        model, operations=reference, layout=layout, limits=limits, max_logprobs=2, invariant=True
    )


def on(mesh, model):
    """The model with kernels split over the mesh, embedding and head over the vocabulary."""

    def place(path, x):
        name = [str(getattr(key, "key", "")) for key in path][-2]
        spec = [None] * x.ndim
        axis = {"embedding": 0, "output": 1, **SPLIT}.get(name)
        if axis is not None and not x.shape[axis] % 8:
            spec[axis] = "t"
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    graph, state = nnx.split(model)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(place, state))


def run(executor):
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 48, n) for n in (3, 4, 5, 9, 16)]
    return drive(executor, prompts, max_tokens=4, kinds=("score", "plain"), temperature=0.7)


def collectives(executor):
    text = executor._compiled[Bucket(16, 3, "plain"), False].call.as_text()
    kinds = re.findall(
        r"= [^=]* (all-reduce|all-gather|all-to-all|reduce-scatter)(?:-start)?\(", text
    )
    return Counter(kinds)


alone = {kv_heads: run(executor(model(kv_heads))) for kv_heads in (8, 2)}
forced_devices.stop_caching()
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("t",), axis_types=(kind,))
    for kv_heads, want in alone.items():
        if kind == AxisType.Explicit and kv_heads == 2:
            continue  # one way to share heads of keys is enough
        split = on(mesh, model(kv_heads))
        ours = executor(split)
        heads = "t" if kv_heads == 8 else None
        specs = {tuple(pool.sharding.spec)[3:4] for pool in ours._state.pools}
        assert specs == {(heads,)}, specs
        sizes = {"page_size": 4, "step_tokens": 16, "max_rows": 3, "max_length": LIMIT}
        fit = fits(split, layout=ours.layout, **sizes)
        shards = 8 if kv_heads == 8 else 1
        assert fit.groups[0].page_bytes == ours.layout.token_bytes(0) * 4 // shards
        for got, wanted in zip(run(ours), want, strict=True):
            np.testing.assert_array_equal(got.tokens, wanted.tokens)
            # Partial sums in another order: float32, through two layers.
            np.testing.assert_allclose(got.logprobs, wanted.logprobs, rtol=0, atol=1e-5)
        if kv_heads == 8:
            # After the lookup, o and down of two layers; then the logits, which draws read whole.
            assert collectives(ours) == {"all-reduce": 5, "all-gather": 1}, collectives(ours)
        places = [x.sharding for x in ours._parameters]
        ours.update_weights(nnx.state(model(kv_heads)))  # of one device
        assert [x.sharding for x in ours._parameters] == places
        run(ours)
print("ok")
