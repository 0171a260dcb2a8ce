# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder: one module for training, inference and export.

It is split where its users cut it: `features` ends before the head, because a fused loss wants the
features and `head_weight`, and generation wants the head of one position. The attention operation
and the cache that it reads and writes are arguments, because training, an engine and a reference
each bring their own.

Shape letters: B rows, T tokens, D embed, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from dovetail_models import reference
from dovetail_models.config import Config, Layer, Norm
from dovetail_models.layers.attention import SelfAttention
from dovetail_models.layers.linear import Embed, project
from dovetail_models.layers.mlp import GatedMlp
from dovetail_models.layers.norm import RMSNorm
from dovetail_models.layers.rope import Angles, angles
from dovetail_models.run import Remat, run
from dovetail_models.shard import RULES, Constrain, Rules, constrain

Tokens: TypeAlias = Int[Array | np.ndarray, "B T"]
RESIDUAL = ("batch", "seq", None)


class Block(nnx.Module):
    """`x + attn(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, embed: int, layer: Layer, *, norm: Norm, std: float, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(embed, norm)
        self.attn = SelfAttention(embed, layer.attention, norm=norm, std=std, rngs=rngs)
        self.mlp_norm = RMSNorm(embed, norm)
        self.mlp = GatedMlp(embed, layer.mlp, std=std, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        turn: Angles,
        attend: Callable[..., Any],
        constrain: Constrain,
        kv: Any = None,
    ) -> tuple[Float[Array, "B T D"], Any]:
        normed = self.attn_norm(x)
        out, kv = self.attn(normed, turn=turn, attend=attend, constrain=constrain, kv=kv)
        # Without these the partitioner shards the carry of a scan by embed and gathers activations.
        x = constrain(x + out, RESIDUAL)
        return constrain(x + self.mlp(self.mlp_norm(x), constrain=constrain), RESIDUAL), kv


class Decoder(nnx.Module):
    """A causal language model. Build one with `init` or `load`.

    The parameters are `embed.embedding`, `layers.7.attn.q.kernel` and so on: always one tree per
    layer, whatever `configure` says. Activations have the dtype of the embedding.

    >>> model = init(llama(vocab_size=256, embed=64, depth=2, heads=4, mlp=128), seed=0)
    >>> logits = model(jnp.zeros((1, 8), jnp.int32))
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        std = config.init_std
        self.embed = Embed(config.vocab_size, config.embed, std=std, rngs=rngs)
        self.layers = nnx.List(
            Block(config.embed, layer, norm=config.norm, std=std, rngs=rngs)
            for layer in config.layers
        )
        self.norm = RMSNorm(config.embed, config.norm)
        self.lm_head = None if config.tie else _head(config, rngs=rngs)
        self.config = config
        self.scan = False
        self.remat: Remat | None = None
        self.rules = RULES

    def features(
        self,
        tokens: Tokens,
        *,
        positions: Tokens | None = None,
        segment_ids: Tokens | None = None,
        attention: Callable[..., Any] | None = None,
        kv: Sequence[Any] | None = None,
    ) -> tuple[Float[Array, "B T D"], list[Any] | None]:
        """(normalised features before the head, the cache after this call or None).

        `segment_ids` keep the documents of a packed row apart; 0 is padding. `positions` restart in
        each segment when they are not given. `attention` replaces `reference.attention`. `kv` holds
        one entry per layer, in whatever form that attention takes (`dense_kv` for the default), and
        layers then run unrolled, since slicing a stacked cache would copy it.

        Raises ValueError for a concrete token outside the vocabulary (under jit it gives NaN).
        """
        self._check(tokens, kv)
        tokens = jnp.asarray(tokens)
        segment_ids = None if segment_ids is None else jnp.asarray(segment_ids)
        positions = None if positions is None else jnp.asarray(positions)
        if positions is None and segment_ids is not None:
            positions = _restart(segment_ids)
        fixed = functools.partial(constrain, rules=self.rules)
        attend = functools.partial(
            attention or reference.attention,
            causal=True,
            positions=positions,
            segment_ids=segment_ids,
        )
        turns = self._turns(tokens, positions)
        x = fixed(self.embed(tokens, constrain=fixed), RESIDUAL)

        def call(block: Any, x: Array, entry: Any = None) -> tuple[Array, Any]:
            a = block.attn.config
            turn = turns[a.rope, a.head_dim]
            return block(x, turn=turn, attend=attend, constrain=fixed, kv=entry)

        def step(block: Any, x: Array) -> Array:
            return call(block, x)[0]

        if kv is None:
            x = run(self.layers, x, step, scan=self.scan, remat=self.remat)
            return self.norm(x), None
        entries = []
        for block, entry in zip(self.layers, kv, strict=True):
            x, entry = call(block, x, entry)
            entries.append(entry)
        return self.norm(x), entries

    def head(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """float32 logits of features."""
        logits = self.embed.attend(x) if self.lm_head is None else self.lm_head(x)
        names = ("batch", "seq", "vocab") if x.ndim == 3 else (None,) * (x.ndim - 1) + ("vocab",)
        return constrain(logits, names, rules=self.rules)

    def head_weight(self) -> tuple[Float[Array, "D V"], float | None]:
        """(the head's matrix, its soft cap or None), for a loss that never makes all logits."""
        if self.lm_head is None:
            return self.embed.embedding[...].T, None
        return self.lm_head.kernel[...], None

    def __call__(self, tokens: Tokens, **options: Any) -> Float[Array, "B T V"]:
        """float32 logits: `head(features(tokens, **options)[0])`."""
        return self.head(self.features(tokens, **options)[0])

    def configure(
        self,
        *,
        scan: bool | None = None,
        remat: Remat | Literal[False] | None = None,
        rules: Rules | None = None,
    ) -> "Decoder":
        """A decoder over the same parameters (training one trains the other) that runs differently.

        None leaves an option as it is. `scan` compiles one copy of each repeated layer; `remat`
        trades memory for computation (False switches it off); `rules` place activations on meshes.
        """
        other = nnx.merge(*nnx.split(self), copy=False)
        other.scan = self.scan if scan is None else scan
        other.remat = self.remat if remat is None else remat or None
        other.rules = self.rules if rules is None else rules
        return other

    def _turns(self, tokens: Array, positions: Array | None) -> dict[Any, Angles]:
        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]
        kinds = {(la.attention.rope, la.attention.head_dim) for la in self.config.layers}
        return {kind: angles(*kind, positions=positions) for kind in kinds}

    def _check(self, tokens: Tokens, kv: Sequence[Any] | None) -> None:
        if kv is not None and len(kv) != len(self.layers):
            raise ValueError(
                f"kv must hold one entry per layer, got len(kv)={len(kv)} for "
                f"{len(self.layers)} layers. Use dense_kv(model.config, rows=..., length=...)."
            )
        if isinstance(tokens, Tracer) or tokens.size == 0:
            return
        # Through NumPy: on a constant inside jit, a JAX reduction would be traced.
        concrete = np.asarray(tokens)
        low, high = int(concrete.min()), int(concrete.max())
        if low < 0 or high >= self.config.vocab_size:
            raise ValueError(
                f"Every token must be in [0, vocab_size), got tokens from {low} to {high} with "
                f"vocab_size={self.config.vocab_size}. Use the tokenizer that the model was "
                "trained with, or a model with a larger vocabulary."
            )


def _head(config: Config, *, rngs: nnx.Rngs) -> nnx.Linear:
    size = (config.embed, config.vocab_size)
    head = project(size, ("embed", "vocab"), std=config.init_std, rngs=rngs)
    head.preferred_element_type = jnp.float32
    return head


def _restart(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions that count from 0 in each run of equal segment ids."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
