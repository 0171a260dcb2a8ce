# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration of a decoder: a `Config` holds one `Layer` per block.

All values are hashable and compare by content. Equal layers build equal modules, so a run of them
can be scanned. A change of depth is a change of one tuple.
"""

import dataclasses
from typing import Literal

from dovetail_models.rope_config import Rope, YarnScaling, positive

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """Normalisation over the last dimension.

    Args:
        kind: "rms" divides by the root mean square, "layer" subtracts the mean and divides by the
            standard deviation.
        eps: Added to the mean square ("rms") or to the variance ("layer").
        unit_offset: Store the scale minus 1 (Gemma).
        wide: Multiply by the scale in float32, before rounding to the input's dtype instead of
            after (Gemma, gpt-oss).

    Raises:
        ValueError: A value is out of range.

    Example:

        >>> from dovetail_models import Norm
        >>> Norm(kind="layer", eps=1e-5)
        Norm(kind='layer', eps=1e-05, unit_offset=False, wide=False)
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
    """Grouped-query attention.

    Args:
        heads: Query heads.
        kv_heads: Key-value heads; a divisor of `heads`.
        head_dim: Width of a head; even with `rope`.
        rope: Rotary position embedding, or None.
        window: Number of visible positions, the query's own included. None for all.
        qkv_bias: Add biases to the projections of q, k and v.
        out_bias: Add a bias to the output projection.
        qk_norm: Normalise each head of q and k before RoPE.
        soft_cap: c bounds the scores as `c tanh(scores / c)`. None for no bound.
        scale: Factor on the scores. Default: `head_dim ** -0.5`.
        sinks: Add one learned score per head to the denominator of the softmax.

    Raises:
        ValueError: A value is out of range.

    Example:

        >>> from dovetail_models import Attention, Rope
        >>> attention = Attention(heads=8, kv_heads=2, head_dim=64, rope=Rope(theta=10_000.0))
        >>> attention.softmax_scale
        0.125
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
        """Number of elements of a head that RoPE rotates."""
        return self.head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on q kᵀ."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def cached(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, width) of the cached keys and of the cached values of one token."""
        return (self.kv_heads, self.head_dim), (self.kv_heads, self.head_dim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads are projected from one latent
    vector.

    The query and key of a head have `nope_dim` elements without position and `rope_dim` rotated
    ones. All heads share the rotated elements of the key. YaRN's `mscale_all_dim` multiplies the
    scores. Source: 2405.04434, section 2.1.

    Args:
        heads: Heads.
        q_rank: Width of the queries' bottleneck. None for none.
        kv_rank: Width of the latent of keys and values.
        nope_dim: Elements of a head's query and key without position.
        rope_dim: Rotated elements of a head's query and key; even.
        v_dim: Width of a head's value.
        rope: Rotary position embedding.
        bias: Add biases to the two down projections and the output.

    Raises:
        ValueError: A value is out of range.

    Example:

        >>> from dovetail_models import LatentAttention, Rope
        >>> sizes = dict(q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
        >>> attention = LatentAttention(heads=16, rope=Rope(theta=10_000.0), **sizes)
        >>> attention.cached
        ((1, 576), (1, 512))
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
        """None: every position is visible."""
        return None

    @property
    def rotary_dim(self) -> int:
        """Number of elements of a head that RoPE rotates."""
        return self.rope_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on q kᵀ."""
        scaling = self.rope.scaling
        temperature = scaling.score_factor if isinstance(scaling, YarnScaling) else 1.0
        return (self.nope_dim + self.rope_dim) ** -0.5 * temperature

    @property
    def cached(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, width) of the cached keys and of the cached values of one token.

        Attention over a cache is absorbed: the key is the latent with the shared rotated key, the
        value is the latent.
        """
        return (1, self.kv_rank + self.rope_dim), (1, self.kv_rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlp:
    """Feed-forward block.

    Computes `down(activation(gate(x)) * up(x))` if `gated`, else `down(activation(up(x)))`.

    Args:
        hidden: Hidden units.
        activation: "silu", "gelu" (exact), "gelu_tanh" or "relu".
        gated: Multiply by a gate.
        bias: Add biases to the projections.

    Raises:
        ValueError: A value is out of range.

    Example:

        >>> from dovetail_models import Mlp
        >>> Mlp(hidden=128)
        Mlp(hidden=128, activation='silu', gated=True, bias=False)
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
    """gpt-oss's gate: `(up + 1) * gate * sigmoid(alpha * gate)`.

    `gate` is clipped to at most `limit`, `up` to ±`limit`.

    Attributes:
        limit: Bound of gate and up.
        alpha: Factor in the sigmoid.

    Example:

        >>> from dovetail_models import ClampedGlu, Experts
        >>> Experts(count=8, top_k=2, hidden=64, activation=ClampedGlu()).activation
        ClampedGlu(limit=7.0, alpha=1.702)
    """

    limit: float = 7.0
    alpha: float = 1.702

    def __post_init__(self):
        positive(self, "limit", "alpha")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of experts: a token may use only experts of the best `top_k` groups.

    Args:
        count: Number of groups.
        top_k: Groups per token, at most `count`.
        score: A group's score is that of its best expert ("max", DeepSeek-V2) or the sum of its two
            best ("top2", V3).

    Raises:
        ValueError: A value is out of range.

    Example:

        >>> from dovetail_models import Experts, Groups
        >>> groups = Groups(count=8, top_k=4, score="top2")
        >>> Experts(count=64, top_k=8, hidden=128, score="sigmoid", groups=groups).groups.top_k
        4
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
    """Mixture of experts: each token passes the `top_k` gated blocks with the best scores.

    Args:
        count: Number of experts.
        top_k: Experts per token.
        hidden: Hidden units of each expert.
        activation: Name of the activation, or `ClampedGlu`.
        score: Function of the router's logits that gives scores and weights.
        normalise: Divide the weights of a token's experts by their sum.
        scale: Factor on the weights.
        groups: Groups of experts, or None.
        selection_bias: Add one number per expert to the scores for selection only, not to the
            weights (2412.19437, eq. 16).
        shared: Hidden units of a block for every token. None for no such block.
        bias: Add biases to the experts.
        router_bias: Add a bias to the router.

    Raises:
        ValueError: A value is out of range, or `groups` does not fit `count` and `top_k`.

    Example:

        >>> from dovetail_models import Experts
        >>> experts = Experts(count=8, top_k=2, hidden=64)
        >>> experts.score, experts.normalise
        ('softmax', True)
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
    """Configuration of one block.

    Args:
        attention: Attention layer.
        mlp: Feed-forward layer.
        norms: Place of the norms: before attention and feed-forward layer ("pre"), before and after
            each ("sandwich", Gemma 2), or after each sum ("post", BERT).

    Raises:
        ValueError: `norms` is unknown.

    Example:

        >>> from dovetail_models import Attention, Layer, Mlp, Rope
        >>> attention = Attention(heads=2, kv_heads=1, head_dim=8, rope=Rope(theta=10_000.0))
        >>> Layer(attention=attention, mlp=Mlp(hidden=32)).norms
        'pre'
    """

    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    norms: Literal["pre", "sandwich", "post"] = "pre"

    def __post_init__(self):
        _one_of(self, "norms", ("pre", "sandwich", "post"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Configuration of a decoder. Functions such as `llama` build it, and `load` reads it.

    Args:
        family: Name of the family.
        vocab_size: Number of tokens.
        embed: Width of the residual stream.
        layers: One entry per block, at least one.
        norm: Kind of the norms.
        tie: Share the embedding with the head.
        max_length: Context length of the model. A limit only with `learned_positions`; otherwise
            longer sequences run too.
        learned_positions: Add a learned vector for each of the `max_length` positions.
        embed_scale: Factor on token vectors, rounded to their dtype. None for none.
        soft_cap: c bounds the logits as `c tanh(logits / c)`. None for no bound.
        init_std: Standard deviation of fresh weights.
        extra: Keys of config.json without effect on the computation, such as token ids, with values
            as JSON text. Saving writes them back.

    Raises:
        ValueError: A value is out of range, or there is no layer.

    Example:

        >>> import dataclasses
        >>> from dovetail_models import llama, size
        >>> config = llama(vocab_size=64, embed=16, depth=2, heads=2, mlp=32)
        >>> shallow = dataclasses.replace(config, layers=config.layers[:1])
        >>> size(config), size(shallow)
        (7248, 4656)
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
