# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder: one module for training, inference and export.

`features` ends before the head: a fused loss takes the features and `head_weight`, and generation
needs the head at one position. The attention operation and its cache are arguments, because
training, an inference engine and a reference each bring their own.

Shape letters: B rows, T tokens, D embed, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from dovetail_models.config.decoder import Config
from dovetail_models.config.layer import Experts
from dovetail_models.describing.describe import summary
from dovetail_models.layers.block import RESIDUAL, Block
from dovetail_models.layers.experts import ExpertLinear, MixtureOfExperts, RaggedDot
from dovetail_models.layers.inputs import (
    check_adapter_ids,
    check_cached,
    check_expert_ids,
    check_positions,
    restart,
)
from dovetail_models.layers.linear import Embed, check_form, check_tokens, project, whole
from dovetail_models.layers.rope import Angles, rope_angles
from dovetail_models.layers.router import Balance
from dovetail_models.layers.stacked import bind, stacked
from dovetail_models.layers.tokenwise import norm_layer
from dovetail_models.model import reference
from dovetail_models.model.run import Remat, configured, run
from dovetail_models.placing.activations import Place, constrain, on_auto_axes, place_like
from dovetail_models.placing.shard import RULES, Names, Rules

Tokens: TypeAlias = Int[Array | np.ndarray, "B T"]
AdapterIds: TypeAlias = Int[Array | np.ndarray, " B"] | Int[Array | np.ndarray, "B T"]
ExpertIds: TypeAlias = Int[Array | np.ndarray, "L B T K"]
Features: TypeAlias = Float[Array, "B T D"]
Tapped: TypeAlias = dict[str, Array | Balance]
ROUTER, EXPERTS = "router", "experts"
_PLAIN: dict[str, Any] = {"scan": False, "remat": None}


def _features_places(
    model: Decoder,
    place: Place,
    tokens: Any,
    *,
    kv: Any = None,
    embeds: Any = None,
    taps: tuple[str, ...] = (),
    **_: Any,
) -> Any:
    rows, length = (*jnp.shape(tokens if embeds is None else embeds), 1, 1)[:2]
    stream = place((rows, length, model.config.embed), RESIDUAL, model.rules)
    entries = jax.tree.map(lambda x: place_like(place, x), kv)
    routing = place((1, rows, length, 1), (None, "batch", "seq", None), model.rules)
    known = {ROUTER: place((), (), model.rules), EXPERTS: routing}
    values = {tap: known.get(tap, stream) for tap in taps}
    return (stream, entries, values) if taps else (stream, entries)


def _logits_place(model: Decoder, place: Place, x: Any) -> Any:
    return place((*x.shape[:-1], model.config.vocab_size), _logits_names(x.ndim), model.rules)


def _logits_names(ndim: int) -> Names:
    return ("batch", "seq", "vocab") if ndim == 3 else (None,) * (ndim - 1) + ("vocab",)


