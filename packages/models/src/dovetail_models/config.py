# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a decoder is, as frozen values: a `Config` holds a `Layer` per block, a `Layer` its numbers.

Every value is hashable and compares by content. Layers that are equal build equal modules, which is
what lets a run of them be scanned, and a change of depth is a change of one tuple.
"""

import dataclasses
from typing import Literal

Activation = Literal["silu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 stretches RoPE, by wavelength in tokens.

    Wavelengths above `original_length / low_freq_factor` are multiplied by `factor`, those below
    `original_length / high_freq_factor` are kept, and frequencies between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self):
        _positive(self, "factor", "low_freq_factor", "original_length")
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                "high_freq_factor must be above low_freq_factor, got high_freq_factor="
                f"{self.high_freq_factor}, low_freq_factor={self.low_freq_factor}. "
                "Llama 3.1 uses 4.0 and 1.0."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: frequency i of a head is `theta ** (-2 i / head_dim)`."""

    theta: float
    scaling: Llama3Scaling | None = None

    def __post_init__(self):
        _positive(self, "theta")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """RMS normalisation with `eps` added to the mean square."""

    eps: float = 1e-6

    def __post_init__(self):
        _positive(self, "eps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Causal grouped-query attention. `kv_heads` divides `heads`; `head_dim` is even.

    `window` is the number of positions that a query sees, itself included (None: all). `bias` adds
    one to the four projections. `qk_norm` normalises each head of q and k before RoPE.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    window: int | None = None
    bias: bool = False
    qk_norm: bool = False

    def __post_init__(self):
        _positive(self, "heads", "kv_heads", "head_dim")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}. "
                f"Use one of kv_heads={_divisors(self.heads)}."
            )
        if self.head_dim % 2:
            raise ValueError(
                "RoPE turns pairs of numbers, so head_dim must be even, got "
                f"head_dim={self.head_dim}. Use head_dim={self.head_dim + 1}."
            )
        if self.window is not None:
            _positive(self, "window")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlp:
    """Gated feed-forward block: `down(activation(gate(x)) * up(x))` with `hidden` units."""

    hidden: int
    activation: Activation = "silu"
    bias: bool = False

    def __post_init__(self):
        _positive(self, "hidden")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """The numbers that one block needs."""

    attention: Attention
    mlp: Mlp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole decoder, as a family's function (`llama`, `qwen3`) builds it or a file describes it.

    `tie` shares the embedding with the head. `max_length` is the context that the model was made
    for; nothing here is cut to it. `init_std` is the standard deviation of fresh weights. `extra`
    holds the keys of a config.json that do not alter the computation (token ids, for example), each
    with its value as JSON text, so that saving writes them back.
    """

    family: str
    vocab_size: int
    embed: int
    layers: tuple[Layer, ...]
    norm: Norm
    tie: bool
    max_length: int
    init_std: float = 0.02
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self):
        _positive(self, "vocab_size", "embed", "max_length", "init_std")
        if not self.layers:
            raise ValueError(
                "A decoder needs at least one layer, got layers=(). Use depth=1 or more."
            )


def _positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise ValueError(
                f"{type(config).__name__}.{name} must be positive, got {name}={value}. "
                f"Pass {name}= a number above 0."
            )


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)
