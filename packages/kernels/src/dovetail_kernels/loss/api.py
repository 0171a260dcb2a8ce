# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of a linear head, without its logits in memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Integer

from dovetail_kernels import dispatch, mesh
from dovetail_kernels.argument_names import operation
from dovetail_kernels.loss.call import LossCall, LossInputs
from dovetail_kernels.loss.plan import plan_linear_cross_entropy, plan_linear_logprobs
from dovetail_kernels.loss.shards import alike

_INSTEAD = "Use jax.sharding.reshard on x and w: D is whole, tokens and vocabulary may be sharded."


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CE:
    """Sums over tokens, each weighted by `where`, in float32 (float64 for float64).

    The mean loss is sum / count. The loss without z-loss is sum - z_loss * z_sum.

    Attributes:
        sum: The loss to minimize, with smoothing and z-loss. Only this field has a gradient by x, w
            and bias.
        count: Sum of the weights.
        z_sum: Sum of the squared log of the partition function. Its gradient by x, w and bias is
            NaN, so a z-loss made from it cannot silently have no effect. Use `z_loss`.
        correct: Sum over tokens with the largest logit at their label; of equal logits the first
            counts.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import linear_cross_entropy
        >>> ce = linear_cross_entropy(jnp.ones((3, 2)), jnp.zeros((2, 4)), jnp.array([0, 0, 3]))
        >>> float(ce.count), float(ce.correct)
        (3.0, 2.0)
    """

    sum: Float[Array, ""]
    count: Float[Array, ""]
    z_sum: Float[Array, ""]
    correct: Float[Array, ""]


class Logprobs(NamedTuple):
    """Log-probabilities and entropies per token, in nats. Both have gradients.

    Attributes:
        logprob: log p(label).
        entropy: -sum_k p_k log p_k.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import linear_logprobs
        >>> logprobs = linear_logprobs(jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.array([0, 3]))
        >>> jnp.round(logprobs.entropy, 4)  # log 4
        Array([1.3863, 1.3863], dtype=float32)
    """

    logprob: Float[Array, " M"]
    entropy: Float[Array, " M"]


