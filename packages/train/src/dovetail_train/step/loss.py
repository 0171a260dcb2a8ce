# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The next-token loss of any decoder with `features` and `head`.

Logits are the largest array of a language model's step: with a vocabulary of 128k, 8 rows of 4096
are 16 GiB in float32. Here they exist for one chunk of positions at a time, and the backward pass
recomputes them (`jax.checkpoint`). A batch of a single chunk is not computed twice. Pass
`cross_entropy` for an operation that never makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dovetail_train import _elsewhere
from dovetail_train.mesh.mesh import row_shards
from dovetail_train.step.terms import Batch, Loss, Metric, Term

_CHUNK = 1024


@runtime_checkable
class Sums(Protocol):
    """Sums over tokens, weighted by `where`.

    `sum` is that of nll + z_loss·logsumexp², and is differentiated; `count` is that of the weights;
    `z_sum` that of logsumexp².
    """

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


@_elsewhere.call
def lm_loss(
    *,
    attention: Callable[..., Any] | None = None,
    cross_entropy: CrossEntropy | None = None,
    chunk: int | None = None,
    z: float = 0.0,
    balance: bool = False,
    record: Callable[[Any, Any], None] | None = None,
    sources: Sequence[str] = (),
) -> Loss:
    """Returns a loss: Σ mask·(logsumexp(logits) − logits[target]) and Σ mask, in nats.

    The batch has tokens i32[B,S], targets i32[B,S], mask f32[B,S] (0 = ignored, with any target),
    and optionally positions and segment_ids i32[B,S] for the model. A target outside the vocabulary
    with mask > 0 makes the loss NaN.

    With `z`, `balance` or `sources` the loss is a mapping, in which "nll" is the loss of the
    tokens.

    Args:
        attention: Attention for the decoder. Default: its own.
        cross_entropy: Computes the loss from features and the model's `head_weight()`. Default:
            logits by the model's `head`, chunk by chunk.
        chunk: Positions per device for which those logits exist at once. Default: 1024.
        z: If above 0, adds the term "z" = z·Σ mask·logsumexp² (PaLM, section 5).
        balance: Adds the term "balance", the mean over sequences and layers of the decoder's taps
            "router" (objects with `total` and `sequences`). Set its weight in `Trainer(weights=)`.
        record: Called with the model and its tap "router", to keep statistics in Variables of the
            model that are no parameters, such as `dovetail_models.record_load`.
        sources: Names of sources. The batch then has source i32[B], an index into them, and each
            gets the metric "source/NAME", its mean nll.

    Example:

        >>> import optax
        >>> from dovetail_train import Trainer
        >>> trainer = Trainer(optax.adamw(1e-3), lm_loss(z=1e-4))
    """
    _check(cross_entropy=cross_entropy, chunk=chunk, z=z, sources=sources)
    taps: dict[str, Any] = {"taps": ("router",)} if balance or record else {}

    def loss(model: Any, batch: Batch, *, key: Any) -> Term | Mapping[str, Term]:
        del key  # a decoder's noise, if any, is its own
        x, *extras = _features(model, batch, attention=attention, **taps)
        names = tuple(sources)
        sums = _sums(model, x, batch, cross_entropy=cross_entropy, chunk=chunk, z=z, sources=names)
        terms: dict[str, Term] = {"nll": (sums.nll, sums.tokens)}
        if z:
            terms["z"] = sums.squares, sums.tokens
        if record is not None:
            record(model, extras[-1]["router"])
        if balance:
            router = extras[-1]["router"]
            terms["balance"] = router.total.sum(), router.sequences.sum()
        for i, name in enumerate(names):
            terms[f"source/{name}"] = Metric(sums.by_source[0, i], sums.by_source[1, i])
        return terms if len(terms) > 1 else terms["nll"]

    return loss


def _check(
    *, cross_entropy: CrossEntropy | None, chunk: int | None, z: float, sources: Sequence[str]
) -> None:
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
    if sources and cross_entropy is not None:
        raise ValueError(
            f"sources need the loss of each token, of which cross_entropy gives the sum alone, got "
            f"sources={tuple(sources)} and cross_entropy={cross_entropy}; leave one of them out"
        )
    if isinstance(sources, str) or len(set(sources)) < len(sources):
        raise ValueError(
            f"sources must be names, each once, got sources={sources!r}; write for example "
            f'lm_loss(sources=("code", "web"))'
        )


class _Sums(NamedTuple):
    """Sums over tokens: Σ mask·nll, z·Σ mask·logsumexp², Σ mask, and [2, sources], Σ mask·nll and Σ
    mask of each source. Only the sum of the first two is sure to have its gradient.
    """

    nll: Array
    squares: Array
    tokens: Array
    by_source: Array


