# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One attention call, in the form given to every implementation.

`AttentionCall` holds the abstract facts; implementations refuse calls by them. `Inputs` holds the
arrays. An implementation's `run(call, inputs)` returns `out`, or `(out, SoftmaxStats)` if
`call.stats`. For sharded arrays it runs inside the shard, and `call` has the shapes of that shard.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dovetail_kernels.dispatch import Call, Device


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionCall(Call):
    """Abstract facts of a call: shapes, dtype, options and device.

    Attributes:
        batch: Rows. An int, or a symbolic dimension of `jax.export`.
        queries: Length of q.
        keys: Length of k and v.
        heads: Heads of q.
        kv_heads: Heads of k and v.
        head_dim: Last axis of q and k.
        value_dim: Last axis of v.
        dtype: Dtype of q, k and v.
        causal: Whether a key's position must not exceed the query's.
        window: Largest distance in positions (to keys before, to keys after), or None. With
            `causal` the second is 0.
        segments: Whether the call has segment ids.
        positions: Whether it has positions. If not, the index is the position, and queries == keys
            with `causal` or `window` (see `attention`).
        kv_lengths: Whether it has lengths.
        bias: Shape of the bias, [batch or 1, heads or 1, queries or 1, keys or 1], or None.
        mask: Shape of the mask, alike, or None.
        soft_cap: Bound of the logits, or None.
        sinks: Whether it has sinks.
        scale: Factor of the logits.
        stats: Whether `SoftmaxStats` are returned.
        device: Device of the call.
    """

    _FACTS = frozenset(
        {
            *("batch", "queries", "keys", "heads", "kv_heads", "head_dim", "value_dim"),
            *("dtype", "scale", "device"),
        }
    )

    batch: Any
    queries: Any
    keys: Any
    heads: Any
    kv_heads: Any
    head_dim: int
    value_dim: int
    dtype: jnp.dtype
    causal: bool
    window: tuple[int, int] | None
    segments: bool
    positions: bool
    kv_lengths: bool
    bias: tuple[Any, ...] | None
    mask: tuple[Any, ...] | None
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
        limited = self.causal or self.window is not None or self.mask is not None
        return limited or self.segments or self.kv_lengths

    @property
    def pairwise_bytes(self) -> Any:
        """Bytes of mask and bias, with the bias in the inner dtype."""
        bias = 0 if self.bias is None else math.prod(self.bias) * self.inner_dtype.itemsize
        return bias + (0 if self.mask is None else math.prod(self.mask))


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
        bias: Addend of the scaled logits, or None.
        mask: True for visible pairs, or None.
    """

    q: Float[Array, "b t n h"]
    k: Float[Array, "b s k h"]
    v: Float[Array, "b s k g"]
    segment_ids: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    positions: tuple[Int[Array, "b t"], Int[Array, "b s"]] | None = None
    kv_lengths: Int[Array, " b"] | None = None
    sinks: Float[Array, " n"] | None = None
    bias: Float[Array, "#b #n #t #s"] | None = None
    mask: Bool[Array, "#b #n #t #s"] | None = None


def local(call: AttentionCall, inputs: Inputs) -> AttentionCall:
    """Returns `call` with the shapes of `inputs`, which are a shard or a row of its arrays."""
    batch, _, heads, _ = inputs.q.shape
    return dataclasses.replace(
        call,
        batch=batch,
        heads=heads,
        kv_heads=inputs.k.shape[2],
        bias=None if inputs.bias is None else inputs.bias.shape,
        mask=None if inputs.mask is None else inputs.mask.shape,
    )
