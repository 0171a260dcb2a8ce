# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Dropless mixture-of-experts layer: every token reaches all experts selected for it.

Tokens are sorted by expert, and one ragged product multiplies each group by the matrix of its
expert. XLA's own ragged product is dense on CPUs and GPUs. Each `ExpertLinear` therefore holds the
operation as an attribute, and `Decoder.configure(ragged_dot=...)` replaces it.

Shape letters: b rows, t tokens, n = b t, K experts per token, E experts, D embed, F hidden.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from dovetail_models.config.layer import Activation, ClampedGlu, Experts, Mlp
from dovetail_models.layers.router import Balance, Router, balance
from dovetail_models.layers.tokenwise import FeedForward, glu
from dovetail_models.placing.shard import Constrain, named

# (x [m, in], kernels [E, in, out], sizes i32[E]) -> [m, out]; x is sorted by expert.
RaggedDot: TypeAlias = Callable[..., Any]


class ExpertLinear(nnx.Module):
    """One projection per expert: `kernel` [E, in, out], `bias` [E, out] or None.

    Args:
        size: (E, in, out).
        names: Logical names of the kernel's dimensions.
        bias: Add a bias per expert.
        std: Standard deviation of the fresh kernel.
        rngs: Random streams; the kernel is drawn from `params`.
    """

    def __init__(
        self,
        size: tuple[int, int, int],
        names: tuple[str, str, str],
        *,
        bias: bool,
        std: float,
        rngs: nnx.Rngs,
    ):
        kernel = nnx.initializers.normal(std)(rngs.params(), size, jnp.float32)
        self.kernel = nnx.Param(kernel, **named(*names))
        zeros = jnp.zeros((size[0], size[2]))
        self.bias = nnx.Param(zeros, **named(names[0], names[2])) if bias else None
        self.ragged_dot: RaggedDot = jax.lax.ragged_dot

    def __call__(
        self, x: Float[Array, "m in"], *, sizes: Int[Array, " E"], experts: Int[Array, " m"]
    ) -> Float[Array, "m out"]:
        """Returns `x @ kernel[e] + bias[e]` for the expert e of each row, in the dtype of x.

        Args:
            x: Rows [m, in], sorted by expert.
            sizes: Number of rows of each expert, i32[E].
            experts: Expert of each row [m], ascending.
        """
        out = self.ragged_dot(x, self.kernel[...].astype(x.dtype), sizes)
        if self.bias is not None:
            out = out + self.bias[...].astype(x.dtype)[experts]
        return out


class ExpertMlp(nnx.Module):
    """`down(activation(gate(x)) * up(x))` with the matrices of each row's expert.

    Args:
        embed: Width D.
        experts: Number of experts, their width, activation and biases.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, experts: Experts, *, std: float, rngs: nnx.Rngs):
        count, hidden = experts.count, experts.hidden
        options: dict[str, Any] = {"bias": experts.bias, "std": std, "rngs": rngs}
        inner, outer = ("experts", "embed", "mlp"), ("experts", "mlp", "embed")
        self.gate = ExpertLinear((count, embed, hidden), inner, **options)
        self.up = ExpertLinear((count, embed, hidden), inner, **options)
        self.down = ExpertLinear((count, hidden, embed), outer, **options)
        self.activation: Activation | ClampedGlu = experts.activation

    def __call__(
        self, x: Float[Array, "m D"], *, sizes: Int[Array, " E"], experts: Int[Array, " m"]
    ) -> Float[Array, "m D"]:
        """Returns the output [m, D] of rows that are sorted by expert, as in `ExpertLinear`."""
        gate = self.gate(x, sizes=sizes, experts=experts)
        up = self.up(x, sizes=sizes, experts=experts)
        hidden = checkpoint_name(glu(gate, up, self.activation), "mlp_hidden")
        return self.down(hidden, sizes=sizes, experts=experts)


class Routing(NamedTuple):
    """Use of one layer's experts.

    Attributes:
        balance: Statistics of the load.
        expert_ids: The experts of each token, i32[b, t, K].
    """

    balance: Balance
    expert_ids: Int[Array, "b t K"]


class MixtureOfExperts(nnx.Module):
    """`Σ weight * expert(x)` over the selected experts, plus the shared block if there is one.

    Router, experts and shared block run in a `jax.named_scope` of their name.

    Args:
        embed: Width D.
        experts: Experts and router.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, experts: Experts, *, std: float, rngs: nnx.Rngs):
        self.router = Router(embed, experts, std=std, rngs=rngs)
        self.experts = ExpertMlp(embed, experts, std=std, rngs=rngs)
        shared = None if experts.shared is None else Mlp(hidden=experts.shared)
        self.shared = shared and FeedForward(embed, shared, std=std, rngs=rngs)
        self.config = experts

    def __call__(
        self,
        x: Float[Array, "b t D"],
        *,
        constrain: Constrain,
        segment_ids: Int[Array, "b t"] | None = None,
        expert_ids: Int[Array, "b t K"] | None = None,
    ) -> tuple[Float[Array, "b t D"], Routing]:
        """Returns the output [b, t, D] and the experts' use.

        Args:
            x: Input [b, t, D].
            constrain: Places activations on the mesh by logical names.
            segment_ids: Documents of packed rows, for the balance. 0 is padding.
            expert_ids: The experts of each token [b, t, K]. None: the router selects.
        """
        with jax.named_scope("router"):
            weights, expert_ids, scores = self.router(x, expert_ids)
            used = Routing(balance(scores, expert_ids, segment_ids), expert_ids)
        with jax.named_scope("experts"):
            mixed = self._mix(x.reshape(-1, x.shape[-1]), weights, expert_ids).reshape(x.shape)
        if self.shared is not None:
            with jax.named_scope("shared"):
                mixed = mixed + self.shared(x, constrain=constrain)
        return mixed, used

    def _mix(self, x: Float[Array, "n D"], weights: Array, chosen: Array) -> Float[Array, "n D"]:
        k, flat = self.config.top_k, chosen.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=self.config.count).astype(jnp.int32)
        out = self.experts(x[order // k], sizes=sizes, experts=flat[order])
        # A gather, not a scatter: the order of the sum is then the same on every device.
        out = out[jnp.argsort(order)].reshape(x.shape[0], k, -1)
        mixed = jnp.einsum("nkd,nk->nd", out.astype(jnp.float32), weights.reshape(-1, k))
        return mixed.astype(x.dtype)
