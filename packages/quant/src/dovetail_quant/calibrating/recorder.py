# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A product that records its inputs, installed in a module's attribute."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Shaped

from dovetail_quant.methods import record
from dovetail_quant.sites.kernel import split_equation
from dovetail_quant.sites.sites import Site

# The rows of a batch that count, while a model runs on it.
_MASK: contextvars.ContextVar[Array | None] = contextvars.ContextVar("mask", default=None)


class Recorded(nnx.Variable):
    """The statistics of a site during calibration."""


@contextlib.contextmanager
def counting(mask: Shaped[Array, "..."] | None) -> Iterator[None]:
    """Within the block, only rows with a nonzero `mask` count, for inputs with its leading axes.

    Inputs with other leading axes, such as those of experts, count whole.
    """
    token = _MASK.set(mask)
    try:
        yield
    finally:
        _MASK.reset(token)


def counted(shape: tuple[int, ...]) -> Array | None:
    """Returns the mask of `counting` in `shape`; None outside, or for other leading axes."""
    mask = _MASK.get()
    if mask is None or shape[: mask.ndim] != mask.shape:
        return None
    return jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * (len(shape) - mask.ndim)), shape)


class Enough(BaseException):
    """Raised after the last call to record: the rest of the model need not run."""


class Countdown:
    """Stops a model partway: the given number of calls within `stopping` ends the block."""

    left = 0

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Enough

    @contextlib.contextmanager
    def stopping(self, *, after: int) -> Iterator[None]:
        """Returns a block that ends at call number `after`, or by itself."""
        self.left = after
        with contextlib.suppress(Enough):
            yield


class Recorder(nnx.Module):
    """Calls `product` and adds x to the statistics in `stats`.

    Args:
        product: The module's product.
        site: Its site.
        recorded: Called after each call outside jit, where a model may be stopped partway.
    """

    def __init__(self, product: Callable[..., Any], site: Site, recorded: Callable[[], None]):
        count, inputs, _ = site.axes.sizes
        self.product, self.site, self.recorded = product, site, recorded
        experts = count if site.axes.batch else None
        self.stats = Recorded(record.empty(inputs, experts=experts))

    def __call__(self, *args: Any, **options: Any) -> Any:
        stats = self.stats.get_value()
        if self.site.kind == "experts":
            x, _, sizes = args
            update = record.update_sorted if isinstance(x, Tracer) else _update_sorted
            self.stats.set_value(update(stats, x, sizes=sizes))
        else:
            x = _rows(self.site, args)
            update = record.update if isinstance(x, Tracer) else _update
            self.stats.set_value(update(stats, x, mask=counted(x.shape[:-1])))
        if not isinstance(x, Tracer):
            self.recorded()
        return self.product(*args, **options)


# Models run op by op while they are recorded; what loops inside is compiled, once for its shapes.
# There nothing is donated: a layer that is recomputed is a copy, and this module keeps its sums.
_update = jax.jit(record.update, donate_argnums=0)
_update_sorted = jax.jit(record.update_sorted, donate_argnums=0)


def _rows(site: Site, args: tuple[Any, ...]) -> jax.Array:
    """Returns x [..., K], its contracted axes last, in the order of the folded kernel."""
    if site.kind == "einsum":
        equation, x, _ = args
        left, right, _ = split_equation(equation)
        order = [left.index(right[axis]) for axis in site.axes.inputs]
    else:
        x, _, ((ours, theirs), _) = args
        order = [ours[list(theirs).index(axis)] for axis in site.axes.inputs]
    rest = [axis for axis in range(x.ndim) if axis not in order]
    return x.transpose([*rest, *order]).reshape(*(x.shape[axis] for axis in rest), -1)
