# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the draws of some rows as JSON, whatever the configuration of jax."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_infer import Sampling, reference
from dovetail_infer.step import logits, slots

samplings = [Sampling(), Sampling(top_p=0.9), Sampling(temperature=0)] * 10
seeds = [7 * i + (i % 3 << 32) for i in range(len(samplings))]
z = jnp.asarray(np.random.default_rng(0).normal(size=(len(samplings), 100)), jnp.float32)
options = slots.row_options(
    samplings,
    seeds=seeds,
    outputs=[0] * len(samplings),
)
size = jnp.arange(len(samplings), dtype=jnp.int32)
rows = logits.Rows(
    *map(jnp.asarray, options), positions=size, slots=size, samples=jnp.ones(len(samplings), bool)
)
states = [
    slots.slot_state(s, prompt=[1, 2], output=[2], vocab_size=100, eos_ids=[5]) for s in samplings
]
state = logits.State(*(jnp.asarray(np.stack(x)) for x in zip(*states, strict=True)))
draw = functools.partial(logits.draw, reference, kind="full", top=2)
drawn = jax.device_get(jax.jit(draw)(z, rows, state))
keys = {
    str(seed): jax.random.key_data(jax.random.key(seed, impl="threefry2x32")).tolist()
    for seed in seeds
    if seed < 2**32 or jax.config.jax_enable_x64
}
assert all(slots.key_data(int(seed)).tolist() == data for seed, data in keys.items())
assert len(keys) == len(set(seeds)) or not jax.config.jax_enable_x64
print(
    json.dumps(
        {
            "tokens": drawn.tokens.tolist(),
            "numbers": [x.tolist() for x in drawn[1:4]],
            "dtypes": [str(x.dtype) for x in jax.tree.leaves(drawn)],
        }
    )
)
