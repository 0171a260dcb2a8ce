# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration of rotary position embedding and of its scalings for longer contexts."""

import dataclasses
import math

from dovetail_models.config.layer import even, positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1, by wavelength in tokens. Frequencies between the bounds are
    interpolated.

    Args:
        factor: Factor on wavelengths above `original_length / low_freq_factor`.
        low_freq_factor: Divisor of the upper bound.
        high_freq_factor: Wavelengths below `original_length / high_freq_factor` are kept.
        original_length: Context length before scaling.

    Raises:
        ValueError: A value is not positive, or `high_freq_factor` is not above `low_freq_factor`.

    Example:

        >>> from dovetail_models import Llama3Scaling, Rope
        >>> sizes = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
        >>> Rope(theta=500_000.0, scaling=Llama3Scaling(factor=8.0, **sizes)).scaling.factor
        8.0
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
                "Use high_freq_factor=4.0, low_freq_factor=1.0, as Llama 3.1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation: multiplies every wavelength by `factor` (2306.15595).

    Attributes:
        factor: Factor on the wavelengths, above 0.

    Example:

        >>> from dovetail_models import LinearScaling, Rope
        >>> Rope(theta=10_000.0, scaling=LinearScaling(factor=4.0)).scaling
        LinearScaling(factor=4.0)
    """

    factor: float

    def __post_init__(self):
        positive(self, "factor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN scaling (2309.00071, sections 3.2 to 3.4).

    Pairs with more than `beta_fast` rotations in the original context are kept. The frequencies of
    pairs with fewer than `beta_slow` rotations are divided by `factor`. Between them a ramp over
    the index of the pair interpolates.

    Args:
        factor: Divisor of the slow frequencies.
        original_length: Context length before scaling.
        beta_fast: Rotations above which a pair is kept.
        beta_slow: Rotations below which a pair is slowed.
        truncate: The ramp starts and ends at whole indices.
        attention_factor: Factor on cos and sin. None: the ratio of `0.1 m ln(factor) + 1` at m =
            `mscale` and at m = `mscale_all_dim` if both are given, else its value at m = 1.
        mscale: See `attention_factor`.
        mscale_all_dim: See `attention_factor`; also scales the scores of latent attention.

    Raises:
        ValueError: A value is not positive, or `beta_fast` is not above `beta_slow`.

    Example:

        >>> from dovetail_models import Rope, YarnScaling
        >>> scaling = YarnScaling(factor=4.0, original_length=4096)
        >>> round(scaling.turn_factor, 4)
        1.1386
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
                f"beta_slow={self.beta_slow}. Use beta_fast=32, beta_slow=1, as the paper."
            )

    @property
    def turn_factor(self) -> float:
        """Factor on cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def score_factor(self) -> float:
        """Factor on q kᵀ of latent attention: the square of the magnitude at `mscale_all_dim`, or
        1.
        """
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnitude(self, m: float) -> float:
        return 0.1 * m * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicScaling:
    """Dynamic NTK scaling: the base grows with the length of the sequence.

    Up to `original_length` tokens nothing is scaled. A sequence of L tokens has the base
    `theta * (factor * L / original_length - factor + 1) ** (head_dim / (head_dim - 2))`, for all of
    its positions. So a cache of keys cannot grow beyond `original_length`.

    Attributes:
        factor: Growth of the base, above 0.
        original_length: Context length before scaling.

    Example:

        >>> from dovetail_models import DynamicScaling, Rope
        >>> Rope(theta=10_000.0, scaling=DynamicScaling(factor=2.0, original_length=4096)).limit
        4096
    """

    factor: float
    original_length: int

    def __post_init__(self):
        positive(self, "factor", "original_length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE: divides each frequency by a number of its own (2402.13753).

    Sequences longer than `original_length` have other divisors, for all of their positions. So a
    cache of keys cannot grow beyond `original_length`.

    Args:
        short_factor: Divisors up to `original_length` tokens, one per pair of a head.
        long_factor: Divisors of longer sequences, one per pair of a head.
        original_length: Context length before scaling, above 1.
        factor: Ratio of the contexts, for `attention_factor`.
        attention_factor: Factor on cos and sin. None: `sqrt(1 + ln(factor) / ln(original_length))`,
            or 1 for a `factor` of at most 1.

    Raises:
        ValueError: A value is not positive, or the two have other numbers of divisors.

    Example:

        >>> from dovetail_models import LongRopeScaling, Rope
        >>> scaling = LongRopeScaling(
        ...     short_factor=(1.0, 1.5), long_factor=(2.0, 8.0), original_length=4096, factor=32.0
        ... )
        >>> round(scaling.turn_factor, 4)
        1.1902
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float
    attention_factor: float | None = None

    def __post_init__(self):
        positive(self, "original_length", "factor")
        both = (*self.short_factor, *self.long_factor)
        if len(self.short_factor) != len(self.long_factor) or not all(x > 0 for x in both):
            raise ValueError(
                "short_factor and long_factor must have a number above 0 for each pair of a head, "
                f"got short_factor={self.short_factor}, long_factor={self.long_factor}. "
                "Pass head_dim / 2 numbers in each."
            )
        if self.original_length < 2:
            raise ValueError(
                "LongRopeScaling.original_length must be above 1, got original_length="
                f"{self.original_length}. Pass the context length before scaling."
            )

    @property
    def turn_factor(self) -> float:
        """Factor on cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))


Scaling = Llama3Scaling | LinearScaling | YarnScaling | DynamicScaling | LongRopeScaling
# Scalings whose frequencies depend on the length of the whole sequence.
BY_LENGTH = DynamicScaling, LongRopeScaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: frequency i of a head is `theta ** (-2 i / head_dim)`.

    Args:
        theta: Base of the frequencies.
        scaling: Scaling for a longer context, or None.
        interleaved: Pair element 2i with 2i + 1 instead of i with i + head_dim / 2.

    Raises:
        ValueError: `theta` is not positive.

    Example:

        >>> from dovetail_models import Rope
        >>> Rope(theta=10_000.0)
        Rope(theta=10000.0, scaling=None, interleaved=False)
    """

    theta: float
    scaling: Scaling | None = None
    interleaved: bool = False

    def __post_init__(self):
        positive(self, "theta")

    @property
    def limit(self) -> int | None:
        """Longest sequence with one set of frequencies, in tokens. None: any length."""
        return self.scaling.original_length if isinstance(self.scaling, BY_LENGTH) else None

    def check_width(self, config: object, name: str) -> None:
        """Checks that this rotates heads of a width.

        Args:
            config: The attention.
            name: Its field with the number of rotated elements of a head.

        Raises:
            ValueError: The width is odd, too small for a growing base, or without a factor for each
                pair.
        """
        even(config, name)
        width, scaling = getattr(config, name), self.scaling
        if isinstance(scaling, DynamicScaling) and width < 4:
            raise ValueError(
                f"DynamicScaling needs two pairs in a head, got {name}={width}. Use {name}=4."
            )
        if isinstance(scaling, LongRopeScaling) and 2 * len(scaling.short_factor) != width:
            raise ValueError(
                f"short_factor and long_factor must hold {name} / 2 numbers each, got "
                f"{len(scaling.short_factor)} with {name}={width}. Pass {width // 2}."
            )
