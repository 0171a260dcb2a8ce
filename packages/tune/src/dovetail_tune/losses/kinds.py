# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of preference loss over pairs, each as its paper has it.

Letters: beta the strength of the penalty, eps the label smoothing, r the log-ratio of policy to
reference of an answer, s its score under the f-divergence (s = r for the reverse KL), h the
difference of the scores of the chosen and of the rejected answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool

from dovetail_tune.rows import Pair

Kind = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sigmoid_norm",
]


class Answers(NamedTuple):
    """Values of N pairs of answers.

    Attributes:
        policy: Log-probabilities, f32[N] each.
        ref: Log-probabilities under the reference.
        score: Scores under the f-divergence.
        tokens: Number of tokens of each answer, at least 1; None if unknown.
        where: True for the pairs that count.
    """

    policy: Pair
    ref: Pair
    score: Pair
    tokens: Pair | None
    where: Bool[Array, " N"]

    @property
    def ratio(self) -> Pair:
        """Log-ratios of policy to reference."""
        return Pair(*(own - ref for own, ref in zip(self.policy, self.ref, strict=True)))

    @property
    def difference(self) -> Array:
        """Difference of the scores, chosen less rejected."""
        return self.score.chosen - self.score.rejected

    @property
    def mean_difference(self) -> Array:
        """Difference of the scores per token."""
        assert self.tokens is not None  # checked by pairwise
        return self.score.chosen / self.tokens.chosen - self.score.rejected / self.tokens.rejected


class Options(NamedTuple):
    """Numbers of a loss.

    Attributes:
        beta: Strength of the penalty.
        eps: Label smoothing.
        tau: Temperature of DiscoPOP's mixture.
    """

    beta: float
    eps: float
    tau: float


def _smoothed(x: Array, eps: float) -> Array:
    """Returns -(1 - eps) log sigmoid(x) - eps log sigmoid(-x)."""
    if eps == 0:
        return -jax.nn.log_sigmoid(x)
    return -(1 - eps) * jax.nn.log_sigmoid(x) - eps * jax.nn.log_sigmoid(-x)


def _sigmoid(a: Answers, o: Options) -> Array:
    """DPO (2305.18290, equation 7); with eps, conservative DPO for labels flipped at that rate."""
    return _smoothed(o.beta * a.difference, o.eps)


def _hinge(a: Answers, o: Options) -> Array:
    """SLiC-HF's hinge (2305.10425) on normalized likelihoods, as RSO has it (2309.06657)."""
    return jax.nn.relu(1 - o.beta * a.difference)


def _ipo(a: Answers, o: Options) -> Array:
    """IPO (2310.12036, equation 17), of log-ratios per token as its authors computed it."""
    return (a.mean_difference - 1 / (2 * o.beta)) ** 2


def _exo_pair(a: Answers, o: Options) -> Array:
    """EXO (2402.00856, equation 16): KL of (sigmoid(beta h), rest) from (1 - eps, eps)."""
    x = o.beta * a.difference
    chosen = jax.nn.sigmoid(x) * (jax.nn.log_sigmoid(x) - jnp.log1p(-o.eps))
    return chosen + jax.nn.sigmoid(-x) * (jax.nn.log_sigmoid(-x) - jnp.log(o.eps))


def _nca_pair(a: Answers, o: Options) -> Array:
    """NCA for pairs (2402.05369, section 4.1)."""
    chosen, rejected = (o.beta * r for r in a.ratio)
    falling = jax.nn.log_sigmoid(-chosen) + jax.nn.log_sigmoid(-rejected)
    return -jax.nn.log_sigmoid(chosen) - 0.5 * falling


def _robust(a: Answers, o: Options) -> Array:
    """Robust DPO (2403.00409, section 3.1): an unbiased loss under labels flipped at rate eps."""
    x = o.beta * a.difference
    kept = -(1 - o.eps) * jax.nn.log_sigmoid(x)
    return (kept + o.eps * jax.nn.log_sigmoid(-x)) / (1 - 2 * o.eps)


def _bco_pair(a: Answers, o: Options) -> Array:
    """BCO over pairs (2404.04656, section 4), with 0 as the shift of rewards."""
    return -jax.nn.log_sigmoid(o.beta * a.ratio.chosen) - jax.nn.log_sigmoid(
        -o.beta * a.ratio.rejected
    )


