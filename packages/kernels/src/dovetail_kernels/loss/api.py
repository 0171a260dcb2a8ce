# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of a linear head, without its logits in memory."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Integer

from dovetail_kernels import dispatch, mesh
from dovetail_kernels.loss.call import LossCall, check
from dovetail_kernels.loss.implementations import CROSS_ENTROPY, LOG_PROBABILITIES, tiles_of

_INSTEAD = (
    "Use jax.sharding.reshard on x and w so that only tokens are sharded: a vocabulary-parallel "
    "loss is not here yet."
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CE:
    """Sums over tokens, float32 (float64 for float64), each weighted by `where`.

    sum: what is minimised, smoothing and z-loss included; the only one with a gradient by x, w and
        bias. The loss without z-loss is sum - z_loss * z_sum.
    count: of the weights; the mean loss is sum / count.
    z_sum: of the squared log of the partition function. Its gradient by x, w and bias is NaN, so
        that a z-loss made from it is not silently without effect: use `z_loss`.
    correct: of tokens whose label has the largest logit (of equal ones the first).
    """

    sum: Float[Array, ""]
    count: Float[Array, ""]
    z_sum: Float[Array, ""]
    correct: Float[Array, ""]


class Logprobs(NamedTuple):
    """Per token, in nats: log p(label), and -sum_k p_k log p_k. Both have gradients."""

    logprob: Float[Array, " M"]
    entropy: Float[Array, " M"]


def linear_cross_entropy(
    x: Float[Array | np.ndarray, "M D"],
    w: Float[Array | np.ndarray, "D V"] | Float[Array | np.ndarray, "V D"],
    labels: Integer[Array | np.ndarray, " M"],
    *,
    where: Bool[Array | np.ndarray, " M"] | Float[Array | np.ndarray, " M"] | None = None,
    bias: Float[Array | np.ndarray, " V"] | None = None,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    smoothing: float = 0.0,
    vocab_axis: int = 1,
    budget: int | None = None,
    impl: str | Sequence[str] | None = None,
) -> CE:
    """sum_i where_i ((1 - e) nll_i(y_i) + e mean_k nll_i(k) + z_loss lse_i^2), e = smoothing.

    Here z = soft_cap tanh((x w + bias) / soft_cap), lse = logsumexp(z), nll(k) = lse - z_k: the
    cross-entropy of `torch.nn.functional.cross_entropy` with its label smoothing, and the z-loss of
    PaLM (2204.02311, section 5). The logits are formed in tiles (compare 2411.09009), accumulated
    in float32, or float64 for float64; both gradients are formed in the forward pass, if and only
    if asked for. For bfloat16 the gradient of the logits is rounded to bfloat16 before its
    products, which are summed over all tokens in float32.

    Args:
        x: bfloat16, float32 or float64.
        w: of the dtype of x; [V, D] with vocab_axis=0, as tied embeddings are.
        labels: in [0, V) wherever `where` is not 0.
        where: True or a weight for each token. A token with 0 is not read: its x may be NaN and its
            label anything, and its gradients are 0. None: all count. Weights have a gradient.
        bias: added to the logits. -inf takes a column out.
        soft_cap: positive, as 30.0.
        z_loss: the factor of lse^2, as 1e-4.
        smoothing: in [0, 1), over the whole vocabulary.
        vocab_axis: the axis of w that is the vocabulary.
        budget: bytes for the tiles, beside arguments, results and the float32 sum of the gradient
            by w. It changes the time, never the answer beyond rounding. None: 96 MiB on a CPU, 1
            GiB elsewhere, or the least tile if that is more.
        impl: a name or names from `explain`.

    Raises:
        ValueError: shapes, options, a label out of range where it counts (inside `jax.jit` its
            loss, and then the sum, is NaN), a budget too small, w or an axis D sharded by an
            Explicit mesh.
        TypeError: dtypes.

    Under a mesh tokens may be sharded. With an Auto mesh the gradient by w is reduced at every
    tile, with an Explicit mesh once.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import linear_cross_entropy

        x, w = jnp.ones((6, 8)), jax.random.normal(jax.random.key(0), (8, 50257))
        labels = jnp.arange(6)
        loss = lambda x, w: linear_cross_entropy(x, w, labels, where=labels > 1)
        print(jax.grad(lambda x, w: loss(x, w).sum / loss(x, w).count)(x, w).shape)
    """
    plan = plan_linear_cross_entropy(
        x,
        w,
        labels,
        where=where,
        bias=bias,
        soft_cap=soft_cap,
        z_loss=z_loss,
        smoothing=smoothing,
        vocab_axis=vocab_axis,
        budget=budget,
        impl=impl,
    )
    sums = _per_shard(plan, x, w, bias, labels, where, out=("",) * 4, summed="m")
    return CE(sum=sums[0], count=sums[1], z_sum=sums[2], correct=sums[3])


def plan_linear_cross_entropy(
    x: Any,
    w: Any,
    labels: Any,
    *,
    where: Any = None,
    bias: Any = None,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    smoothing: float = 0.0,
    vocab_axis: int = 1,
    budget: int | None = None,
    impl: str | Sequence[str] | None = None,
) -> dispatch.Plan[LossCall]:
    """What `linear_cross_entropy` would run; arrays may be `jax.ShapeDtypeStruct`."""
    call = check(
        "linear_cross_entropy",
        x,
        w,
        labels,
        where=where,
        bias=bias,
        vocab_axis=vocab_axis,
        soft_cap=soft_cap,
        smoothing=smoothing,
        z_loss=z_loss,
        budget=budget,
    )
    return _plan(call, CROSS_ENTROPY, impl)


def linear_logprobs(
    x: Float[Array | np.ndarray, "M D"],
    w: Float[Array | np.ndarray, "D V"] | Float[Array | np.ndarray, "V D"],
    labels: Integer[Array | np.ndarray, " M"],
    *,
    where: Bool[Array | np.ndarray, " M"] | None = None,
    bias: Float[Array | np.ndarray, " V"] | None = None,
    soft_cap: float | None = None,
    temperature: float = 1.0,
    vocab_axis: int = 1,
    budget: int | None = None,
    impl: str | Sequence[str] | None = None,
) -> Logprobs:
    """log softmax(z)[label] and the entropy of softmax(z) for each token, both differentiable.

    z = soft_cap tanh((x w + bias) / soft_cap) / temperature. Arguments, errors and meshes are those
    of `linear_cross_entropy`. Where `where` is False a token is not read, and has 0 and 0. Inside
    `jax.jit` a label out of range gives NaN for its token. Four products with gradients, as a
    cotangent per token is known only afterwards: for a mean over tokens use
    `linear_cross_entropy`, which takes three.

    Example:

        import jax, jax.numpy as jnp
        from dovetail_kernels import linear_logprobs

        x, w = jnp.ones((6, 8)), jax.random.normal(jax.random.key(0), (8, 50257))
        logprob, entropy = linear_logprobs(x, w, jnp.arange(6), temperature=0.7)
        print(logprob.shape, entropy.shape)
    """
    plan = plan_linear_logprobs(
        x,
        w,
        labels,
        where=where,
        bias=bias,
        soft_cap=soft_cap,
        temperature=temperature,
        vocab_axis=vocab_axis,
        budget=budget,
        impl=impl,
    )
    return Logprobs(*_per_shard(plan, x, w, bias, labels, where, out=("m", "m"), summed=""))


def plan_linear_logprobs(
    x: Any,
    w: Any,
    labels: Any,
    *,
    where: Any = None,
    bias: Any = None,
    soft_cap: float | None = None,
    temperature: float = 1.0,
    vocab_axis: int = 1,
    budget: int | None = None,
    impl: str | Sequence[str] | None = None,
) -> dispatch.Plan[LossCall]:
    """What `linear_logprobs` would run; arrays may be `jax.ShapeDtypeStruct`."""
    call = check(
        "linear_logprobs",
        x,
        w,
        labels,
        where=where,
        bias=bias,
        vocab_axis=vocab_axis,
        soft_cap=soft_cap,
        temperature=temperature,
        budget=budget,
    )
    return _plan(call, LOG_PROBABILITIES, impl)


def _plan(
    call: LossCall,
    implementations: Sequence[dispatch.Implementation[LossCall]],
    impl: str | Sequence[str] | None,
) -> dispatch.Plan[LossCall]:
    tiles_of(call, call.tokens)  # raises where the budget holds no tile
    return dispatch.Plan(
        operation=call.operation,
        call=call,
        device=call.device,
        implementations=implementations,
        impl=impl,
    )


def _per_shard(
    plan: dispatch.Plan[LossCall],
    x: Any,
    w: Any,
    bias: Any,
    labels: Any,
    where: Any,
    *,
    out: tuple[str, ...],
    summed: str,
) -> tuple[Array, ...]:
    run = functools.partial(plan.choose().run, plan.call)
    arrays = [None if a is None else jnp.asarray(a) for a in (x, w, bias, labels, where)]
    axes = ("md", "dv" if plan.call.vocab_axis == 1 else "vd", "v", "m", "m")
    return mesh.per_shard(
        plan.operation, run, arrays, axes, out=out, may="m", instead=_INSTEAD, summed=summed
    )
