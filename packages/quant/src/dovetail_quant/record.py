# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What calibration remembers of the inputs of a site: their products, extremes and count.

The output error of a weight that is off by dW is tr(dW^T H dW) with H = sum of x x^T, whatever the
rows x were, so a [K, K] matrix stands for any number of them: no activation is kept. GPTQ and the
reports read it; AWQ reads the mean, SmoothQuant the maximum of each input besides.

Sums are float32. A batch of n rows is one product, accumulated inside the product; only its result
is added to the running sum. An addition rounds by at most 2^-25 of the sum, to either side, so B
batches lose about sqrt(B) 2^-25: 1e6 rows in batches of 1000 keep six digits, one row at a time
four to five. Rows that arrive singly are better gathered first, or summed in parts and merged.

NaN, infinity and squares beyond float32 stay visible: they make a diagonal element of the sum
non-finite, for good. `check` finds them outside jit, and names the site.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped


class Statistics(NamedTuple):
    """Sums over the rows x[K] that a site has seen; experts have a leading axis.

    gram: sum of x x^T. absmax and absmean: the largest and the mean |x| of each input. count: rows,
    exact up to 2^24 in steps of one, then rounded as any float32.
    """

    gram: Float[Array, "*experts K K"]
    absmax: Float[Array, "*experts K"]
    absmean: Float[Array, "*experts K"]
    # The name it has in Optax's states, too.
    count: Float[Array, "*experts"]  # pyright: ignore[reportIncompatibleMethodOverride]


def empty(width: int, *, experts: int | None = None) -> Statistics:
    """The statistics of no rows of `width` inputs, for one product or for `experts` of them."""
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
    """stats and sum of mask x x^T over the rows of x, any float dtype, summed in float32.

    mask: 1 where a row counts, 0 for padding, whose values are then never read: not even NaN. A
    row of another weight counts as so many rows. Inputs that experts hold as [E, rows, K] are
    recorded by `jax.vmap(update)`; see `update_sorted` and `update_assigned` for the others.

    Raises:
        ValueError: x has another number of inputs than the statistics.

    Example:

        stats = empty(3)
        for batch in (jnp.array([[1.0, -2.0, 0.0]]), jnp.array([[3.0, 0.0, 0.0]])):
            stats = update(stats, batch)
        assert stats.gram[0, 0] == 10
        assert stats.count == 2
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
    """stats[e] and the rows of expert e, for rows sorted by expert, as `jax.lax.ragged_dot` reads.

    sizes: how many rows each expert has, in order; rows after their sum are padding. The work is
    that of M rows, not of M rows for each expert: blocks of rows that belong to one expert.

    Raises:
        ValueError: the statistics are of other experts or inputs.
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
        one = update(jax.tree.map(lambda a: a[expert], sums), rows, mask=mine)
        return jax.tree.map(lambda a, b: a.at[expert].set(b), sums, one), None

    if x.shape[0] == 0:
        return stats
    steps = jnp.arange(-(-x.shape[0] // size) + experts, dtype=jnp.int32)
    return jax.lax.scan(add, stats, steps)[0]


def update_assigned(
    stats: Statistics, x: Float[Array, "*batch K"], *, assigned: Shaped[Array, "*batch E"]
) -> Statistics:
    """stats[e] and the rows with assigned[..., e] = 1, one expert after the other.

    A row may go to several experts, each of which counts it. Every expert reads all rows:
    `update_sorted` does less where the rows are sorted.

    Raises:
        ValueError: the statistics are of other experts or inputs.
    """
    experts = _experts(stats, assigned.shape[-1], name="assigned")
    masks = assigned.reshape(-1, experts).T
    rows = x.reshape(-1, x.shape[-1])
    return jax.lax.map(lambda s: update(s[0], rows, mask=s[1]), (stats, masks))


def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of the rows of both, as if one had seen them all."""
    count = a.count + b.count
    share = b.count / jnp.where(count > 0, count, 1)
    return Statistics(
        gram=a.gram + b.gram,
        absmax=jnp.maximum(a.absmax, b.absmax),
        absmean=a.absmean + (b.absmean - a.absmean) * share[..., None],
        count=count,
    )


def starved(stats: Statistics, minimum: int | float) -> Bool[Array, "*experts"]:
    """Whether fewer than `minimum` rows were seen, for each expert.

    With fewer rows than inputs the gram is singular: round to nearest instead.
    """
    return stats.count < minimum


def check(stats: Mapping[str, Statistics]) -> None:
    """Raises ValueError, with the site and its inputs, if a statistic of any site is not finite.

    Reads the diagonals to the host: call it outside jit, after the last batch.
    """
    found = []
    for site, s in stats.items():
        # Off the diagonal |sum of xy| is at most the larger of both diagonal elements.
        diagonal = np.asarray(jnp.diagonal(s.gram, axis1=-2, axis2=-1))
        inputs = np.unique(np.argwhere(~np.isfinite(diagonal))[:, -1])
        if inputs.size:
            some = ", ".join(str(i) for i in inputs[:4]) + (", ..." if inputs.size > 4 else "")
            found.append(f"site={site!r} with {inputs.size} of {diagonal.shape[-1]}: {some}")
    if found:
        raise ValueError(
            "inputs of a site must be finite and below 1e19, got NaN, infinity or larger in "
            f"{'; '.join(found)}; pass mask= without the rows that hold them, or leave the site "
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