def _sppo_hard(a: Answers, o: Options) -> Array:
    """SPPO (2405.00675, equation 4.7) with probability 1 for the chosen answer to win."""
    target = 0.5 / o.beta
    return (a.ratio.chosen - target) ** 2 + (a.ratio.rejected + target) ** 2


def _aot(a: Answers, o: Options) -> Array:
    """AOT for pairs (2406.05882): the policy's margins against the reference's of equal rank."""
    own = a.policy.chosen - a.policy.rejected
    ref = a.ref.chosen - a.ref.rejected
    return _smoothed(o.beta * (own - _of_equal_rank(ref, own, a.where)), o.eps)


def _aot_unpaired(a: Answers, o: Options) -> Array:
    """AOT (2406.05882): log-ratios of chosen answers against the rejected ones of equal rank."""
    chosen, rejected = a.ratio
    return _smoothed(o.beta * (chosen - _of_equal_rank(rejected, chosen, a.where)), o.eps)


def _of_equal_rank(x: Array, of: Array, where: Array) -> Array:
    """Returns for each i the value of x whose rank is that of `of[i]`, among those that count.

    Entries that do not count get `of` itself.
    """
    if AxisType.Explicit in (jax.sharding.get_abstract_mesh().axis_types or ()):
        # Only here must a sort be told to gather its values: a few numbers a pair.
        x, of, where = (jax.sharding.reshard(y, PartitionSpec()) for y in (x, of, where))
    last = jnp.finfo(x.dtype).max  # a rank behind all others; finite, for the gradients
    ranks = jnp.argsort(jnp.argsort(jnp.where(where, of, last)))
    return jnp.where(where, jnp.sort(jnp.where(where, x, last))[ranks], of)


def _apo_zero(a: Answers, o: Options) -> Array:
    """APO-zero (2408.06266, equation 7): for chosen answers better than the model's own."""
    return 1 - jax.nn.sigmoid(o.beta * a.ratio.chosen) + jax.nn.sigmoid(o.beta * a.ratio.rejected)


def _apo_down(a: Answers, o: Options) -> Array:
    """APO-down (2408.06266, equation 8): for chosen answers worse than the model's own."""
    margin = a.ratio.chosen - a.ratio.rejected
    return jax.nn.sigmoid(o.beta * a.ratio.chosen) + 1 - jax.nn.sigmoid(o.beta * margin)


def _discopop(a: Answers, o: Options) -> Array:
    """DiscoPOP (2406.08414, equation 5): logistic and exponential losses, mixed by the margin."""
    x = o.beta * a.difference
    logistic = -jax.nn.log_sigmoid(x) * jax.nn.sigmoid(-x / o.tau)
    # exp(-x) overflows where the mixture gives it the weight 0: the product is finite.
    return logistic + jnp.exp(jax.nn.log_sigmoid(x / o.tau) - x)


def _sigmoid_norm(a: Answers, o: Options) -> Array:
    """Length-normalized DPO, as of Tulu 3 (2411.15124): DPO of log-ratios per token."""
    return -jax.nn.log_sigmoid(o.beta * a.mean_difference)


class Form(NamedTuple):
    """A loss, and the options that it has.

    Attributes:
        of: The loss f32[N] of each pair.
        smoothing: It has label smoothing.
        divergence: It reads the difference of the scores alone, so any f-divergence may give them.
        tokens: It divides by the number of tokens.
        whole_batch: It compares all pairs of a batch.
    """

    of: Callable[[Answers, Options], Array]
    smoothing: bool = False
    divergence: bool = False
    tokens: bool = False
    whole_batch: bool = False


KINDS: Mapping[str, Form] = MappingProxyType(
    {
        "sigmoid": Form(_sigmoid, smoothing=True, divergence=True),
        "hinge": Form(_hinge, divergence=True),
        "ipo": Form(_ipo, divergence=True, tokens=True),
        "exo_pair": Form(_exo_pair, smoothing=True, divergence=True),
        "nca_pair": Form(_nca_pair),
        "robust": Form(_robust, smoothing=True, divergence=True),
        "bco_pair": Form(_bco_pair),
        "sppo_hard": Form(_sppo_hard),
        "aot": Form(_aot, smoothing=True, whole_batch=True),
        "aot_unpaired": Form(_aot_unpaired, smoothing=True, whole_batch=True),
        "apo_zero": Form(_apo_zero),
        "apo_down": Form(_apo_down),
        "discopop": Form(_discopop, divergence=True),
        "sigmoid_norm": Form(_sigmoid_norm, divergence=True, tokens=True),
    }
)