@operation
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
    vocab_mesh_axes: str | tuple[str, ...] | None = None,
    budget: int | None = None,
    impl: dispatch.Impl | None = None,
) -> CE:
    """Cross-entropy of a linear head, summed over tokens, without the logits in memory.

    With e = `smoothing`, the sum is

        sum_i where_i ((1 - e) nll_i(y_i) + e mean_k nll_i(k) + z_loss lse_i^2)
        z = soft_cap tanh((x w + bias) / soft_cap),  lse = logsumexp(z),  nll(k) = lse - z_k

    It is the cross-entropy of `torch.nn.functional.cross_entropy` with its label smoothing, plus
    the z-loss of PaLM (2204.02311, section 5). Logits are formed in tiles (compare 2411.09009) and
    accumulated in float32 (float64 for float64). The gradients are formed in the forward pass,
    and only on request. For bfloat16 the gradient of the logits is rounded to bfloat16 before its
    products. These are summed over all tokens in float32.

    Under a mesh, tokens may be sharded. An Auto mesh reduces the gradient by w at every tile, an
    Explicit mesh once. The vocabulary may be sharded over other mesh axes: on an Explicit mesh by
    the type of w or bias, inside of `jax.shard_map` with `vocab_mesh_axes`. Devices then exchange
    numbers per token and the gradient by x, no logits and no weights. On an Auto mesh types do not
    say how w is split, and the partitioner gathers it: use `jax.shard_map` there. V must be a
    multiple of the shards: else append columns with a bias of -inf (without smoothing).

    Forward mode (`jax.jvp`, `jax.jacfwd`) and second derivatives need `impl="reference"`.

    Args:
        x: Inputs of the head [M, D]: bfloat16, float32 or float64.
            M, D and V may be symbolic (`jax.export`), without `budget`.
        w: Weights of the head, of x's dtype: [D, V], or [V, D] with `vocab_axis=0`, as for tied
            embeddings.
        labels: Token ids [M], in [0, V) wherever `where` is not 0.
        where: Bool or weight per token [M]. A token with 0 is not read: its x may be NaN, its label
            may be anything, and its gradients are 0. Weights have a gradient. Default: all tokens
            count.
        bias: Added to the logits [V]. -inf removes a column.
        soft_cap: Positive bound of the logits, for example 30.0. None for none.
        z_loss: Factor of lse^2, for example 1e-4.
        smoothing: Label smoothing over the whole vocabulary, in [0, 1).
        vocab_axis: Axis of w for the vocabulary: 1 or 0.
        vocab_mesh_axes: Inside of `jax.shard_map` with its default checks: the mesh axis or axes
            over which the vocabulary of w and bias is split, in their order. x, labels and `where`
            are equal on the devices of these axes; labels are ids of the whole vocabulary. Default:
            w has the whole vocabulary.
        budget: Bytes for the tiles, besides arguments, results and the float32 sum of the gradient
            by w. It changes the time, and the answer only by rounding. Default: 96 MiB on a CPU, 2
            GiB on a GPU, 1 GiB elsewhere, or the smallest tile if larger. On a GPU a budget for 512
            tokens of the whole vocabulary gives fewer and larger products.
        impl: An implementation, by name or as `implementations.Implementation`, or several in order
            of preference; see `explain`.

    Returns:
        The sums over tokens.

    Raises:
        ValueError: Shapes do not fit, an option is out of range, a label of a token that counts is
            out of range (inside `jax.jit` its loss, and so the sum, is NaN), the budget is too
            small, `impl` cannot do the call, an Explicit mesh shards axis D or shards tokens and
            vocabulary over one axis, or `vocab_mesh_axes` names other axes than those of w.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> from dovetail_kernels import linear_cross_entropy
        >>> x, w, labels = jnp.ones((3, 2)), jnp.zeros((2, 4)), jnp.array([0, 1, 3])
        >>> def mean(x):
        ...     ce = linear_cross_entropy(x, w, labels, where=labels > 0)
        ...     return ce.sum / ce.count
        >>> print(f"{mean(x):.4f}", jax.grad(mean)(x).shape)  # log 4
        1.3863 (3, 2)
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
        vocab_mesh_axes=vocab_mesh_axes,
        budget=budget,
        impl=impl,
    )
    sums = _per_shard(plan, x, w, bias, labels, where, out=("",) * 4, summed="m")
    return CE(sum=sums[0], count=sums[1], z_sum=sums[2], correct=sums[3])


@operation
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
    vocab_mesh_axes: str | tuple[str, ...] | None = None,
    budget: int | None = None,
    impl: dispatch.Impl | None = None,
) -> Logprobs:
    """Log-probability of the label and entropy per token, both differentiable.

    With z = soft_cap tanh((x w + bias) / soft_cap) / temperature, these are log softmax(z)[label]
    and the entropy of softmax(z). Gradients take four products, since the cotangent of each token
    is known only afterwards. For a mean over tokens use `linear_cross_entropy`, with three. Meshes
    and derivatives are as there.

    Args:
        x: Inputs of the head [M, D]: bfloat16, float32 or float64.
            M, D and V may be symbolic (`jax.export`), without `budget`.
        w: Weights of the head, of x's dtype: [D, V], or [V, D] with `vocab_axis=0`.
        labels: Token ids [M], in [0, V) wherever `where` is True.
        where: Tokens to read [M]. The others have 0 and 0. Default: all.
        bias: Added to the logits [V]. -inf removes a column.
        soft_cap: Positive bound of the logits. None for none.
        temperature: Positive divisor of the logits.
        vocab_axis: Axis of w for the vocabulary: 1 or 0.
        vocab_mesh_axes: Mesh axes of w's vocabulary; see `linear_cross_entropy`.
        budget: Bytes for the tiles; see `linear_cross_entropy`.
        impl: An implementation, by name or as `implementations.Implementation`, or several in order
            of preference; see `explain`.

    Returns:
        Log-probability and entropy [M], in nats.

    Raises:
        ValueError: As in `linear_cross_entropy`. Inside `jax.jit` a label out of range gives NaN
            for its token.
        TypeError: A dtype is wrong.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_kernels import linear_logprobs
        >>> x, w = jnp.ones((2, 2)), jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
        >>> logprob, entropy = linear_logprobs(x, w, jnp.array([2, 0]), temperature=0.5)
        >>> print(f"{logprob[0]:.4f} {logprob[1]:.4f}")
        -0.1429 -4.1429
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
        vocab_mesh_axes=vocab_mesh_axes,
        budget=budget,
        impl=impl,
    )
    return Logprobs(*_per_shard(plan, x, w, bias, labels, where, out=("m", "m"), summed=""))


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
    names = plan.call.vocab_mesh_axes
    implementation = functools.partial(_run, plan.choose(), plan.call)

    def run(*shards: Any) -> tuple[Array, ...]:
        return implementation(*(alike(names, shards, split=(1, 2)) if names else shards))

    return mesh.per_shard(
        plan.operation,
        run,
        [None if a is None else jnp.asarray(a) for a in (x, w, bias, labels, where)],
        ("md", "dv" if plan.call.vocab_axis == 1 else "vd", "v", "m", "m"),
        out=out,
        may="mv",
        instead=_INSTEAD,
        summed=summed,
        checked=bool(names),
    )


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # eager calls compile once
def _run(
    implementation: dispatch.Implementation[LossCall], call: LossCall, *shards: Any
) -> tuple[Array, ...]:
    inputs = LossInputs(*shards)
    local = dataclasses.replace(call, tokens=inputs.x.shape[0])
    return dispatch.run(call.operation, implementation, local, inputs)
