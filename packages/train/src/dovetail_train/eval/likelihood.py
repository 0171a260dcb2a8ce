# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of given tokens, for multiple choice and perplexity tasks.

Requests of a task differ in length, and each new shape is a program to compile. They are sorted by
length and cut into batches of `rows`. Each batch is padded on the right to one of few lengths
(doubling); causality hides the padding from the tokens before it. The head reads only the
positions of the continuations, few beside their contexts, one chunk at a time.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float64, Int64, Integer

from dovetail_train import _elsewhere
from dovetail_train.mesh.axes import auto_mesh, retyped
from dovetail_train.mesh.mesh import batch_placement, row_shards

Tokens = Sequence[int] | Integer[np.ndarray, " _"]
Request = tuple[Tokens, Tokens]

# The shortest padded row, and the fewest continuation positions that the head reads of a row:
# below these a program of its own costs more to compile than the padding costs to run.
_SHORTEST, _FEWEST = 32, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likelihoods:
    """Results for each request, in order.

    Attributes:
        logps: Σ log p over the tokens of the continuation, in nats.
        greedy: Whether each of them was the most likely token.
        tokens: Number of tokens in the continuation.
        cut: Number of context tokens that did not fit, removed from the left.
    """

    logps: Float64[np.ndarray, " n"]
    greedy: Bool[np.ndarray, " n"]
    tokens: Int64[np.ndarray, " n"]
    cut: Int64[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class _Row:
    """The right end of one request: `count` targets are the last of `tokens`."""

    tokens: np.ndarray
    count: int


@_elsewhere.call
@jax.transfer_guard("allow")
def loglikelihood(
    model: nnx.Module,
    requests: Sequence[Request],
    *,
    length: int,
    rows: int = 8,
    attention: Callable[..., Any] | None = None,
    chunk: int = 1024,
    mesh: Mesh | None = None,
    progress: Callable[[int], None] | None = None,
) -> Likelihoods:
    """Returns Σ log p(continuation | context) for pairs (context, continuation) of token lists.

    Long requests keep their right end, as in lm-evaluation-harness; `cut` counts the lost tokens.

    Args:
        model: A causal decoder with `features` and `head`. It runs in evaluation mode and is not
            changed.
        requests: Pairs of token lists. A context has at least one token, such as begin-of-text.
        length: Largest number of tokens per row.
        rows: Rows per batch.
        attention: See `lm_loss`.
        chunk: Positions per device for which logits exist at once.
        mesh: Devices for the rows, with Auto or Explicit axes. Default: the mesh of the model's
            arrays.
        progress: Receives the number of rows of each finished batch.

    Raises:
        ValueError: A context or continuation is empty, a continuation is longer than `length`, the
            mesh does not divide the rows, a token is outside the vocabulary, or logits are NaN.

    Example:

        >>> from flax import nnx
        >>> from dovetail_train.testing import TinyDecoder
        >>> model = TinyDecoder(vocab_size=10, width=8, depth=1, rngs=nnx.Rngs(0))
        >>> loglikelihood(model, [([1, 5, 9], [2, 7]), ([1], [4])], length=16).tokens
        array([2, 1])
    """
    _check_sizes(length=length, rows=rows, chunk=chunk)
    kept = [_row(request, length=length, index=i) for i, request in enumerate(requests)]
    graph, state = nnx.split(model)
    mesh = mesh or _mesh_of(state)
    if mesh is not None:
        mesh = auto_mesh(mesh)
        state = retyped(state, mesh)
    shards = row_shards(dict(mesh.shape)) if mesh is not None else 1
    if rows % shards:
        raise ValueError(
            f"rows must be divisible by the devices that share them, got rows={rows} for {shards} "
            f"devices; pass rows={math.ceil(rows / shards) * shards}"
        )
    order = sorted(range(len(kept)), key=lambda i: (-len(kept[i].tokens), -kept[i].count))
    groups = [order[i : i + rows] for i in range(0, len(order), rows)]
    score = functools.partial(_score, state, graph=graph, attention=attention)
    scores = []
    for group in groups:
        batch, pieces = _batch(
            [kept[i] for i in group], rows=rows, length=length, chunk=max(1, chunk * shards // rows)
        )
        with _on(mesh):
            scores.append(score(_placed(batch, mesh), pieces=pieces))
        if progress is not None:
            jax.block_until_ready(scores[-1])
            progress(len(group))
    return _collect(kept, groups, jax.device_get(scores), requests)


@jax.transfer_guard("allow")
def rolling_loglikelihood(
    model: nnx.Module,
    documents: Sequence[Tokens],
    *,
    length: int,
    prefix: int | None,
    stride: int | None = None,
    rows: int = 8,
    attention: Callable[..., Any] | None = None,
    chunk: int = 1024,
    mesh: Mesh | None = None,
    progress: Callable[[int], None] | None = None,
) -> Likelihoods:
    """Returns Σ log p(token | the tokens before it) over each document, every token predicted once.

    The first window predicts `length` tokens, each later one `stride` more. Every window reads as
    much context as fits. A document without tokens has log-likelihood 0.

    Args:
        model: A causal decoder with `features` and `head`.
        documents: Tokens of each document.
        length: Largest number of tokens per row.
        prefix: Token before the first of each document, such as begin-of-text. None: the documents
            bring it; their first token is context alone.
        stride: New tokens per window, from 1 to `length`. Default: `length`, for the disjoint
            windows of lm-evaluation-harness. Each token has at least `length - stride` tokens of
            context, if the document has as many.
        rows: Rows per batch.
        attention: See `lm_loss`.
        chunk: Positions per device for which logits exist at once.
        mesh: Devices for the rows, with Auto or Explicit axes. Default: the mesh of the model's
            arrays.
        progress: Receives the number of rows of each finished batch.

    Raises:
        ValueError: As `loglikelihood`, and for a stride out of range.
    """
    _check_sizes(length=length, rows=rows, chunk=chunk)
    if stride is not None and not 1 <= stride <= length:
        raise ValueError(
            f"stride must be in [1, length={length}], got stride={stride}; write for example "
            f"stride={max(1, length // 2)}"
        )
    texts = [_ids(document, index) for index, document in enumerate(documents)]
    if prefix is not None:
        texts = [np.concatenate([[prefix], text]) for text in texts]
    windows = [list(_windows(text, length, stride or length)) for text in texts]
    likelihoods = loglikelihood(
        model,
        [window for of_one in windows for window in of_one],
        length=length,
        rows=rows,
        attention=attention,
        chunk=chunk,
        mesh=mesh,
        progress=progress,
    )
    owner = np.repeat(np.arange(len(documents)), [len(of_one) for of_one in windows])
    logps, missed, tokens = (
        np.bincount(owner, weights=x, minlength=len(documents))
        for x in (likelihoods.logps, ~likelihoods.greedy, likelihoods.tokens)
    )
    return Likelihoods(
        logps=logps.astype(np.float64),  # bincount of nothing gives integers
        greedy=missed == 0,
        tokens=tokens.astype(np.int64),
        cut=np.zeros(len(documents), np.int64),
    )


def _windows(text: np.ndarray, length: int, stride: int) -> Iterator[Request]:
    """Yields (context, continuation) of at most `length` + 1 tokens; continuations tile
    text[1:].
    """
    predicted, size = 0, len(text) - 1
    while predicted < size:
        stop = min(predicted + (stride if predicted else length), size)
        yield text[max(0, stop - length) : predicted + 1], text[predicted + 1 : stop + 1]
        predicted = stop


def _check_sizes(**sizes: int) -> None:
    if min(sizes.values()) < 1:
        given = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ValueError(
            f"length, rows and chunk must be at least 1, got {given}; write for example length=2048"
        )


def _ids(tokens: Any, index: int) -> np.ndarray:
    if isinstance(tokens, str):
        raise TypeError(
            f"a request must be token ids, got the text {tokens!r} in request {index}; write "
            f"tokenizer.encode([text])[0].ids, or use multiple_choice for texts"
        )
    return np.asarray(tokens, np.int64)


def _row(request: Request, *, length: int, index: int) -> _Row:
    context, continuation = (_ids(tokens, index) for tokens in request)
    if not context.size or not continuation.size:
        raise ValueError(
            f"a request must have at least one token of context and of continuation, got "
            f"{context.size} and {continuation.size} in request {index}; give the begin-of-text "
            f"token as the context where there is none"
        )
    if continuation.size > length:
        raise ValueError(
            f"a continuation must fit the model, got {continuation.size} tokens for "
            f"length={length} in request {index}; use rolling_loglikelihood, or a longer length"
        )
    tokens = np.concatenate([context, continuation])
    if tokens.min() < 0:
        raise ValueError(
            f"tokens must be ids of the vocabulary, got {tokens.min()} in request {index}; "
            f"check the tokenizer"
        )
    return _Row(tokens[-(length + 1) :], continuation.size)


def _mesh_of(state: Any) -> Mesh | None:
    for leaf in jax.tree.leaves(state):
        sharding = getattr(leaf, "sharding", None)  # a Variable may hold something else
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def _on(mesh: Mesh | None) -> Any:
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def _placed(batch: dict[str, np.ndarray], mesh: Mesh | None) -> dict[str, Any]:
    return batch if mesh is None else jax.device_put(batch, batch_placement(mesh).rows)


def _batch(
    group: Sequence[_Row], *, rows: int, length: int, chunk: int
) -> tuple[dict[str, np.ndarray], int]:
    """Returns padded arrays of `rows` rows, and the number of pieces in which the head reads them.

    tokens i32[rows, S]; at i32[rows, N], the positions before the targets; targets i32[rows, N].
    Unused rows and positions hold zeros.
    """
    width = _bucket(len(group[0].tokens) - 1, smallest=_SHORTEST, factor=2, largest=length)
    most = max(row.count for row in group)
    count = _bucket(most, smallest=_FEWEST, factor=8, largest=width)
    pieces = math.ceil(count / chunk)
    count = math.ceil(count / pieces) * pieces
    batch = {
        "tokens": np.zeros((rows, width), np.int32),
        "at": np.zeros((rows, count), np.int32),
        "targets": np.zeros((rows, count), np.int32),
    }
    for i, row in enumerate(group):
        read = len(row.tokens) - 1
        batch["tokens"][i, :read] = row.tokens[:-1]
        batch["at"][i, : row.count] = np.arange(read - row.count, read)
        batch["targets"][i, : row.count] = row.tokens[-row.count :]
    return batch, pieces


def _bucket(size: int, *, smallest: int, factor: int, largest: int) -> int:
    bucket = smallest
    while bucket < size:
        bucket *= factor
    return min(bucket, largest)


@functools.partial(jax.jit, static_argnames=("graph", "attention", "pieces"))
def _score(
    state: Any,
    batch: dict[str, Array],
    *,
    graph: Any,
    attention: Callable[..., Any] | None,
    pieces: int,
) -> tuple[Array, Array, Array]:
    """Returns log p f32[rows, N], whether the target is the most likely token, and the vocabulary
    size.
    """
    model = nnx.merge(graph, state)
    model.eval()
    options = {} if attention is None else {"attention": attention}
    x, _ = model.features(batch["tokens"], **options)
    x = jnp.take_along_axis(x, batch["at"][..., None], axis=1)
    vocab = []

    def score(piece: tuple[Array, Array]) -> tuple[Array, Array]:
        features, targets = piece
        logits = model.head(features).astype(jnp.float32)
        vocab.append(logits.shape[-1])
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        logp = picked - jax.nn.logsumexp(logits, axis=-1)
        return logp, jnp.argmax(logits, axis=-1) == targets

    rows = x.shape[0]

    def cut(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(rows, pieces, -1, *a.shape[2:]), 1, 0)

    if pieces == 1:
        logps, best = score((x, batch["targets"]))
    else:
        scores = jax.lax.map(score, (cut(x), cut(batch["targets"])))
        logps, best = (jnp.moveaxis(a, 0, 1).reshape(rows, -1) for a in scores)
    if not jax.sharding.get_abstract_mesh().empty:  # every process reads every row
        logps, best = jax.lax.with_sharding_constraint((logps, best), PartitionSpec())
    return logps, best, jnp.int32(vocab[0])


def _collect(
    kept: Sequence[_Row],
    groups: Sequence[Sequence[int]],
    scores: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    requests: Sequence[Request],
) -> Likelihoods:
    count = len(kept)
    logps, greedy = np.zeros(count, np.float64), np.zeros(count, np.bool_)
    for group, (logp, best, vocab) in zip(groups, scores, strict=True):
        for row, i in enumerate(group):
            _check_vocabulary(kept[i], int(vocab), index=i)
            logps[i] = logp[row, : kept[i].count].astype(np.float64).sum()
            greedy[i] = best[row, : kept[i].count].all()
    if np.isnan(logps).any():
        raise ValueError(
            f"log-likelihoods must be numbers, got nan in request {int(np.isnan(logps).argmax())} "
            f"of {count}; look for parameters that are not finite"
        )
    whole = [len(context) + len(continuation) for context, continuation in requests]
    return Likelihoods(
        logps=logps,
        greedy=greedy,
        tokens=np.asarray([row.count for row in kept], np.int64),
        cut=np.asarray([n - len(r.tokens) for n, r in zip(whole, kept, strict=True)], np.int64),
    )


def _check_vocabulary(row: _Row, vocab: int, *, index: int) -> None:
    largest = int(row.tokens.max())
    if largest >= vocab:
        raise ValueError(
            f"tokens must be ids of the vocabulary, got {largest} in request {index} for a model "
            f"of {vocab} tokens; use the tokenizer that the model was trained with"
        )
