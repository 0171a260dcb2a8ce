# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding of a Llama of 1.2 billion parameters in bfloat16, `tokens` in one program.

Each token reads all parameters and, with the model's own attention, the whole cache. What the
memory gives is measured beside it: an addition that reads and writes.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from device_timing import Contest, normals
from dovetail_models import Config, abstract, cast, dense_kv, init, kv_bytes, llama


def decode(
    sizes: dict[str, int], rows: Sequence[int], length: int, tokens: int, copied_bytes: int
) -> Iterator[Contest]:
    """The memory's rate, then decoding at each number of rows."""
    yield Contest(
        case=f"x + 1, {copied_bytes} bytes of float32",
        ours=lambda x: x + 1,
        inputs=lambda: tuple(normals(0, (copied_bytes // 4,), dtype="float32")),
        chain=20,
        nbytes=2.0 * copied_bytes,
    )
    config = llama(**sizes, tie=True)
    graphdef, shapes = nnx.split(cast(abstract(config), jnp.bfloat16))
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    for count in rows:
        cache = count * length * kv_bytes(config, dtype=jnp.bfloat16)
        yield Contest(
            case=f"decode {tokens} tokens, {count} rows over {length} slots, bfloat16",
            ours=functools.partial(_greedy, graphdef, tokens),
            inputs=functools.partial(_inputs, config, count, length),
            chain=1,
            nbytes=float(tokens * (weights + cache)),
        )


def _inputs(config: Config, rows: int, length: int) -> tuple[Any, ...]:
    state = jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.split(init(config, seed=0))[1])
    kv = dense_kv(config, rows=rows, length=length, dtype=jnp.bfloat16)
    return state, jnp.arange(rows, dtype=jnp.int32)[:, None] % config.vocab_size, kv


def _greedy(graphdef: Any, count: int, state: Any, first: jax.Array, kv: Any) -> jax.Array:
    """The `count` tokens after `first`, [count, rows]."""
    model: Any = nnx.merge(graphdef, state)

    def step(carry: Any, position: jax.Array) -> Any:
        token, kv = carry
        x, kv = model.features(token, positions=jnp.full_like(token, position), kv=kv)
        token = jnp.argmax(model.head(x), -1).astype(jnp.int32)
        return (token, kv), token[:, 0]

    return jax.lax.scan(step, (first, kv), jnp.arange(count, dtype=jnp.int32))[1]
