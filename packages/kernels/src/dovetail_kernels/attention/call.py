# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One attention call, in the form given to every implementation.

`AttentionCall` holds the abstract facts; implementations refuse calls by them. `Inputs` holds the
arrays. An implementation's `run(call, inputs)` returns `out`, or `(out, SoftmaxStats)` if
`call.stats`. For sharded arrays it runs inside the shard, and `call` has the shapes of that shard.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_kernels.dispatch import Call, Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionCall(Call):
    """Abstract facts of a call: shapes, dtype, options and device.

    Attributes:
        batch: Rows.
        queries: Length of q.
        keys: Length of k and v.
        heads: Heads of q.
        kv_heads: Heads of k and v.
        head_dim: Last axis of q and k.
        value_dim: Last axis of v.
        dtype: Dtype of q, k and v.
        causal: Whether a key's position must not exceed the query's.
        window: Limit of the distance in positions, or None.
        segments: Whether the call has segment ids.
        positions: Whether it has positions. If not, the index is the position, and queries == keys
            with `causal` or `window` (see `attention`).
        kv_lengths: Whether it has lengths.
        soft_cap: Bound of the logits, or None.
        sinks: Whether it has sinks.
        scale: Factor of the logits.
        stats: Whether `SoftmaxStats` are returned.
        device: Device of the call.
    """

    _FACTS = frozenset(
        {
            "batch",
            "queries",
            "keys",
            "heads",
            "kv_heads",
            "head_dim",
            "value_dim",
            "dtype",
            "scale",
            "device",
        }
    )

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
        """Dtype of logits, sums and statistics: at least float32."""
        return self.dtype if self.dtype.itemsize > 4 else jnp.dtype(jnp.float32)

    @property
    def masked(self) -> bool:
        """Whether some query may not see some key."""
        return self.causal or self.window is not None or self.segments or self.kv_lengths


class Inputs(NamedTuple):
    """The arrays of a call. `segment_ids` and `positions` are always pairs (query, key).

    Attributes:
        q: Queries.
        k: Keys.
        v: Values.
        segment_ids: Segment ids, or None.
        positions: Positions, or None.
        kv_lengths: Number of valid keys per row, or None.
        sinks: One logit per head, or None.
    """

    q: Float[Array, "b t n h"]
    k: Float[Array, "b s k h"]
    v: Float[Array, "b s k g"]
    segment_ids: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    positions: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    kv_lengths: Int[Array, " b"] | None = None
    sinks: Float[Array, " n"] | None = None


class SoftmaxStats(NamedTuple):
    """Statistics of attention's softmax, in float32 (float64 for float64).

    Attributes:
        lse: Log of the denominator of each query, sinks included. -inf for an empty denominator.
        max: Largest visible logit of each head (scaled, capped), without sinks. -inf if none is
            visible.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import attention
        >>> q = k = v = jnp.zeros((1, 2, 1, 8))
        >>> stats = attention(q, k, v, causal=True, stats=True)[1]
        >>> jnp.round(stats.lse[0, :, 0], 4)  # log 1, log 2
        Array([0.    , 0.6931], dtype=float32)
    """

    lse: Float[Array, "b t n"]
    max: Float[Array, "b n"]
