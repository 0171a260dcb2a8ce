# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders: stacks of blocks with attention in both directions. This file has the text encoder.

Shape letters: B rows, T tokens, D embed, P width of a pooled vector.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from dovetail_models.config.encoder import TextConfig, VisionConfig
from dovetail_models.describing.describe import summary
from dovetail_models.layers.block import RESIDUAL, Block
from dovetail_models.layers.inputs import (
    check_positions,
    check_types,
    restart,
)
from dovetail_models.layers.linear import Embed, check_form, check_tokens
from dovetail_models.layers.pooling import pooler_layer
from dovetail_models.layers.tokenwise import norm_layer
from dovetail_models.model import reference
from dovetail_models.model.run import Remat, configured, run
from dovetail_models.placing.activations import Place, constrain, on_auto_axes
from dovetail_models.placing.shard import RULES, Rules

Tokens: TypeAlias = Int[Array | np.ndarray, "B T"]
Mask: TypeAlias = Int[Array | np.ndarray, "B T"] | Bool[Array | np.ndarray, "B T"]
Features: TypeAlias = Float[Array, "B T D"]
Tapped: TypeAlias = dict[str, Array]
E = TypeVar("E", bound="Encoder")


def row_place(model: Any, place: Place, x: Any) -> Any:
    """Returns the sharding of one vector per row of `x`.

    Args:
        model: The encoder.
        place: See `on_auto_axes`.
        x: Vectors [B, T, D].
    """
    return place((x.shape[0], 1), ("batch", None), model.rules)


def encoded_places(model: Any, place: Place, size: tuple[int, int], taps: tuple[str, ...]) -> Any:
    """Returns the shardings of what `features` returns for [B, T] vectors.

    Args:
        model: The encoder.
        place: See `on_auto_axes`.
        size: (B, T).
        taps: See `TextEncoder.features`.
    """
    stream = place((*size, model.config.embed), RESIDUAL, model.rules)
    return (stream, dict.fromkeys(taps, stream)) if taps else stream


def _features_places(
    model: Any, place: Place, tokens: Any, *, taps: tuple[str, ...] = (), **_: Any
) -> Any:
    rows, length = (*jnp.shape(tokens), 1, 1)[:2]
    return encoded_places(model, place, (rows, length), taps)


class Encoder(nnx.Module):
    """Blocks, final norm and pooler of an encoder. Subclasses add the input.

    Each module runs in a `jax.named_scope` of its path, as in a `Decoder`.
    """

    def __repr__(self) -> str:
        return summary(self)

    __str__ = __repr__

    def __init__(self, config: TextConfig | VisionConfig, *, rngs: nnx.Rngs):
        std, norm = config.init_std, config.norm
        self.layers = nnx.List(
            Block(config.embed, layer, norm=norm, std=std, rngs=rngs) for layer in config.layers
        )
        post = config.layers[0].norms == "post"
        self.norm = None if post else norm_layer(config.embed, norm)
        self.pooler = pooler_layer(config.embed, config.pooler, norm=norm, std=std, rngs=rngs)
        self.config = config
        self.scan = False
        self.remat: Remat | None = None
        self.rules = RULES

    @on_auto_axes(row_place)
    def pooled(self, x: Features) -> Float[Array, "B P"]:
        """Returns one vector per row [B, P], by the model's own pooler.

        Raises:
            ValueError: The model has no pooler. `pool` needs no parameters.
        """
        if self.pooler is None:
            raise ValueError(
                "pooled needs a model with a pooler, got config.pooler=None. "
                "Use pool(x, mask=..., kind='mean')."
            )
        with jax.named_scope("pooler"):
            return self.pooler(x, constrain=functools.partial(constrain, rules=self.rules))

    def configure(
        self: E,
        *,
        scan: bool | None = None,
        remat: Remat | bool | None = None,
        rules: Rules | None = None,
    ) -> E:
        """Returns an encoder over the same parameters with other execution options.

        Both encoders share their Variables: training one trains the other. None keeps an option.

        Args:
            scan: Compile one copy of each repeated layer.
            remat: Recompute in the backward pass to save memory. True keeps only each block's
                input, False switches it off.
            rules: Place activations on meshes.
        """
        return configured(self, scan=scan, remat=remat, rules=rules)

    def _encoded(
        self,
        x: Features,
        *,
        taps: tuple[str, ...],
        attention: Callable[..., Any] | None,
        positions: Array | None = None,
        segment_ids: Array | None = None,
    ) -> Any:
        """Returns the features of the embedded input `x`; with taps also the tapped values."""
        fixed = functools.partial(constrain, rules=self.rules)
        attend = functools.partial(
            attention or reference.attention,
            causal=False,
            positions=positions,
            segment_ids=segment_ids,
        )

        def step(block: Any, x: Array, _: None) -> tuple[Array, None]:
            return block(x, angles=None, attend=attend, constrain=fixed)[0], None

        walk = functools.partial(run, step=step, scan=self.scan, remat=self.remat)
        x, _, tapped = walk(self.layers, fixed(x, RESIDUAL), keep=self._kept(taps))
        if self.norm is not None:
            with jax.named_scope("norm"):
                x = self.norm(x)
        return (x, {f"layers.{i}": stream for i, stream in tapped.items()}) if taps else x

    def _kept(self, taps: tuple[str, ...]) -> frozenset[int]:
        names = {f"layers.{i}": i for i in range(len(self.layers))}
        unknown = [tap for tap in taps if tap not in names]
        if unknown:
            raise ValueError(
                f"A tap must be one of 'layers.0' to 'layers.{len(self.layers) - 1}', got "
                f"taps={taps!r}. Remove {unknown}."
            )
        return frozenset(names[tap] for tap in taps)


