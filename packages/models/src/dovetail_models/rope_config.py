# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding as frozen values: a base, and how its frequencies are stretched."""

import dataclasses
import math


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
        positive(self, "factor", "low_freq_factor", "original_length")
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                "high_freq_factor must be above low_freq_factor, got high_freq_factor="
                f"{self.high_freq_factor}, low_freq_factor={self.low_freq_factor}. "
                "Llama 3.1 uses 4.0 and 1.0."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every wavelength is multiplied by `factor` (2306.15595)."""

    factor: float

    def __post_init__(self):
        positive(self, "factor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN: pairs that turn more than `beta_fast` times in the original context are kept, those
    that turn less than `beta_slow` times are slowed by `factor`, and between them it ramps over the
    index of the pair, from and to whole indices if `truncate`.

    cos and sin are multiplied by `attention_factor`, or, where that is None, by the ratio of
    `0.1 m ln(factor) + 1` for m = `mscale` and m = `mscale_all_dim` if both are given, else by its
    value for m = 1. Source: 2309.00071, sections 3.2 to 3.4.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self):
        positive(self, "factor", "original_length", "beta_slow")
        if not self.beta_fast > self.beta_slow:
            raise ValueError(
                f"beta_fast must be above beta_slow, got beta_fast={self.beta_fast}, "
                f"beta_slow={self.beta_slow}. The paper uses 32 and 1."
            )

    @property
    def turn_factor(self) -> float:
        """The factor on cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def score_factor(self) -> float:
        """The factor that latent attention puts on q kᵀ: the square of `mscale_all_dim`'s."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnitude(self, m: float) -> float:
        return 0.1 * m * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


Scaling = Llama3Scaling | LinearScaling | YarnScaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: frequency i of a head is `theta ** (-2 i / head_dim)`.

    Element i of a head turns with element i + head_dim / 2, or, `interleaved`, 2i with 2i + 1.
    """

    theta: float
    scaling: Scaling | None = None
    interleaved: bool = False

    def __post_init__(self):
        positive(self, "theta")


def positive(config: object, *names: str) -> None:
    """Raises ValueError for a field that is not above 0 and finite."""
    for name in names:
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(
                f"{type(config).__name__}.{name} must be positive, got {name}={value}. "
                f"Pass {name}= a number above 0."
            )
