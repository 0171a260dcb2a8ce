# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a site's inputs for calibration: their products, extremes and count.

The output error of a weight that is off by dW is tr(dW^T H dW) with H = sum of x x^T, for any rows
x. A [K, K] matrix therefore represents any number of rows, and no activation is kept. GPTQ and the
reports read it; AWQ also reads the mean, SmoothQuant the maximum of each input.

Sums are float32. A batch of n rows is one product, accumulated inside the product; only its result
is added to the running sum. An addition rounds by at most 2^-25 of the sum, to either side, so B
batches lose about sqrt(B) 2^-25: 1e6 rows in batches of 1000 keep six digits, one row at a time
four to five. Gather single rows first, or sum subsets and merge them.

NaN, infinity and squares beyond float32 stay visible: they make a diagonal element of the sum
non-finite, permanently. `check` reports them outside jit, with the site.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped


class Statistics(NamedTuple):
    """Sums over the rows x[K] of a site; experts have a leading axis.

    Attributes:
        gram: Sum of x x^T.
        absmax: Largest |x| of each input.
        absmean: Mean |x| of each input.
        count: Rows, exact up to 2^24 in steps of one, then rounded like any float32.
    """

    gram: Float[Array, "*experts K K"]
    absmax: Float[Array, "*experts K"]
    absmean: Float[Array, "*experts K"]
    # The name it has in Optax's states, too.
    count: Float[Array, "*experts"]  # pyright: ignore[reportIncompatibleMethodOverride]


def empty(width: int, *, experts: int | None = None) -> Statistics:
    """Returns the statistics of no rows of `width` inputs, for one product or for `experts` of
    them.
    """
    lead = () if experts is None else (experts,)
    return Statistics(
        gram=jnp.zeros((*lead, width, width), jnp.float32),
        absmax=jnp.zeros((*lead, width), jnp.float32),
        absmean=jnp.zeros((*lead, width), jnp.float32),
        count=jnp.zeros(lead, jnp.float32),
    )


def update(
    stats: Statistics,
    x: Float[Array, "*batch K"],
    *,
    mask: Shaped[Array, "*batch"] | None = None,
) -> Statistics:
    """Adds mask x x^T over the rows of x, of any float dtype, summed in float32.

    See `update_sorted` and `update_assigned` for experts; inputs [E, rows, K] are recorded by
    `jax.vmap(update)`.

    Args:
        stats: Statistics so far.
        x: Rows.
        mask: 1 for a row that counts, 0 for padding. Values of padding are never read, not even
            NaN. A row of another weight counts as this many rows.

    Raises:
        ValueError: x has another number of inputs than the statistics.

    Example:

        >>> stats = empty(3)
        >>> for batch in (jnp.array([[1.0, -2.0, 0.0]]), jnp.array([[3.0, 0.0, 0.0]])):
        ...     stats = update(stats, batch)
        >>> float(stats.gram[0, 0]), float(stats.count)
        (10.0, 2.0)
    """
    width = stats.absmax.shape[-1]
    if x.shape[-1] != width:
        raise ValueError(
            f"rows must have as many inputs as the statistics, got x of shape={x.shape} and "
            f"statistics of width={width}; write empty({x.shape[-1]})"
        )
    rows = x.reshape(-1, width).astype(jnp.float32)
    weight = jnp.ones(rows.shape[0], jnp.float32)
    if mask is not None:
        weight = mask.reshape(-1).astype(jnp.float32)
        rows = jnp.where(weight[:, None] > 0, rows, 0)
    weighted = rows * weight[:, None]
    gram = jnp.matmul(weighted.T, rows, precision=jax.lax.Precision.HIGHEST)
    count = weight.sum()
    absmax = jnp.max(jnp.abs(rows), axis=0, initial=0)
    absmean = jnp.abs(weighted).sum(0) / jnp.where(count > 0, count, 1)
    return merge(stats, Statistics(gram=gram, absmax=absmax, absmean=absmean, count=count))


