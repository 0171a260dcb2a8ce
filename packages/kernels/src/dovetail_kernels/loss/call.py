# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The abstract facts of a call of a loss, and its arrays."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail_kernels import dispatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossCall(dispatch.Call):
    """Abstract facts of a call: shapes, dtype, options and device.

    Attributes:
        operation: Name of the operation, for messages.
        tokens: Number of tokens M.
        width: Width D of the head's input.
        vocabulary: Vocabulary size V, of all shards.
        columns: Columns of the vocabulary on a device.
        vocab_mesh_axes: Mesh axes over which the vocabulary is split. An implementation combines
            its columns over them, or refuses.
        dtype: Dtype of x and w.
        bias: Whether there is a bias.
        vocab_axis: Axis of w for the vocabulary.
        soft_cap: Bound of the logits, or None.
        temperature: Divisor of the logits.
        smoothing: Label smoothing.
        z_loss: Factor of lse^2.
        budget: Bytes for the tiles, or None for the default.
        device: Device of the call.
    """

    _FACTS = frozenset(
        ("operation", "tokens", "width", "vocabulary", "columns", "dtype", "vocab_axis", "device")
    )

    operation: str
    tokens: Any
    width: Any
    vocabulary: Any
    columns: Any
    vocab_mesh_axes: tuple[str, ...]
    dtype: jnp.dtype
    bias: bool
    vocab_axis: int
    soft_cap: float | None
    temperature: float
    smoothing: float
    z_loss: float
    budget: int | None
    device: dispatch.Device

    @property
    def pinned(self) -> str | None:
        """A vocabulary over several devices is not measured on one."""
        return "its vocabulary is split over devices" if self.vocab_mesh_axes else None

    @property
    def options(self) -> frozenset[str]:
        """Names of the options in use. A temperature of 1 is not in use."""
        return super().options - ({"temperature"} if self.temperature == 1 else set())


class LossInputs(NamedTuple):
    """The arrays of a loss, as in `linear_cross_entropy`.

    `run(call, inputs)` returns the four sums of `CE` for `linear_cross_entropy`, and
    (logprob [M], entropy [M]) for `linear_logprobs`.

    Attributes:
        x: Inputs of the head.
        w: Weights of the head, as `call.vocab_axis` says.
        bias: Added to the logits, or None.
        labels: Token ids. Under a trace they may be out of range; such a token's loss is NaN.
        where: Weight per token, or None.
    """

    x: jax.Array
    w: jax.Array
    bias: jax.Array | None
    labels: jax.Array
    where: jax.Array | None


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype for sums of products: float32, or float64 for float64."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