class TextEncoder(Encoder):
    """An encoder of token sequences: BERT, MiniLM, or SigLIP's text tower.

    Build one with `init` or `load_encoder`.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import bert, init, pool
        >>> model = init(bert(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> tokens, mask = jnp.array([[2, 5, 3, 0]]), jnp.array([[1, 1, 1, 0]])
        >>> pool(model.features(tokens, mask=mask), mask=mask, kind="mean", normalize=True).shape
        (1, 16)
    """

    config: TextConfig

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        table = functools.partial(Embed, std=config.init_std, rngs=rngs)
        self.embed = table(config.vocab_size, config.embed)
        self.positions = table(config.max_length, config.embed, names=("positions", "embed"))
        types = functools.partial(table, config.token_types, config.embed, names=("types", "embed"))
        self.types = types() if config.token_types else None
        super().__init__(config, rngs=rngs)
        self.embed_norm = norm_layer(config.embed, config.norm) if self.norm is None else None

    @overload
    def features(
        self,
        tokens: Tokens,
        *,
        mask: Mask | None = ...,
        segment_ids: Tokens | None = ...,
        positions: Tokens | None = ...,
        token_types: Tokens | None = ...,
        attention: Callable[..., Any] | None = ...,
        taps: tuple[()] = ...,
    ) -> Features: ...

    @overload
    def features(
        self,
        tokens: Tokens,
        *,
        mask: Mask | None = ...,
        segment_ids: Tokens | None = ...,
        positions: Tokens | None = ...,
        token_types: Tokens | None = ...,
        attention: Callable[..., Any] | None = ...,
        taps: tuple[str, ...],
    ) -> tuple[Features, Tapped]: ...

    @on_auto_axes(_features_places)
    def features(
        self,
        tokens: Tokens,
        *,
        mask: Mask | None = None,
        segment_ids: Tokens | None = None,
        positions: Tokens | None = None,
        token_types: Tokens | None = None,
        attention: Callable[..., Any] | None = None,
        taps: tuple[str, ...] = (),
    ) -> Any:
        """Computes the vectors after the last layer.

        Args:
            tokens: Token ids [B, T].
            mask: The tokenizer's attention mask [B, T]. Tokens with 0 are invisible to the others,
                and their own vectors are meaningless. Positions do not change.
            segment_ids: Documents of packed rows [B, T], which do not attend to each other. 0 is
                padding.
            positions: Positions [B, T]. Default: indices in the row, or in each segment.
            token_types: Index of the sentence in a pair [B, T]. Default 0.
            attention: Replaces `reference.attention`.
            taps: Intermediate values to return. "layers.3" is the stream after layer 3 [B, T, D].

        Returns:
            Vectors [B, T, D]; with `taps` also a dict of the tapped values.

        Raises:
            ValueError: A concrete token, type or position has no vector (under jit it gives NaN),
                both mask and segment_ids are given, token_types are given to a model without them,
                a tap is unknown, or a concrete mask hides the token of the model's pooler.
        """
        tokens = jnp.asarray(tokens)
        check_form(tokens)
        segments = self._segments(mask, segment_ids)
        if positions is None and segment_ids is not None:
            positions = restart(jnp.asarray(segment_ids))
        x = self._embedded(tokens, positions, token_types)
        where = None if positions is None else jnp.asarray(positions)
        options = {"positions": where, "segment_ids": segments}
        return self._encoded(x, taps=taps, attention=attention, **options)

    def _segments(self, mask: Mask | None, segment_ids: Tokens | None) -> Array | None:
        if mask is None:
            return None if segment_ids is None else jnp.asarray(segment_ids)
        if segment_ids is not None:
            raise ValueError(
                "features takes mask or segment_ids, got mask and segment_ids. "
                "Pass segment_ids alone, with 0 where the mask is 0."
            )
        self._check_mask(mask)
        return jnp.asarray(mask).astype(bool).astype(jnp.int32)

    def _check_mask(self, mask: Mask) -> None:
        pool = self.config.pooler
        last = pool is not None and pool.last
        if not last or isinstance(mask, Tracer) or np.asarray(mask)[:, -1].all():
            return
        rows = np.flatnonzero(np.asarray(mask)[:, -1] == 0).tolist()
        raise ValueError(
            "This model pools the last token, which must count, got a mask of 0 there in "
            f"rows={rows}. Pad as it was trained, without a mask, or on the left."
        )

    def _embedded(
        self, tokens: Array, positions: Tokens | None, token_types: Tokens | None
    ) -> Features:
        # NumPy, so a sequence beyond max_length is refused under jit too.
        index = np.arange(tokens.shape[1])[None] if positions is None else positions
        check_tokens(tokens, vocab_size=self.config.vocab_size)
        check_positions(index, max_length=self.config.max_length)
        fixed = functools.partial(constrain, rules=self.rules)
        with jax.named_scope("embed"):
            x = self.embed(tokens, constrain=fixed)
        if self.types is not None:
            kinds = jnp.zeros_like(tokens) if token_types is None else jnp.asarray(token_types)
            check_types(kinds, count=self.config.token_types)
            with jax.named_scope("types"):
                x = x + self.types(kinds, constrain=fixed)
        elif token_types is not None:
            raise ValueError(
                "token_types need a model that has vectors for them, got token_types with "
                "config.token_types=0. Leave token_types out."
            )
        with jax.named_scope("positions"):
            x = x + self.positions(jnp.asarray(index), constrain=fixed)
        if self.embed_norm is None:
            return x
        with jax.named_scope("embed_norm"):
            return self.embed_norm(x)
