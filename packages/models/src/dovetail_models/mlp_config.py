# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Frozen configuration of feed-forward blocks: dense, and mixtures of experts."""

import dataclasses
from typing import Literal

from dovetail_models._config_checks import divisors, one_of, positive, positive_or_none

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
