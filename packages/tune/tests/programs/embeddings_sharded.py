# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of embeddings where eight devices split the rows, against one device. Prints "ok"."""

import functools
import re
import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices

sys.path.append(str(Path(__file__).parents[1]))
from batches import rows_of

from dovetail_tune import info_nce, mean_loss, mean_pooled, triplet
from dovetail_tune.testing import TinyDecoder

ROWS, LENGTH, WIDTH = 48, 40, 16
MODEL = TinyDecoder(width=WIDTH, rngs=nnx.Rngs(0))
NCE = functools.partial(info_nce, encode=mean_pooled(), rows=3, symmetric=True)
MINED = functools.partial(triplet, encode=mean_pooled(), rows=1, margin=0.2)
KINDS = re.compile(r"= (.*?) (all-gather|all-to-all|collective-permute)(?:-start)?\(")


def batch():
    ids = np.random.default_rng(1).integers(0, 25, ROWS).astype(np.int32)
    made = rows_of(rows=ROWS, length=LENGTH) | {"group_ids": ids}
    made["segment_ids"][8] = 0  # a missing hard negative
    return made


def compiled(loss, place):
    """Returns the compiled function of loss and gradients, and its arguments."""
    graph, state = nnx.split(MODEL)
    value = mean_loss(loss)
    step = jax.jit(
        jax.value_and_grad(lambda state, batch: value(nnx.merge(graph, state), batch), has_aux=True)
    )
    arguments = place(state, PartitionSpec()), place(batch(), PartitionSpec(("data", "fsdp")))
    return step.lower(*arguments).compile(), arguments


def check_traffic(text, *, embeddings):
    """Raises unless the devices exchange at most the embeddings, or masks of their products."""
    lines = [m for m in map(KINDS.search, text.splitlines()) if m]
    assert {m[2] for m in lines} == {"all-gather"}, lines
    sizes = [
        int(np.prod([int(n) for n in shape.split(",") if n]))
        for m in lines
        for shape in re.findall(r"\w+\[([\d,]*)\]", m[1])
    ]
    assert max(sizes) == embeddings, (embeddings, [m[1] for m in lines])


def main():
    one = {}
    for make in (NCE, MINED):
        call, arguments = compiled(make(), lambda x, _: x)
        one[make] = jax.device_get(call(*arguments))
    forced_devices.stop_caching()
    mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        for make, chunks in [(NCE, 1), (NCE, 2), (MINED, 3)]:
            call, arguments = compiled(
                make(chunks=chunks), lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
            )
            came = jax.device_get(call(*arguments))
            # The sums of 48 rows in another order, divided by a temperature of 0.05.
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-6), came, one[make]
            )
            if make is NCE:  # the keys: positives and hard negatives
                check_traffic(call.as_text(), embeddings=ROWS * 2 // 3 * WIDTH)
    print("ok")


main()
