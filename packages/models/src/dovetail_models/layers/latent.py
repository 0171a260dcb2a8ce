# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention: each token leaves one short vector in the cache.

Without a cache, keys and values of each head are expanded from the latent. With a cache, attention
is *absorbed*: the expansion of the keys moves to the queries and that of the values to the output.
The cache then holds one key of `kv_rank + rope_dim` numbers for all heads. The value is the first
`kv_rank` numbers of the key, so a cache need not store it: `attend` still receives it as `v`, for
operations that store both. Both forms compute the same function. Source: DeepSeek-V2, 2405.04434,
section 2.1 and appendix C.

The absorbed form multiplies by slices of kv_b's kernel, some of them transposed. A quantized kernel
is decoded in each call: leave kv_b in float if the time of a decoding step counts.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_models.config.decoder import LatentAttention, Norm
from dovetail_models.layers.linear import project, whole
from dovetail_models.layers.rope import Angles, rotate
from dovetail_models.layers.tokenwise import RMSNorm
from dovetail_models.placing.shard import Constrain

# The published models normalise both latents with this eps and ignore that of config.json.
_NORM = Norm(eps=1e-6)


class LatentSelfAttention(nnx.Module):
    """Latent self-attention.

    Shape letters: b rows, t tokens, n heads, r kv_rank, e nope_dim, p rope_dim, g v_dim.

    Args:
        embed: Width of the residual stream.
        attention: Heads, ranks and dimensions.
        std: Standard deviation of fresh kernels.
        rngs: Random streams; kernels are drawn from `params`.
    """

    def __init__(self, embed: int, attention: LatentAttention, *, std: float, rngs: nnx.Rngs):
        a = attention
        query, value = a.nope_dim + a.rope_dim, a.nope_dim + a.v_dim
        linear = functools.partial(project, std=std, rngs=rngs)
        if a.q_rank is None:
            self.q = linear((embed, a.heads * query), ("embed", "heads"), units=(1, query))
        else:
            self.q_a = linear((embed, a.q_rank), ("embed", "latent"), bias=a.bias)
            self.q_norm = RMSNorm(a.q_rank, _NORM)
            size = (a.q_rank, a.heads * query)
            self.q_b = linear(size, ("latent", "heads"), units=(1, query))
        self.kv_a = linear((embed, a.kv_rank + a.rope_dim), ("embed", "latent"), bias=a.bias)
        self.kv_norm = RMSNorm(a.kv_rank, _NORM)
        self.kv_b = linear((a.kv_rank, a.heads * value), ("latent", "heads"), units=(1, value))
        self.o = linear(
            (a.heads * a.v_dim, embed), ("heads", "embed"), units=(a.v_dim, 1), bias=a.bias
        )
        self.config = attention

    def __call__(
        self,
        x: Float[Array, "b t embed"],
        *,
        angles: Angles | None,
        attend: Callable[..., Any],
        constrain: Constrain,
        kv: Any = None,
    ) -> tuple[Float[Array, "b t embed"], Any]:
        """Returns the output and the next cache entry. Arguments as in `SelfAttention`."""
        c = self.config
        assert angles is not None  # latent attention always has RoPE
        flip = functools.partial(rotate, angles=angles, interleaved=c.rope.interleaved)
        q = self._queries(x).reshape(*x.shape[:2], c.heads, c.nope_dim + c.rope_dim)
        q_flat, q_turned = q[..., : c.nope_dim], flip(q[..., c.nope_dim :])
        down = self.kv_a(x)
        latent = self.kv_norm(down[..., : c.kv_rank])
        shared = flip(down[..., None, c.kv_rank :])
        attend = functools.partial(
            attend, window=None, soft_cap=None, scale=c.softmax_scale, sinks=None
        )
        if kv is None:
            out = self._expanded(q_flat, q_turned, latent, shared, attend, constrain)
        else:
            out, kv = self._absorbed(q_flat, q_turned, latent, shared, attend, kv)
        out = out.reshape(*x.shape[:2], c.heads * c.v_dim)
        return self.o(out), kv

    def _queries(self, x: Array) -> Array:
        if self.config.q_rank is None:
            return self.q(x)
        return self.q_b(self.q_norm(self.q_a(x)))

    def _expanded(self, q_flat, q_turned, latent, shared, attend, constrain) -> Array:
        c = self.config
        both = self.kv_b(latent).reshape(*latent.shape[:2], c.heads, c.nope_dim + c.v_dim)
        turned = jnp.broadcast_to(shared, (*shared.shape[:2], c.heads, c.rope_dim))
        names = ("batch", "seq", "heads", None)
        q = constrain(jnp.concatenate([q_flat, q_turned], axis=-1), names)
        k = constrain(jnp.concatenate([both[..., : c.nope_dim], turned], axis=-1), names)
        return attend(q, k, constrain(both[..., c.nope_dim :], names))

    def _absorbed(self, q_flat, q_turned, latent, shared, attend, kv) -> tuple[Array, Any]:
        c = self.config
        if type(self.kv_b) is not nnx.Linear:
            raise ValueError(
                "Attention over a cache reads the kernel of kv_b itself, so kv_b must be a plain "
                f"nnx.Linear, got {type(self.kv_b).__name__}. Merge its adapters first: lora.merge."
            )
        kernel = whole(self.kv_b.kernel[...]).astype(latent.dtype)
        kernel = kernel.reshape(c.kv_rank, c.heads, c.nope_dim + c.v_dim)
        on_keys = jnp.einsum("btne,rne->btnr", q_flat, kernel[..., : c.nope_dim])
        q = jnp.concatenate([on_keys, q_turned], axis=-1)
        k = jnp.concatenate([latent[:, :, None], shared], axis=-1)
        out, kv = attend(q, k, latent[:, :, None], kv=kv)
        return jnp.einsum("btnr,rng->btng", out, kernel[..., c.nope_dim :]), kv
