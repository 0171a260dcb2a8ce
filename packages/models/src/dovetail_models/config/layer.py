# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration inside a layer: feed-forward blocks; `rope_config` has the rotary embedding.

The checks at the end serve all configurations. Each error names the field, its value and a value to
use.
"""

import dataclasses
import math
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


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
