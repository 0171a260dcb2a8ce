# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The next-token loss of any decoder that has `features` and `head`.

Logits are the largest array of a language model's step: at 128k tokens of vocabulary, 8 rows of
4096 are 16 GiB in float32. Here they exist for one chunk of positions at a time; the backward pass
computes them again (`jax.checkpoint`). A batch that fits in one chunk is not computed twice. An
operation that never makes them, given as `cross_entropy`, takes the place of all this.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_train.mesh import row_shards
from dovetail_train.step import Batch, Loss, Term

_CHUNK = 1024


@runtime_checkable
class Sums(Protocol):
    """Over tokens, weighted by `where`: `sum` of nll + z_loss·logsumexp², which is differentiated;
    `count` of the weights; `z_sum` of logsumexp²."""

    @property
    def sum(self) -> Array: ...
    @property
    def count(self) -> Array: ...
    @property
    def z_sum(self) -> Array: ...


@runtime_checkable
class CrossEntropy(Protocol):
    """The loss of a linear head without its logits, as `dovetail_kernels.linear_cross_entropy`."""

    def __call__(
        self,
        x: Float[Array, "M D"],
        w: Float[Array, "D V"],
        labels: Int[Array, " M"],
        *,
        where: Float[Array, " M"],
        soft_cap: float | None,
        z_loss: float,
    ) -> Sums: ...


def lm_loss(
    *,
    attention: Callable[..., Any] | None = None,
    cross_entropy: CrossEntropy | None = None,
    chunk: int | None = None,
    z: float = 0.0,
) -> Loss:
    """Σ mask·(logsumexp(logits) − logits[target]) and Σ mask, in nats.

    The batch has tokens i32[B,S], targets i32[B,S], mask f32[B,S] (0 = ignored, and then the
    target may be anything) and, if the model is to read them, positions and segment_ids i32[B,S].

    attention: the operation that the decoder is to use; None leaves its own.
    cross_entropy: the operation that forms the loss from the features and from the model's
    `head_weight()`; None makes logits by the model's `head`, chunk by chunk.
    chunk: for how many positions per device those logits exist at once, 1024 unless given.
    z: with z > 0 the loss is a mapping of "nll" and "z" = z·Σ mask·logsumexp² (PaLM, section 5).

    A target outside the vocabulary where mask > 0 makes the loss NaN, which `Trainer.fit` refuses.
    """
    if (chunk is not None and chunk < 1) or z < 0:
        raise ValueError(
            f"chunk must be at least 1 and z at least 0, got chunk={chunk}, z={z}; "
            f"write for example lm_loss(chunk=1024, z=1e-4)"
        )
    if chunk is not None and cross_entropy is not None:
        raise ValueError(
            f"chunk divides the logits, which cross_entropy does not make, got chunk={chunk} and "
            f"cross_entropy={cross_entropy}; leave one of them out"
        )

    operations = {"attention": attention, "cross_entropy": cross_entropy}

    def loss(model: Any, batch: Batch, *, key: Any) -> Term | Mapping[str, Term]:
        del key  # a decoder's noise, if any, is its own
        nll, squares, count = token_sums(model, batch, chunk=chunk, z=z, **operations)
        return {"nll": (nll, count), "z": (squares, count)} if z else (nll, count)

    return loss


def token_sums(
    model: Any,
    batch: Batch,
    *,
    attention: Callable[..., Any] | None,
    cross_entropy: CrossEntropy | None,
    chunk: int | None,
    z: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """(Σ mask·nll, z·Σ mask·logsumexp², Σ mask), options as in `lm_loss`.

    The sum of the first two has the gradient of both; each alone may not have its own.
    """
    missing = {"tokens", "targets", "mask"} - set(batch)
    if missing:
        raise ValueError(
            f"a batch must have tokens, targets and mask, got {sorted(batch)}; "
            f"add {', '.join(sorted(missing))}"
        )
    options = {name: batch[name] for name in ("positions", "segment_ids") if name in batch}
    if attention is not None:
        options["attention"] = attention
    x, _ = model.features(batch["tokens"], **options)
    targets, mask = jnp.asarray(batch["targets"]), jnp.asarray(batch["mask"], jnp.float32)
    if cross_entropy is None:
        return _chunked(model, x, targets, mask, chunk=chunk or _CHUNK, z=z)
    found = _headless(model, x, targets, mask, cross_entropy=cross_entropy, z=z)
    share = jax.lax.stop_gradient(z * found.z_sum) if z else jnp.zeros(())
    return found.sum - share, share, found.count


def _chunked(
    model: Any,
    x: Float[Array, "B S D"],
    targets: Int[Array, "B S"],
    mask: Float[Array, "B S"],
    *,
    chunk: int,
    z: float,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """`token_sums` with the logits of one chunk at a time."""

    def sums(x: Array, targets: Array, mask: Array) -> tuple[Array, Array]:
        nll, normalizer = _cross_entropy(model.head(x), jnp.where(mask > 0, targets, 0))
        return (mask * nll).sum(), (mask * normalizer**2).sum()

    rows = math.ceil(x.shape[0] / row_shards(dict(jax.sharding.get_abstract_mesh().shape)))
    nll, squares = _over_chunks(sums, (x, targets, mask), size=max(1, chunk // rows))
    return nll, z * squares, mask.sum()


def _headless(
    model: Any,
    x: Float[Array, "B S D"],
    targets: Int[Array, "B S"],
    mask: Float[Array, "B S"],
    *,
    cross_entropy: CrossEntropy,
    z: float,
) -> Sums:
    weight, soft_cap = model.head_weight()
    with jax.numpy_dtype_promotion("standard"):  # as the layer would promote them
        dtype = jnp.promote_types(x.dtype, weight.dtype)
    return cross_entropy(
        x.reshape(-1, x.shape[-1]).astype(dtype),
        weight.astype(dtype),
        targets.reshape(-1),
        where=mask.reshape(-1),
        soft_cap=soft_cap,
        z_loss=z,
    )


def _cross_entropy(
    logits: Float[Array, "*n V"], targets: Int[Array, "*n"]
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """(−log p(target), logsumexp) in float32; NaN where the target is not in the vocabulary."""
    logits = logits.astype(jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # take_along_axis counts negative indices from the end: move them past it, where it gives NaN.
    targets = jnp.where(targets < 0, logits.shape[-1], targets)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill")[..., 0]
    return normalizer - picked, normalizer


def _over_chunks(
    function: Callable[..., Any], arrays: tuple[Array, ...], *, size: int
) -> tuple[Array, Array]:
    """The sum of `function` over pieces of at most `size` along axis 1, each computed twice."""
    rows, length = arrays[0].shape[:2]
    pieces = math.ceil(length / size)
    if pieces <= 1:
        return function(*arrays)
    size = math.ceil(length / pieces)
    full = length // size
    again = jax.checkpoint(function)

    def add(total: Any, piece: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, again(*piece)), None

    stacked = [
        jnp.moveaxis(a[:, : full * size].reshape(rows, full, size, *a.shape[2:]), 1, 0)
        for a in arrays
    ]
    total, _ = jax.lax.scan(add, (jnp.zeros(()), jnp.zeros(())), stacked)
    if full * size < length:
        total, _ = add(total, [a[:, full * size :] for a in arrays])
    return total