def update_sorted(
    stats: Statistics, x: Float[Array, "M K"], *, sizes: Int[Array, "E"]
) -> Statistics:
    """Adds the rows of each expert, for rows sorted by expert as in `jax.lax.ragged_dot`.

    The work is that of M rows, not of M rows for each expert.

    Args:
        stats: Statistics so far.
        x: Rows, sorted by expert.
        sizes: Rows of each expert, in order; rows after their sum are padding.

    Raises:
        ValueError: The statistics have another number of experts or inputs.
    """
    experts = _experts(stats, sizes.shape[0], name="sizes")
    size = max(1, min(x.shape[0], 256, max(8, x.shape[0] // experts)))
    sizes = sizes.astype(jnp.int32)
    ends = jnp.cumsum(sizes)
    blocks = jnp.cumsum(-(-sizes // size))  # the blocks up to and with expert e

    def add(sums: Statistics, block: Array) -> tuple[Statistics, None]:
        # Blocks that no expert needs, up to E, start behind the last row of the last.
        expert = jnp.minimum(jnp.searchsorted(blocks, block, side="right"), experts - 1)
        first = ends[expert] - sizes[expert]
        before = jnp.where(expert > 0, blocks[expert - 1], 0)
        start = first + (block - before) * size
        at = jnp.minimum(start, x.shape[0] - size)
        place = at + jnp.arange(size, dtype=jnp.int32)
        mine = (place >= start) & (place < ends[expert])
        rows = jax.lax.dynamic_slice_in_dim(x, at, size)
        updated = update(jax.tree.map(lambda a: a[expert], sums), rows, mask=mine)
        return jax.tree.map(lambda a, b: a.at[expert].set(b), sums, updated), None

    if x.shape[0] == 0:
        return stats
    steps = jnp.arange(-(-x.shape[0] // size) + experts, dtype=jnp.int32)
    return jax.lax.scan(add, stats, steps)[0]


def update_assigned(
    stats: Statistics, x: Float[Array, "*batch K"], *, assigned: Shaped[Array, "*batch E"]
) -> Statistics:
    """Adds the rows with assigned[..., e] = 1 to stats[e], one expert after the other.

    Each expert of a row counts it. Every expert reads all rows: `update_sorted` does less work for
    sorted rows.

    Args:
        stats: Statistics so far.
        x: Rows.
        assigned: 1 for the experts of each row.

    Raises:
        ValueError: The statistics have another number of experts or inputs.
    """
    experts = _experts(stats, assigned.shape[-1], name="assigned")
    masks = assigned.reshape(-1, experts).T
    rows = x.reshape(-1, x.shape[-1])
    return jax.lax.map(lambda s: update(s[0], rows, mask=s[1]), (stats, masks))


def merge(a: Statistics, b: Statistics) -> Statistics:
    """Returns the statistics of the rows of both."""
    count = a.count + b.count
    share = b.count / jnp.where(count > 0, count, 1)
    return Statistics(
        gram=a.gram + b.gram,
        absmax=jnp.maximum(a.absmax, b.absmax),
        absmean=a.absmean + (b.absmean - a.absmean) * share[..., None],
        count=count,
    )


def starved(stats: Statistics, minimum: int | float) -> Bool[Array, "*experts"]:
    """Whether each expert has fewer than `minimum` rows.

    With fewer rows than inputs the gram is singular: round to nearest instead.
    """
    return stats.count < minimum


def check(stats: Mapping[str, Statistics]) -> None:
    """Raises ValueError, with the site and its inputs, if a statistic of any site is not finite.

    Reads the diagonals to the host: call it outside jit, after the last batch.
    """
    problems = []
    for site, s in stats.items():
        # Off the diagonal |sum of xy| is at most the larger of both diagonal elements.
        diagonal = np.asarray(jnp.diagonal(s.gram, axis1=-2, axis2=-1))
        inputs = np.unique(np.argwhere(~np.isfinite(diagonal))[:, -1])
        if inputs.size:
            some = ", ".join(str(i) for i in inputs[:4]) + (", ..." if inputs.size > 4 else "")
            problems.append(f"site={site!r} with {inputs.size} of {diagonal.shape[-1]}: {some}")
    if problems:
        raise ValueError(
            "inputs of a site must be finite and below 1e19, got NaN, infinity or larger in "
            f"{'; '.join(problems)}; pass mask= without the rows that hold them, or leave the site "
            "out with a rule (site, None)"
        )


def _experts(stats: Statistics, experts: int, *, name: str) -> int:
    if stats.count.shape != (experts,):
        raise ValueError(
            f"statistics must have one entry for each expert, got {name} for experts={experts} and "
            f"statistics of shape={stats.count.shape}; "
            f"write empty({stats.absmax.shape[-1]}, experts={experts})"
        )
    return experts