class Decoder(nnx.Module):
    """A causal language model. Build one with `init` or `load`.

    Parameters are named `embed.embedding`, `layers.7.attn.q.kernel` and so on: always one subtree
    per layer, also with `configure(scan=True)`. Activations have the dtype of the embedding.

    In profiles and HLO, the `op_name` of an operation holds the path of its module as
    `jax.named_scope`s: `layers.7/attn`, `layers.7/mlp/router`, `embed`, `norm` and `head`, in both
    passes. Scanned layers that share a program share a scope, `layers.{0..31}`.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_models import init, llama
        >>> model = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> model(jnp.zeros((1, 8), jnp.int32)).shape
        (1, 8, 64)
    """

    def __repr__(self) -> str:
        return summary(self)

    __str__ = __repr__

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        std = config.init_std
        self.embed = Embed(config.vocab_size, config.embed, std=std, rngs=rngs)
        learned = functools.partial(Embed, names=("positions", "embed"), std=std, rngs=rngs)
        size = config.max_length, config.embed
        self.positions = learned(*size) if config.learned_positions else None
        self.layers = nnx.List(
            Block(config.embed, layer, norm=config.norm, std=std, rngs=rngs)
            for layer in config.layers
        )
        self.norm = norm_layer(config.embed, config.norm)
        self.lm_head = None if config.tie else _head(config, rngs=rngs)
        self.config = config
        self.scan = False
        self.remat: Remat | None = None
        self.rules = RULES

    @overload
    def features(
        self,
        tokens: Tokens | None,
        *,
        positions: Tokens | None = ...,
        segment_ids: Tokens | None = ...,
        attention: Callable[..., Any] | None = ...,
        kv: Sequence[Any] | None = ...,
        embeds: Features | None = ...,
        taps: tuple[()] = ...,
        expert_ids: ExpertIds | None = ...,
        adapter_ids: AdapterIds | None = ...,
    ) -> tuple[Features, list[Any] | None]: ...

    @overload
    def features(
        self,
        tokens: Tokens | None,
        *,
        positions: Tokens | None = ...,
        segment_ids: Tokens | None = ...,
        attention: Callable[..., Any] | None = ...,
        kv: Sequence[Any] | None = ...,
        embeds: Features | None = ...,
        taps: tuple[str, ...],
        expert_ids: ExpertIds | None = ...,
        adapter_ids: AdapterIds | None = ...,
    ) -> tuple[Features, list[Any] | None, Tapped]: ...

    @on_auto_axes(_features_places)
    def features(
        self,
        tokens: Tokens | None,
        *,
        positions: Tokens | None = None,
        segment_ids: Tokens | None = None,
        attention: Callable[..., Any] | None = None,
        kv: Sequence[Any] | None = None,
        embeds: Features | None = None,
        taps: tuple[str, ...] = (),
        expert_ids: ExpertIds | None = None,
        adapter_ids: AdapterIds | None = None,
    ) -> Any:
        """Computes the normalised features before the head.

        Args:
            tokens: Token ids [B, T]. May be None with `embeds`.
            positions: Positions [B, T]. Default: indices in the row, or in each segment.
            segment_ids: Documents of packed rows [B, T], which do not attend to each other. 0 is
                padding.
            attention: Replaces `reference.attention`. Over a cache the v of a latent layer is the
                first numbers of its k, `k[..., :v.shape[-1]]`, and of all other layers as wide as
                k. A narrower v thus need not be stored, and `config.layers[i].attention.cached`
                has None for it.
            kv: Cache: one entry per layer, in the form of `attention` (`dense_kv` for the default).
                Layers then run unrolled, since slicing a stacked cache would copy it.
            embeds: Replaces the scaled token vectors, [B, T, D].
            taps: Intermediate values to return. "layers.3" is the residual stream after layer 3 [B,
                T, D]. "router" is a `Balance` with a leading dimension over the L layers with
                experts. "experts" are the experts of each token, i32[L, B, T, K].
            expert_ids: The experts of each token [L, B, T, K], as tapped from another run (routing
                replay, 2510.11370). The weights are those of this model's routers, with gradients.
                Default: the routers select.
            adapter_ids: The adapter of each row [B], or of each token [B, T], in a model of
                `lora.stack`. -1 is none. Default: none for all.

        Returns:
            Features [B, T, D] and the cache after this call (None without `kv`); with `taps` also a
            dict of the tapped values.

        Raises:
            ValueError: A concrete token is outside the vocabulary (under jit it gives NaN), a
                position has no learned vector, a tap is unknown, `kv` has another length than the
                layers, tokens and embeds are both None, or expert_ids have another shape or a
                concrete id (under jit it gives NaN) outside the experts, or adapter_ids outside
                the adapters.
        """
        tokens = None if tokens is None else jnp.asarray(tokens)
        x = self._embedded(tokens, embeds)
        segment_ids = None if segment_ids is None else jnp.asarray(segment_ids)
        positions = None if positions is None else jnp.asarray(positions)
        if positions is None and segment_ids is not None:
            positions = restart(segment_ids)
        kept, rows = self._kept(taps, kv), (x.shape[0], x.shape[1])
        inputs = self._inputs(kv, expert_ids, rows)
        fixed = functools.partial(constrain, rules=self.rules)
        attend = functools.partial(
            attention or reference.attention,
            causal=True,
            positions=positions,
            segment_ids=segment_ids,
        )
        where = jnp.arange(x.shape[1])[None] if positions is None else positions
        if self.positions is not None:
            check_positions(where, max_length=self.config.max_length)
            with jax.named_scope("positions"):
                x = x + self.positions(where, constrain=fixed)
        if kv is not None:
            check_cached(where, [la.attention.rope for la in self.config.layers])
        angles_of = self._angles(where, segment_ids)

        if adapter_ids is not None:
            check_adapter_ids(adapter_ids, count=stacked(self), rows=rows)
            adapter_ids = jnp.asarray(adapter_ids, jnp.int32)

        def step(block: Any, x: Array, given: Any) -> tuple[Array, Any]:
            block = block if adapter_ids is None else bind(block, adapter_ids)
            a, (entry, routing) = block.attn.config, given
            angles = None if a.rope is None else angles_of[a.rope, a.rotary_dim]
            options = {"angles": angles, "attend": attend, "constrain": fixed}
            options |= {"kv": entry, "segment_ids": segment_ids, "expert_ids": routing}
            x, entry, used = block(x, **options)
            values = {} if used is None else {ROUTER: used.balance, EXPERTS: used.expert_ids}
            return x, (entry, {tap: values[tap] for tap in values if tap in taps})

        # With a cache nothing is scanned, since slicing a stacked cache would copy it, or
        # recomputed: there is no backward pass.
        how = {"scan": self.scan, "remat": self.remat} if kv is None else _PLAIN
        walk = functools.partial(run, step=step, keep=kept, inputs=inputs)
        x, extra, tapped = walk(self.layers, fixed(x, RESIDUAL), **how)
        entries = None if kv is None else [entry for entry, _ in extra]
        results = (_tapped_values(tapped, [used for _, used in extra], taps),) if taps else ()
        with jax.named_scope("norm"):
            return self.norm(x), entries, *results

    @on_auto_axes(_logits_place)
    def head(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns the float32 logits of features."""
        with jax.named_scope("head"):
            logits = self.embed.attend(x) if self.lm_head is None else self.lm_head(x)
            cap = self.config.soft_cap
            logits = logits if cap is None else cap * jnp.tanh(logits / cap)
        return constrain(logits, _logits_names(x.ndim), rules=self.rules)

    def head_weight(self) -> tuple[Float[Array, "D V"], float | None]:
        """Returns the head's matrix [D, V] and its soft cap or None, for a loss without the full
        logits.

        A quantized head is decoded into a float copy; `head` needs no copy.
        """
        if self.lm_head is None:
            return whole(self.embed.embedding[...]).T, self.config.soft_cap
        return whole(self.lm_head.kernel[...]), self.config.soft_cap

    def __call__(self, tokens: Tokens, **options: Any) -> Float[Array, "B T V"]:
        """Returns float32 logits [B, T, V]: `head(features(tokens, **options)[0])`."""
        return self.head(self.features(tokens, **options)[0])

    def configure(
        self,
        *,
        scan: bool | None = None,
        remat: Remat | bool | None = None,
        ragged_dot: RaggedDot | None = None,
        rules: Rules | None = None,
    ) -> "Decoder":
        """Returns a decoder over the same parameters with other execution options.

        Both decoders share their Variables: training one trains the other. None keeps an option.

        Args:
            scan: Compile one copy of each repeated layer.
            remat: Recompute in the backward pass to save memory. True keeps only each block's
                input, False switches it off.
            ragged_dot: Replaces `jax.lax.ragged_dot` in every mixture of experts.
            rules: Place activations on meshes.
        """
        other = configured(self, scan=scan, remat=remat, rules=rules)
        if ragged_dot is not None:
            for _, module in nnx.iter_modules(other):
                if isinstance(module, ExpertLinear):
                    module.ragged_dot = ragged_dot
        return other

    def _embedded(self, tokens: Array | None, embeds: Features | None) -> Features:
        if embeds is not None:
            return embeds
        if tokens is None:
            raise ValueError(
                "features needs tokens or embeds, got tokens=None, embeds=None. Pass tokens."
            )
        check_form(tokens)
        check_tokens(tokens, vocab_size=self.config.vocab_size)
        scale = self.config.embed_scale
        with jax.named_scope("embed"):
            x = self.embed(tokens, constrain=functools.partial(constrain, rules=self.rules))
            return x if scale is None else x * jnp.asarray(scale, x.dtype)

    def _angles(self, positions: Array, segment_ids: Array | None) -> dict[Any, Angles]:
        used = [la.attention for la in self.config.layers]
        kinds = {(a.rope, a.rotary_dim) for a in used if a.rope is not None}
        where = {"positions": positions, "segment_ids": segment_ids}
        return {kind: rope_angles(*kind, **where) for kind in kinds}

    def _kept(self, taps: tuple[str, ...], kv: Sequence[Any] | None) -> frozenset[int]:
        """Returns the layers with a tapped output, after checking `kv` and `taps` against the
        layers.
        """
        if kv is not None and len(kv) != len(self.layers):
            raise ValueError(
                f"kv must hold one entry per layer, got len(kv)={len(kv)} for "
                f"{len(self.layers)} layers. Use dense_kv(model.config, rows=..., length=...)."
            )
        names = {f"layers.{i}": i for i in range(len(self.layers))}
        routed = any(isinstance(la.mlp, Experts) for la in self.config.layers)
        of_experts = (ROUTER, EXPERTS) if routed else ()
        unknown = [tap for tap in taps if tap not in names and tap not in of_experts]
        if unknown:
            raise ValueError(
                f"A tap must be one of 'layers.0' to 'layers.{len(self.layers) - 1}', or 'router' "
                f"or 'experts' in a model with experts, got taps={taps!r}. Remove {unknown}."
            )
        return frozenset(names[tap] for tap in taps if tap in names)

    def _inputs(
        self, kv: Sequence[Any] | None, expert_ids: Any, rows: tuple[int, int]
    ) -> list[tuple[Any, Array | None]]:
        """Returns (cache entry, expert ids) of each layer, after checking the ids."""
        entries = [None] * len(self.layers) if kv is None else kv
        if expert_ids is None:
            return [(entry, None) for entry in entries]
        mlps = [block.mlp for block in self.layers]
        mixtures = [mlp.config for mlp in mlps if isinstance(mlp, MixtureOfExperts)]
        check_expert_ids(expert_ids, mixtures=mixtures, rows=rows)
        each = iter(jnp.asarray(expert_ids, jnp.int32))
        given = [next(each) if isinstance(mlp, MixtureOfExperts) else None for mlp in mlps]
        return list(zip(entries, given, strict=True))


def _tapped_values(
    tapped: dict[int, Array], used: Sequence[dict[str, Any]], taps: tuple[str, ...]
) -> Tapped:
    """Returns the dict of tapped values."""
    values: Tapped = {f"layers.{i}": stream for i, stream in tapped.items()}
    for tap in (ROUTER, EXPERTS):
        if tap in taps:
            layers = [of[tap] for of in used if tap in of]
            values[tap] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return values


def _head(config: Config, *, rngs: nnx.Rngs) -> nnx.Linear:
    size = (config.embed, config.vocab_size)
    head = project(size, ("embed", "vocab"), std=config.init_std, rngs=rngs)
    head.preferred_element_type = jnp.float32
    return head