def token_sums(
    model: Any,
    batch: Batch,
    *,
    attention: Callable[..., Any] | None,
    cross_entropy: CrossEntropy | None,
    chunk: int | None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns (Σ mask·nll, Σ mask).

    Args:
        model: A decoder.
        batch: See `lm_loss`.
        attention: See `lm_loss`.
        cross_entropy: See `lm_loss`.
        chunk: See `lm_loss`.
    """
    x, *_ = _features(model, batch, attention=attention)
    sums = _sums(model, x, batch, cross_entropy=cross_entropy, chunk=chunk, z=0.0, sources=())
    return sums.nll, sums.tokens


def _features(
    model: Any, batch: Batch, *, attention: Callable[..., Any] | None, **taps: Any
) -> tuple[Any, ...]:
    missing = {"tokens", "targets", "mask"} - set(batch)
    if missing:
        raise ValueError(
            f"a batch must have tokens, targets and mask, got {sorted(batch)}; "
            f"add {', '.join(sorted(missing))}"
        )
    if not callable(getattr(model, "features", None)):
        raise TypeError(
            f"the loss of a language model needs a decoder with features, and head or head_weight, "
            f"got {type(model).__name__}; pass a decoder such as one of dovetail_models, or write "
            f"def loss(model, batch, *, key)"
        )
    options = {name: batch[name] for name in ("positions", "segment_ids") if name in batch}
    if attention is not None:
        options["attention"] = attention
    return model.features(batch["tokens"], **options, **taps)


def _sums(
    model: Any,
    x: Float[Array, "B S D"],
    batch: Batch,
    *,
    cross_entropy: CrossEntropy | None,
    chunk: int | None,
    z: float,
    sources: tuple[str, ...],
) -> _Sums:
    targets, mask = jnp.asarray(batch["targets"]), jnp.asarray(batch["mask"], jnp.float32)
    if cross_entropy is not None:
        sums = _headless(model, x, targets, mask, cross_entropy=cross_entropy, z=z)
        share = jax.lax.stop_gradient(z * sums.z_sum) if z else jnp.zeros(())
        return _Sums(sums.sum - share, share, sums.count, jnp.zeros((2, 0)))
    if sources and "source" not in batch:
        raise ValueError(
            f"a loss of sources needs a batch with source i32[B], got {sorted(batch)} where "
            f"sources={sources}; add it, or leave sources out"
        )
    source = batch["source"] if sources else jnp.zeros(mask.shape[:1], jnp.int32)
    known = (source >= 0) & (source < max(1, len(sources)))
    # A source without a name makes the metrics NaN: its tokens would be missing from all of them.
    own = jnp.where(known[:, None], jax.nn.one_hot(source, len(sources)), jnp.nan)
    nll, squares, by_source = _chunked(model, x, targets, mask, own, chunk=chunk or _CHUNK)
    counts = mask.sum(1) @ own
    return _Sums(nll, z * squares, mask.sum(), jnp.stack([by_source, counts]))


def _chunked(
    model: Any,
    x: Float[Array, "B S D"],
    targets: Int[Array, "B S"],
    mask: Float[Array, "B S"],
    own: Float[Array, "B sources"],
    *,
    chunk: int,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " sources"]]:
    """Returns Σ mask·nll, Σ mask·logsumexp² and Σ mask·nll of each source, logits a chunk at a
    time.
    """

    def sums(x: Array, targets: Array, mask: Array) -> tuple[Array, ...]:
        nll, normalizer = token_cross_entropy(model.head(x), jnp.where(mask > 0, targets, 0))
        nll = mask * nll
        by_source = jax.lax.stop_gradient(nll.sum(1)) @ own
        return nll.sum(), (mask * normalizer**2).sum(), by_source

    zeros = jnp.zeros(()), jnp.zeros(()), jnp.zeros(own.shape[1])
    return over_chunks(sums, (x, targets, mask), chunk=chunk, zeros=zeros)


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


@jax.named_scope("loss")
def token_cross_entropy(
    logits: Float[Array, "*n V"], targets: Int[Array, "*n"]
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Returns −log p(target) and logsumexp in float32; NaN for a target outside the vocabulary."""
    logits = logits.astype(jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # take_along_axis counts negative indices from the end: move them past it, where it gives NaN.
    targets = jnp.where(targets < 0, logits.shape[-1], targets)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill")[..., 0]
    return normalizer - picked, normalizer


def over_chunks(
    function: Callable[..., Any], arrays: tuple[Array, ...], *, chunk: int, zeros: Any
) -> Any:
    """Sums function(*pieces) over pieces of arrays [B, S, ...] along axis 1.

    Values of a piece exist one piece at a time; the backward pass recomputes them. Arrays of a
    single piece are not computed twice.

    Args:
        function: Maps pieces to a pytree of sums.
        arrays: Arrays [B, S, ...].
        chunk: Largest number of positions of a piece, per device.
        zeros: A pytree of zeros like the function's result.

    Example:

        >>> import jax.numpy as jnp
        >>> x = jnp.arange(6.0).reshape(1, 6)
        >>> float(over_chunks(lambda x: x.sum(), (x,), chunk=2, zeros=0.0))
        15.0
    """
    rows, length = arrays[0].shape[:2]
    mesh = dict(jax.sharding.get_abstract_mesh().shape)
    each = max(1, chunk // math.ceil(rows / row_shards(mesh))) * mesh.get("context", 1)
    pieces = math.ceil(length / each)
    if pieces <= 1:
        return function(*arrays)
    size = math.ceil(length / pieces)
    full = length // size
    again = jax.checkpoint(function)

    def add(total: Any, piece: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, again(*piece)), None

    # Strided: positions that are split among devices stay where they are.
    stacked = [
        jnp.moveaxis(a[:, : full * size].reshape(rows, size, full, *a.shape[2:]), 2, 0)
        for a in arrays
    ]
    total, _ = jax.lax.scan(add, zeros, stacked)
    if full * size < length:
        total, _ = add(total, [a[:, full * size :] for a in arrays])
    return total
