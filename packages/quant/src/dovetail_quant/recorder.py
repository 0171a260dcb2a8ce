# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A product that remembers what it was given: it stands where a module holds its own."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Shaped

from dovetail_quant import record
from dovetail_quant.kernel import split_equation
from dovetail_quant.sites import Site

# The rows of a batch that count, while a model runs on it.
_MASK: contextvars.ContextVar[Array | None] = contextvars.ContextVar("mask", default=None)


class Recorded(nnx.Variable):
    """The statistics of a site while it is calibrated."""


@contextlib.contextmanager
def counting(mask: Shaped[Array, "..."] | None) -> Iterator[None]:
    """Within, rows of inputs whose leading axes are those of `mask` count where it is not 0.

    Inputs of other leading axes, as those of experts, count whole.
    """
    token = _MASK.set(mask)
    try:
        yield
    finally:
        _MASK.reset(token)


def counted(shape: tuple[int, ...]) -> Array | None:
    """The mask of `counting`, spread over `shape`; None outside, or for other leading axes."""
    mask = _MASK.get()
    if mask is None or shape[: mask.ndim] != mask.shape:
        return None
    return jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * (len(shape) - mask.ndim)), shape)


class Recorder(nnx.Module):
    """`product`, called as the module calls it, with the statistics of x in `stats`."""

    def __init__(self, product: Callable[..., Any], site: Site):
        count, inputs, _ = site.axes.sizes
        self.product, self.site = product, site
        experts = count if site.axes.batch else None
        self.stats = Recorded(record.empty(inputs, experts=experts))

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.site.kind == "experts":
            x, _, sizes = args
            self.stats.set_value(record.update_sorted(self.stats.get_value(), x, sizes=sizes))
            return self.product(*args, **options)
        rows = _rows(self.site, args)
        mask = counted(rows.shape[:-1])
        self.stats.set_value(record.update(self.stats.get_value(), rows, mask=mask))
        return self.product(*args, **options)


def _rows(site: Site, args: tuple[Any, ...]) -> jax.Array:
    """x [..., K], its contracted axes last, in the order in which the kernel is folded."""
    if site.kind == "einsum":
        equation, x, _ = args
        left, right, _ = split_equation(equation)
        order = [left.index(right[axis]) for axis in site.axes.inputs]
    else:
        x, _, ((ours, theirs), _) = args
        order = [ours[list(theirs).index(axis)] for axis in site.axes.inputs]
    rest = [axis for axis in range(x.ndim) if axis not in order]
    return x.transpose([*rest, *order]).reshape(*(x.shape[axis] for axis in rest), -1)
