# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration inside a layer: rotary position embedding and feed-forward blocks.

The checks at the end serve all configurations. Each error names the field, its value and a value to
use.
"""

import dataclasses
import math
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


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


Scaling = Llama3Scaling | LinearScaling | YarnScaling


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
        one_of(self, "activation", Activation.__args__)


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
        one_of(self, "score", ("max", "top2"))
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
        positive_or_none(self, "shared")
        one_of(self, "score", ("softmax", "sigmoid"))
        if not isinstance(self.activation, ClampedGlu):
            one_of(self, "activation", Activation.__args__)
        groups = self.groups or Groups(count=1, top_k=1, score="max")
        if self.count % groups.count:
            raise ValueError(
                f"Groups.count must divide Experts.count, got {groups.count} groups for "
                f"count={self.count}. Use one of {divisors(self.count)}."
            )
        size = self.count // groups.count
        if self.top_k > size * groups.top_k or (groups.score == "top2" and size < 2):
            raise ValueError(
                "top_k must be at most the experts of the chosen groups, and groups scored by "
                f"'top2' need two experts each, got top_k={self.top_k} with {groups.top_k} groups "
                f"of {size}. Use a smaller top_k or fewer groups."
            )


def positive(config: object, *names: str) -> None:
    """Raises ValueError if a named field is not above 0 and finite."""
    for name in names:
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(
                f"{type(config).__name__}.{name} must be positive, got {name}={value}. "
                f"Pass {name}= a number above 0."
            )


def positive_or_none(config: object, *names: str) -> None:
    """Raises ValueError if a named field is neither None nor above 0 and finite."""
    positive(config, *(name for name in names if getattr(config, name) is not None))


def one_of(config: object, name: str, options: tuple[str, ...]) -> None:
    """Checks a field with named options.

    Args:
        config: The configuration.
        name: Name of the field.
        options: Its possible values.

    Raises:
        ValueError: The value is not among them.
    """
    value = getattr(config, name)
    if value not in options:
        raise ValueError(
            f"{type(config).__name__}.{name} must be one of {options}, got {name}={value!r}. "
            f"Pass {name}={options[0]!r}, for example."
        )


def even(config: object, name: str) -> None:
    """Raises ValueError if a field is odd."""
    value = getattr(config, name)
    if value % 2:
        raise ValueError(
            f"RoPE rotates pairs of numbers, so {name} must be even, got {name}={value}. "
            f"Use {name}={value + 1}."
        )


def divisors(n: int) -> tuple[int, ...]:
    """Returns the divisors of n, ascending."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)
