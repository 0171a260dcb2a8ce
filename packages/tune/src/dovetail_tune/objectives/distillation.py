# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Distillation: a student learns a teacher's distribution of each token.

The teacher is a frozen twin, or its most probable ids as fields of the batch, which cost no forward
pass, no memory for its weights, and a pass over the data beforehand. The logits of both exist for
one chunk of positions at a time, and the backward pass computes them again.

Generalized knowledge distillation (2306.13649) trains on the student's own answers as well. Those
are rows like others here: any sampler makes them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dovetail_tune import _elsewhere
from dovetail_tune.chunks import map_positions
from dovetail_tune.logps import CHUNK, decoder_options, of_logits
from dovetail_tune.losses.divergence import (
    DivergenceKind,
    check_divergence,
    check_tempered,
    divergence,
    divergence_topk,
)
from dovetail_tune.reference import Frozen, Twin
from dovetail_tune.types import Batch, Loss, Term


@dataclasses.dataclass(frozen=True)
class TopK:
    """The teacher is in the batch: its k most probable ids after each token.

    Args:
        field: Prefix of the fields FIELD_ids i32[B, S, k], distinct ids, and FIELD_logps
            f32[B, S, k], their log-probabilities over the whole vocabulary at temperature 1.
        rest: Compare the mass of all other ids as well; see `losses.divergence_topk`.
    """

    field: str = "teacher"
    rest: bool = True


Teacher: TypeAlias = Frozen | TopK
# Arrays of each position [B, S, ...], and a function of logits and a chunk of them.
_Guide: TypeAlias = tuple[tuple[Array, ...], Callable[..., Array]]


@_elsewhere.call
def gkd(
    *,
    kind: DivergenceKind = "forward",
    beta: float | None = None,
    temperature: float = 1.0,
    teacher: Teacher = Frozen(),  # noqa: B008 - frozen
    nll: bool = False,
    balance: bool = False,
    attention: Callable[..., Any] | None = None,
    chunk: int = CHUNK,
) -> Loss:
    """Returns the loss of (generalized) knowledge distillation, in nats.

    Terms: "kl" is T² times the divergence of the student from the teacher, with the logits of both
    over T, for each target with weight `mask` (1503.02531, section 2; 2306.13649, equations 1 and
    2). T² keeps the size of the gradients as T grows. "nll", with `nll`, is the cross-entropy of
    the targets at T = 1. A target outside the vocabulary that counts makes "nll" NaN. No gradient
    reaches the teacher.

    Args:
        kind: "forward" KL(teacher, student), "reverse", or "jsd"; see `losses.divergence`.
        beta: The teacher's share of the mixture in "jsd", in (0, 1). Default: 0.5.
        temperature: T, above 0. It must be 1 with `TopK(rest=True)`.
        teacher: `Frozen()`, with a `Twin` of student and teacher as the model, or `TopK()`.
        nll: Add the term "nll".
        balance: Add the term "balance", the mean over sequences and layers of the student's tap
            "router", as `dovetail_train.lm_loss` has it.
        attention: Attention of both. Default: their own.
        chunk: Positions per device for which the logits of both exist at once.

    Returns:
        A loss over a `Twin`, or over a decoder with `TopK`. Give a `Twin`'s trainer
        `trainable=TRAINED`.

    Raises:
        ValueError: An option is out of range. When called: a field is missing or has another
            shape, or the vocabularies differ.
        TypeError: When called: the model is no `Twin`, or no decoder.

    Example:

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from dovetail_tune import Twin, gkd
        >>> from dovetail_tune.testing import TinyDecoder
        >>> twin = Twin(TinyDecoder(rngs=nnx.Rngs(0)), TinyDecoder(rngs=nnx.Rngs(0)))
        >>> ids = jnp.array([[1, 2, 3]])
        >>> batch = {"tokens": ids, "targets": ids + 1, "mask": jnp.ones((1, 3))}
        >>> [float(x) for x in gkd(kind="reverse", temperature=2.0)(twin, batch, key=None)["kl"]]
        [0.0, 3.0]
    """
    check_divergence(kind=kind, beta=beta)
    check_tempered(rest=isinstance(teacher, TopK) and teacher.rest, temperature=temperature)
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got chunk={chunk}; leave it out for {CHUNK}")

    def loss(model: Any, batch: Batch, *, key: Any) -> dict[str, Term]:
        del key  # nothing here is random
        student = _student(model, teacher)
        options = decoder_options(student, batch, attention=attention)
        taps: dict[str, Any] = {"taps": ("router",)} if balance else {}
        x, _, *extras = student.features(jnp.asarray(batch["tokens"]), **options, **taps)
        weight = jnp.asarray(batch["mask"], jnp.float32)
        where = weight > 0
        targets = jnp.where(where, jnp.asarray(batch["targets"]), 0)
        if isinstance(teacher, TopK):
            arrays, compare = _stored(batch, teacher, where)
        else:
            arrays, compare = _beside(model.frozen, batch, options, where)

        def scored(x: Array, targets: Array, where: Array, *arrays: Array) -> tuple[Array, ...]:
            logits = student.head(jnp.where(where[..., None], x, 0)).astype(jnp.float32)
            kl = compare(logits, *arrays, kind=kind, beta=beta, temperature=temperature)
            values = (jnp.where(where, kl, 0.0),)
            if not nll:
                return values
            return (*values, -of_logits(logits, targets, where, entropy=False).logprob)

        values = map_positions(scored, (x, targets, where, *arrays), chunk=chunk)
        factors = {"kl": temperature**2, "nll": 1.0}
        terms: dict[str, Term] = {
            name: (factors[name] * (weight * value).sum(), weight.sum())
            for name, value in zip(factors, values, strict=False)  # "nll" where it was asked for
        }
        if balance:
            router = extras[-1]["router"]
            terms["balance"] = router.total.sum(), router.sequences.sum()
        return terms

    return loss


