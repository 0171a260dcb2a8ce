# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder with adapters on its embedding, and the same with merged weights."""

from __future__ import annotations

from typing import Any

import engines
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_infer.testing import TinyDecoder

WIDTH, RANK = 32, 3
Arrays = dict[str, np.ndarray]


class StackedDecoder(TinyDecoder):
    """A decoder whose embedding E has adapters: E + scales[i] E lora_a[i] lora_b[i]."""

    def __init__(self, count: int, base: TinyDecoder | None = None):
        base = engines.decoder() if base is None else base
        super().__init__(vocab_size=base.embedding.shape[0], rngs=nnx.Rngs(0))
        nnx.update(self, nnx.state(base))
        arrays = [adapter(i) for i in range(count)]
        self.lora_a, self.lora_b, self.scales = (
            nnx.Param(jnp.concatenate([a[name] for a in arrays])) for name in arrays[0]
        )

    def features(self, tokens: Any, *, adapter_ids: Any = None, **given: Any) -> Any:
        if adapter_ids is None:
            adapter_ids = jnp.full(tokens.shape, -1)
        table = self.embedding[...]
        low = jnp.einsum("vd,ndr->nvr", table, self.lora_a[...])
        moved = jnp.einsum("nvr,nrd->nvd", low, self.lora_b[...]) * self.scales[...][:, None, None]
        whole = jnp.concatenate([table[None], table[None] + moved]).reshape(-1, WIDTH)
        inner = nnx.merge(*nnx.split(self))
        inner.embedding = nnx.Param(whole)
        return TinyDecoder.features(inner, tokens + (adapter_ids + 1) * len(table), **given)


def adapter(seed: int, rank: int = RANK) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "lora_a": rng.normal(size=(1, WIDTH, rank)).astype("f4"),
        "lora_b": rng.normal(size=(1, rank, WIDTH)).astype("f4"),
        "scales": np.array([0.1 + 0.05 * seed], "f4"),
    }


def merged(arrays: Arrays, base: TinyDecoder | None = None) -> TinyDecoder:
    """The decoder with the adapter in its embedding, multiplied in float64."""
    base = nnx.clone(engines.decoder() if base is None else base)
    e = np.asarray(base.embedding[...], np.float64)
    a, b, scale = (arrays[name][0].astype(np.float64) for name in ("lora_a", "lora_b", "scales"))
    base.embedding[...] = jnp.asarray(e + scale * e @ a @ b, jnp.float32)
    return base
