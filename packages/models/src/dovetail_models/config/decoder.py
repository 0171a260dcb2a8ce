# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration of a decoder: a `Config` holds one `Layer` per block.

All values are hashable and compare by content. Equal layers build equal modules, so a run of them
can be scanned. A change of depth is a change of one tuple.
"""

import dataclasses
import operator
from collections import Counter
from typing import Any, Literal

from dovetail_models.config.layer import (
    Experts,
    Mlp,
    divisors,
    one_of,
    positive,
    positive_or_none,
)
from dovetail_models.config.rope import Rope, YarnScaling

# Shown in a repr: kinds of layers, and values of a tuple.
_KINDS, _VALUES = 6, 4


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
        one_of(self, "kind", ("rms", "layer"))
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
        positive_or_none(self, "window", "soft_cap", "scale")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}. "
                f"Use one of kv_heads={divisors(self.heads)}."
            )
        if self.rope is not None:
            self.rope.check_width(self, "head_dim")

    # Number of elements of a head that RoPE rotates.
    rotary_dim = property(operator.attrgetter("head_dim"))

    @property
    def softmax_scale(self) -> float:
        """Factor on q kᵀ."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def cached(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, width) of the cached key and of the cached value of one token."""
        return (self.kv_heads, self.head_dim), (self.kv_heads, self.head_dim)

    @property
    def value_width(self) -> None:
        """None: the value is cached beside the key."""
        return None


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
        ((1, 576), None)
        >>> attention.value_width
        512
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
        positive_or_none(self, "q_rank")
        self.rope.check_width(self, "rope_dim")

    @property
    def window(self) -> None:
        """None: every position is visible."""
        return None

    # Number of elements of a head that RoPE rotates.
    rotary_dim = property(operator.attrgetter("rope_dim"))

    @property
    def softmax_scale(self) -> float:
        """Factor on q kᵀ."""
        scaling = self.rope.scaling
        temperature = scaling.score_factor if isinstance(scaling, YarnScaling) else 1.0
        return (self.nope_dim + self.rope_dim) ** -0.5 * temperature

    @property
    def cached(self) -> tuple[tuple[int, int], None]:
        """(heads, width) of the cached key of one token, and None: no value is cached.

        Attention over a cache is absorbed. The key is the latent followed by the shared rotated
        key, and the value is the first `value_width` numbers of the key.
        """
        return (1, self.kv_rank + self.rope_dim), None

    @property
    def value_width(self) -> int:
        """Width of the value in a cached key: its first numbers."""
        return self.kv_rank


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
        one_of(self, "norms", ("pre", "sandwich", "post"))


def shown(config: Any) -> str:
    """Returns the repr of a configuration: no defaults, and equal layers once with their number.

    Each kind of layer has a line. A tuple of more than four values is shown as their number.
    """
    name, cells, lines = type(config).__name__, [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "layers":
            kinds = list(Counter(value).items())
            lines += [f"{count} x {shown(layer)}" for layer, count in kinds[:_KINDS]]
            lines += [f"... {len(kinds) - _KINDS} more kinds"] if len(kinds) > _KINDS else []
        elif value != field.default:
            cells.append(f"{field.name}={_value(value)}")
    text = f"{name}({', '.join(cells)})"
    return text if not lines else "\n  ".join([f"{text[:-1]}, layers:", *lines]) + ")"


def _value(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > _VALUES:
        return f"({len(value)} values)"
    return shown(value) if dataclasses.is_dataclass(value) else repr(value)


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

    def __repr__(self) -> str:
        return shown(self)

    def __post_init__(self):
        positive(self, "vocab_size", "embed", "max_length", "init_std")
        positive_or_none(self, "embed_scale", "soft_cap")
        if not self.layers:
            raise ValueError(
                "A decoder needs at least one layer, got layers=(). Use depth=1 or more."
            )

    @property
    def kv_length(self) -> int:
        """Most tokens of a sequence over a cache: `max_length`, or less if the frequencies of a
        RoPE depend on the length of the sequence.
        """
        ropes = [la.attention.rope for la in self.layers if la.attention.rope is not None]
        return min([self.max_length, *(r.limit for r in ropes if r.limit is not None)])
