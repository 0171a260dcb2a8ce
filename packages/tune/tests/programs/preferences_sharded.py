# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Preference losses where eight devices split the rows, against one device. Prints "ok".

TinyDecoder runs on Auto axes. On Explicit ones a field of the batch stands in its place, times a
parameter.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices

sys.path.append(str(Path(__file__).parents[1]))
from batches import pairs_of

from dovetail_tune import TokenLogps, dpo, mean_loss, orpo, token_logps
from dovetail_tune.testing import TinyDecoder

PAIRS, LENGTH = 16, 10
MODEL = TinyDecoder(depth=0, rngs=nnx.Rngs(0))


def losses(scorer):
    return {
        "combined": dpo(kind={"ipo": 0.8, "sft": 1.0}, length_weight=0.3, scorer=scorer),
        "weighted": dpo(weighted=True, scorer=scorer),
        "aot": dpo(kind={"aot": 1.0, "aot_unpaired": 0.5}, chunks=2, scorer=scorer),
        "orpo": orpo(nll="row", scorer=scorer),
    }


def batch():
    pairs = pairs_of(pairs=PAIRS, length=LENGTH, seed=1)
    pairs["mask"][6:8] = 0  # a filler
    own, ref = -np.random.default_rng(5).uniform(2.5, 4.5, (2, 2 * PAIRS, LENGTH))
    return pairs | {
        "ref_logps": (ref * pairs["mask"]).astype(np.float32),
        "own_logps": (own * pairs["mask"]).astype(np.float32),
    }


def of_field(factor, batch, *, temperature=1.0):
    return TokenLogps(factor / temperature * jnp.asarray(batch["own_logps"]), None)


def of_decoder(pairs):
    graph, params = nnx.split(MODEL)
    some = {name: losses(token_logps)[name] for name in ("combined", "aot")}
    return gradients(lambda params: nnx.merge(graph, params), params, some, pairs)


def of_factor(pairs):
    return gradients(lambda factor: factor, jnp.float32(1.1), losses(of_field), pairs)


def gradients(model_of, params, losses, pairs):
    def of(loss):
        value = mean_loss(loss)
        by_params = jax.value_and_grad(lambda p: value(model_of(p), pairs), has_aux=True)
        return by_params(params)

    return {name: of(loss) for name, loss in losses.items()}


def main():
    cases = {AxisType.Auto: of_decoder, AxisType.Explicit: of_factor}
    one = {kind: jax.device_get(jax.jit(make)(batch())) for kind, make in cases.items()}
    forced_devices.stop_caching()
    for kind, make in cases.items():
        mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(kind,) * 2)
        with jax.set_mesh(mesh):
            rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
            came = jax.device_get(jax.jit(make)(jax.device_put(batch(), rows)))
        # Sums of 16 pairs and of 150 tokens in another order.
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-6)
        jax.tree.map(close, came, one[kind])
    print("ok")


main()
