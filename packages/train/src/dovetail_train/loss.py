# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The next-token loss of any decoder that has `features` and `head`.

Logits are the largest array of a language model's step: at 128k tokens of vocabulary, 8 rows of
4096 are 16 GiB in float32. Here they exist for one chunk of positions at a time; the backward pass
computes them again (`jax.checkpoint`). A batch that fits in one chunk is not computed twice.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_train.mesh import row_shards
from dovetail_train.step import Batch, Loss, Term


def lm_loss(
    *, attention: Callable[..., Any] | None = None, chunk: int = 1024, z: float = 0.0
) -> Loss:
    """Σ mask·(logsumexp(logits) − logits[target]) and Σ mask, in nats.

    The batch has tokens i32[B,S], targets i32[B,S], mask f32[B,S] (0 = ignored, and then the
    target may be anything) and, if the model is to read them, positions and segment_ids i32[B,S].

    attention: the operation that the decoder is to use; None leaves its own.
    chunk: for how many positions per device the logits exist at once.
    z: with z > 0 the loss is a mapping of "nll" and "z" = z·Σ mask·logsumexp² (PaLM, section 5).

    A target outside the vocabulary where mask > 0 makes the loss NaN, which `Trainer.fit` refuses.
    """
    if chunk < 1 or z < 0:
        raise ValueError(
            f"chunk must be at least 1 and z at least 0, got chunk={chunk}, z={z}; "
            f"write for example lm_loss(chunk=1024, z=1e-4)"
        )

    def loss(model: Any, batch: Batch, *, key: Any) -> Term | Mapping[str, Term]:
        del key  # a decoder's noise, if any, is its own
        nll, squares, count = token_sums(model, batch, attention=attention, chunk=chunk)
        return {"nll": (nll, count), "z": (z * squares, count)} if z else (nll, count)

    return loss


def token_sums(
    model: Any, batch: Batch, *, attention: Callable[..., Any] | None, chunk: int
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """(Σ mask·nll, Σ mask·logsumexp², Σ mask), with the logits of one chunk at a time."""
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

    def sums(x: Array, targets: Array, mask: Array) -> tuple[Array, Array]:
        nll, normalizer = _cross_entropy(model.head(x), jnp.where(mask > 0, targets, 0))
        return (mask * nll).sum(), (mask * normalizer**2).sum()

    rows = math.ceil(x.shape[0] / row_shards(dict(jax.sharding.get_abstract_mesh().shape)))
    nll, squares = _over_chunks(sums, (x, targets, mask), size=max(1, chunk // rows))
    return nll, squares, mask.sum()


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