def _student(model: Any, teacher: Teacher) -> Any:
    if isinstance(teacher, TopK):
        return model
    if not isinstance(model, Twin):
        raise TypeError(
            f"teacher=Frozen() needs a Twin as the model, got {type(model).__name__}; train "
            "Twin(student, teacher) with trainable=TRAINED, or pass teacher=TopK()"
        )
    return model.trained


def _beside(teacher: Any, batch: Batch, options: dict[str, Any], where: Array) -> _Guide:
    """Returns the features of a frozen teacher, and how to compare a student with its head's."""
    x = jax.lax.stop_gradient(teacher.features(jnp.asarray(batch["tokens"]), **options)[0])

    def compare(logits: Array, x: Array, *, temperature: float, **form: Any) -> Array:
        guide = jax.lax.stop_gradient(teacher.head(x).astype(jnp.float32))
        return divergence(logits / temperature, guide / temperature, **form)

    return (jnp.where(where[..., None], x, 0),), compare


def _stored(batch: Batch, teacher: TopK, where: Array) -> _Guide:
    """Returns the teacher's fields, and how to compare a student with them."""
    ids, logps = _fields(batch, teacher.field)
    # Slots that do not count may hold anything; these are probabilities of mass 1/e.
    neutral = -1.0 - math.log(ids.shape[-1])
    ids = jnp.where(where[..., None], ids, jnp.arange(ids.shape[-1])[None, None])
    logps = jnp.where(where[..., None], logps, neutral)
    compare = functools.partial(divergence_topk, rest=teacher.rest)
    return (ids, jax.lax.stop_gradient(logps)), compare


def _fields(batch: Batch, prefix: str) -> tuple[Array, Array]:
    names = f"{prefix}_ids", f"{prefix}_logps"
    missing = sorted(set(names) - set(batch))
    if missing:
        raise ValueError(
            f"teacher=TopK({prefix!r}) needs the fields {' and '.join(names)}, got "
            f"{sorted(batch)}; make them with with_teacher, or pass teacher=Frozen()"
        )
    ids, logps = jnp.asarray(batch[names[0]]), jnp.asarray(batch[names[1]], jnp.float32)
    rows, length = batch["tokens"].shape
    if ids.ndim != 3 or ids.shape != logps.shape or ids.shape[:2] != (rows, length):
        raise ValueError(
            f"the teacher's fields must be i32[{rows}, {length}, k] and f32[{rows}, {length}, k], "
            f"got {names[0]}={ids.dtype}{list(ids.shape)}, "
            f"{names[1]}={logps.dtype}{list(logps.shape)}; make them with with_teacher"
        )
    return ids, logps
