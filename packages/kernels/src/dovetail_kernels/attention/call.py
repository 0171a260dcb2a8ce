# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What one call of attention asks, in the form in which every implementation receives it.

`AttentionCall` holds the abstract facts, by which an implementation refuses; `Inputs` the arrays.
An implementation's `run` is called as `run(call, inputs)`, inside the shard where arrays are
sharded, with a `call` of that shard's shapes, and gives `out` or, if `call.stats`, that and
`SoftmaxStats`.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """q is [batch, queries, heads, head_dim], v [batch, keys, kv_heads, value_dim], all `dtype`.

    segments, positions, kv_lengths, sinks: whether the call has them. Without positions the index
    is the position, and queries == keys if `causal` or `window` (see `attention`).
    """

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: jnp.dtype
    causal: bool
    window: int | None
    segments: bool
    positions: bool
    kv_lengths: bool
    soft_cap: float | None
    sinks: bool
    scale: float
    stats: bool
    device: Device

    @property
    def inner_dtype(self) -> jnp.dtype:
        """In which logits, sums and statistics are formed: at least float32."""
        return self.dtype if self.dtype.itemsize > 4 else jnp.dtype(jnp.float32)

    @property
    def masked(self) -> bool:
        """Whether some query may not see some key."""
        return self.causal or self.window is not None or self.segments or self.kv_lengths


class Inputs(NamedTuple):
    """The arrays of a call; `segment_ids` and `positions` always as a (query, key) pair."""

    q: Float[Array, "b t n h"]
    k: Float[Array, "b s k h"]
    v: Float[Array, "b s k g"]
    segment_ids: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    positions: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    kv_lengths: Int[Array, " b"] | None = None
    sinks: Float[Array, " n"] | None = None


class SoftmaxStats(NamedTuple):
    """lse: log of the denominator by which `out` was divided, sinks included; -inf for none.

    max: the largest logit that the softmax of each head saw (scaled, capped), sinks not among them;
    -inf if none was visible. Of the attention's inner dtype: float32, or float64 for float64.
    """

    lse: Float[Array, "b t n"]
    max: Float[Array, "b n"]
