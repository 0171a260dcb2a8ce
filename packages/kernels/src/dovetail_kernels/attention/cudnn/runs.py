# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of equal segment ids in packed rows, found on the device, with static bounds.

A packed row is a sequence of documents: neighbours with equal ids are one run. A kernel that takes
the starts of runs gives the answer of `attention` only if nothing else can be visible: each id is
in one run of its row, and positions order the tokens of a run as the row does. Ids are arbitrary
and known to the device alone, so `Runs.kind` is a value there. Padding is a run like others, except
that packers give all of its tokens one position, so that with `causal` each sees each: a run of
equal positions is `flat`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from dovetail_kernels.attention.call import Inputs

RISING, SOME_FLAT, OTHER = 0, 1, 2


class Runs(NamedTuple):
    """The runs of slices of rows, in their order. A slice of r rows of T tokens has r T tokens.

    Inside of a loop over slices, the arrays have no axis of slices.

    Attributes:
        starts: Index in the slice of each run's first token, [slices, r * (most + 1)]; r T beyond
            the last run.
        flat: Runs of equal positions with `causal`, of two tokens and more [slices, r * most].
        flat_tokens: Their tokens [slices, r T].
        kind: RISING if runs alone decide what is visible, SOME_FLAT if so and some are flat, OTHER
            if ids are in several runs, runs are more than r * most in a slice, queries and keys
            have other ids or positions, or positions neither rise in a run nor are equal.
    """

    starts: Int[Array, "*slices starts"]
    flat: Bool[Array, "*slices runs"]
    flat_tokens: Bool[Array, "*slices tokens"]
    kind: Int[Array, ""]

    @property
    def lengths(self) -> Int[Array, "*slices runs"]:
        """Number of tokens of each run. 0 beyond the last."""
        return jnp.diff(self.starts)[..., : self.flat.shape[-1]]


def find_runs(inputs: Inputs, *, causal: bool, rows: int, most: int) -> Runs:
    """Finds the runs of `inputs.segment_ids`.

    Args:
        inputs: Arrays of a call with segment ids and as many keys as queries.
        causal: Whether positions decide what is visible.
        rows: Rows per slice; divides the batch.
        most: Largest number of runs per row, on average over a slice.
    """
    assert inputs.segment_ids is not None
    ids, key_ids = inputs.segment_ids
    length = ids.shape[1]
    begins = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], 1)
    slices, tokens = ids.shape[0] // rows, rows * length
    number = jnp.cumsum(begins.reshape(slices, tokens), 1, dtype=jnp.int32) - 1
    starts = _starts(begins.reshape(slices, tokens), number, size=rows * (most + 1))
    starts_of_runs = starts[:, : rows * most]
    right = (ids == key_ids).all() & (number[:, -1] < rows * most).all()
    right &= _apart(ids.reshape(slices, tokens), starts_of_runs, length)
    if causal and inputs.positions is not None:
        flat, ordered = _order(inputs.positions, begins, starts_of_runs, number)
        right &= ordered & (inputs.positions[0] == inputs.positions[1]).all()
        flat_tokens = _taken(flat, number)
    else:
        flat = jnp.zeros_like(starts_of_runs, bool)
        flat_tokens = jnp.zeros_like(number, bool)
    kind = jnp.where(right, jnp.where(flat.any(), SOME_FLAT, RISING), OTHER)
    return Runs(starts=starts, flat=flat, flat_tokens=flat_tokens, kind=kind)


def _starts(begins: Array, number: Array, *, size: int) -> Array:
    slices, tokens = begins.shape
    places = jnp.where(begins, number, size)  # beyond the end is dropped
    row = jnp.arange(slices)[:, None]
    full = jnp.full((slices, size), tokens, jnp.int32)
    return full.at[row, places].set(jnp.arange(tokens, dtype=jnp.int32), mode="drop")


def _apart(ids: Array, starts: Array, length: int) -> Array:
    """Tests whether no two runs of a row have one id."""
    tokens, runs = ids.shape[1], starts.shape[1]
    run_ids, run_rows = _taken(ids, starts), starts // length
    same = (run_ids[:, :, None] == run_ids[:, None]) & (run_rows[:, :, None] == run_rows[:, None])
    order = jnp.arange(runs)
    earlier = (order[:, None] < order[None])[None]
    same &= earlier & (starts < tokens)[:, None]
    return ~same.any()


def _order(positions: Any, begins: Array, starts: Array, number: Array) -> tuple[Array, Array]:
    """Returns flat runs, and whether positions rise in all others and are equal in these."""
    slices, tokens = number.shape
    steps = jnp.diff(positions[0], axis=1, prepend=positions[0][:, :1]).reshape(slices, tokens)
    begins = begins.reshape(slices, tokens)
    level = (steps == 0) & ~begins
    flat = (starts + 1 < tokens) & _taken(level, starts + 1)
    ordered = begins | jnp.where(_taken(flat, number), level, steps > 0)
    return flat, ordered.all()


def _taken(x: Array, indices: Array) -> Array:
    """Returns x[i, indices[i]] for each slice i. An index beyond the end takes the last."""
    return jnp.take_along_axis(x, jnp.minimum(indices, x.shape[1] - 1), 1)
