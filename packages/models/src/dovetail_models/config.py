# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder is, as frozen values: a `Config` holds a `Layer` per block, a `Layer` its numbers.

Every value is hashable and compares by content. Layers that are equal build equal modules, which is
what lets a run of them be scanned, and a change of depth is a change of one tuple.
"""

import dataclasses
from typing import Literal

from dovetail_models.rope_config import Rope, YarnScaling, positive

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """Normalisation with `eps` added to the mean square ("rms") or to the variance ("layer").

    `unit_offset` stores the scale as its distance from 1 (Gemma). `wide` multiplies by the scale in
    float32, before rounding to the dtype of the input, instead of after (Gemma, gpt-oss).
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    unit_offset: bool = False
    wide: bool = False

    def __post_init__(self):
        _one_of(self, "kind", ("rms", "layer"))
        positive(self, "eps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Grouped-query attention. `kv_heads` divides `heads`; with `rope`, `head_dim` is even.

    `window` is the number of positions that a query sees, itself included (None: all). `qk_norm`
    normalises each head of q and k before RoPE. `soft_cap` c bounds the scores as
    `c tanh(scores / c)`. `scale` multiplies them (None: `head_dim ** -0.5`). `sinks` adds one
    learned score per head to the denominator of its softmax.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    soft_cap: float | None = None
    scale: float | None = None
    sinks: bool = False

    def __post_init__(self):
        positive(self, "heads", "kv_heads", "head_dim")
        _positive_or_none(self, "window", "soft_cap", "scale")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}. "
                f"Use one of kv_heads={_divisors(self.heads)}."
            )
        if self.rope is not None:
            _even(self, "head_dim")

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a head RoPE turns."""
        return self.head_dim

    @property
    def softmax_scale(self) -> float:
        """The factor on q kᵀ."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def cached(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, width) of the keys and of the values that a cache holds per token."""
        return (self.kv_heads, self.head_dim), (self.kv_heads, self.head_dim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads come from `kv_rank` numbers each.

    A head's query and key have `nope_dim` numbers without position and `rope_dim` turned ones, of
    which the key's are shared by all heads; its value has `v_dim`. `q_rank` puts the queries
    through a bottleneck as well (None: none). `bias` is that of the two down projections and of the
    output. YaRN's `mscale_all_dim` multiplies the scores. Source: 2405.04434, section 2.1.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    rope: Rope
    bias: bool = False

    def __post_init__(self):
        positive(self, "heads", "kv_rank", "nope_dim", "rope_dim", "v_dim")
        _positive_or_none(self, "q_rank")
        _even(self, "rope_dim")

    @property
    def window(self) -> None:
        """Every position is seen."""
        return None

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a head RoPE turns."""
        return self.rope_dim

    @property
    def softmax_scale(self) -> float:
        """The factor on q kᵀ."""
        scaling = self.rope.scaling
        temperature = scaling.score_factor if isinstance(scaling, YarnScaling) else 1.0
        return (self.nope_dim + self.rope_dim) ** -0.5 * temperature

    @property
    def cached(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, width) of the keys and of the values that a cache holds per token: attention
        over a cache is absorbed, so these are the latent with the shared key, and the latent."""
        return (1, self.kv_rank + self.rope_dim), (1, self.kv_rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlp:
    """Feed-forward block with `hidden` units.

    `down(activation(gate(x)) * up(x))` if `gated`, else `down(activation(up(x)))`.
    """

    hidden: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self):
        positive(self, "hidden")
        _one_of(self, "activation", Activation.__args__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClampedGlu:
    """gpt-oss's gate: `(up + 1) * gate * sigmoid(alpha * gate)`, the gate at most `limit` and up
    within ±`limit`."""

    limit: float = 7.0
    alpha: float = 1.702

    def __post_init__(self):
        positive(self, "limit", "alpha")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Experts lie in `count` groups, and a token may go to the best `top_k` of them only.

    A group is as good as its best expert ("max", DeepSeek-V2) or its two best ("top2", V3).
    """

    count: int
    top_k: int
    score: Literal["max", "top2"]

    def __post_init__(self):
        positive(self, "count", "top_k")
        _one_of(self, "score", ("max", "top2"))
        if self.top_k > self.count:
            raise ValueError(
                f"Groups.top_k must be at most count, got top_k={self.top_k}, count={self.count}. "
                f"Use top_k={self.count} or less."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """`count` gated blocks of `hidden` units, of which each token takes the best `top_k`.

    A token's weight for an expert is its `score` of the router's logits; `normalise` divides the
    chosen weights by their sum, and `scale` multiplies them. `selection_bias` adds a number per
    expert that decides who is chosen and does not enter the weight (2412.19437, eq. 16). `shared`
    is the width of a block that every token passes (None: none). `bias` and `router_bias` add
    biases to the experts and to the router.
    """

    count: int
    top_k: int
    hidden: int
    activation: Activation | ClampedGlu = "silu"
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: Groups | None = None
    selection_bias: bool = False
    shared: int | None = None
    bias: bool = False
    router_bias: bool = False

    def __post_init__(self):
        positive(self, "count", "top_k", "hidden", "scale")
        _positive_or_none(self, "shared")
        _one_of(self, "score", ("softmax", "sigmoid"))
        if not isinstance(self.activation, ClampedGlu):
            _one_of(self, "activation", Activation.__args__)
        groups = self.groups or Groups(count=1, top_k=1, score="max")
        if self.count % groups.count:
            raise ValueError(
                f"Groups.count must divide Experts.count, got {groups.count} groups for "
                f"count={self.count}. Use one of {_divisors(self.count)}."
            )
        size = self.count // groups.count
        if self.top_k > size * groups.top_k or (groups.score == "top2" and size < 2):
            raise ValueError(
                "top_k must be at most the experts of the chosen groups, and groups scored by "
                f"'top2' need two experts each, got top_k={self.top_k} with {groups.top_k} groups "
                f"of {size}. Use a smaller top_k or fewer groups."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """The numbers that one block needs. `norms` are before attention and the feed-forward block
    ("pre"), before and after each ("sandwich", Gemma 2), or after each sum ("post", BERT)."""

    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    norms: Literal["pre", "sandwich", "post"] = "pre"

    def __post_init__(self):
        _one_of(self, "norms", ("pre", "sandwich", "post"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole decoder, as a family's function (`llama`, `qwen3`) builds it or a file describes it.

    `tie` shares the embedding with the head. `max_length` is the context that the model was made
    for; nothing here is cut to it, except that with `learned_positions` there is a vector for each
    of its positions and for no other. `embed_scale` multiplies token vectors, rounded to their
    dtype. `soft_cap` c bounds the logits as `c tanh(logits / c)`. `init_std` is the standard
    deviation of fresh weights. `extra` holds the keys of a config.json that do not alter the
    computation (token ids, for example), each with its value as JSON text, so that saving writes
    them back.
    """

    family: str
    vocab_size: int
    embed: int
    layers: tuple[Layer, ...]
    norm: Norm
    tie: bool
    max_length: int
    learned_positions: bool = False
    embed_scale: float | None = None
    soft_cap: float | None = None
    init_std: float = 0.02
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self):
        positive(self, "vocab_size", "embed", "max_length", "init_std")
        _positive_or_none(self, "embed_scale", "soft_cap")
        if not self.layers:
            raise ValueError(
                "A decoder needs at least one layer, got layers=(). Use depth=1 or more."
            )


def _positive_or_none(config: object, *names: str) -> None:
    positive(config, *(name for name in names if getattr(config, name) is not None))


def _one_of(config: object, name: str, options: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in options:
        raise ValueError(
            f"{type(config).__name__}.{name} must be one of {options}, got {name}={value!r}. "
            f"Pass {name}={options[0]!r}, for example."
        )


def _even(config: object, name: str) -> None:
    value = getattr(config, name)
    if value % 2:
        raise ValueError(
            f"RoPE turns pairs of numbers, so {name} must be even, got {name}={value}. "
            f"Use {name}={value + 1}."
        )


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)
