# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a trainer that its step depends on, and the dtype inside its loss."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from dovetail_train import _elsewhere
from dovetail_train._patterns import Patterns, each_of, matches, name_of, names_of, select
from dovetail_train.mesh.mesh import BatchPlacement
from dovetail_train.step.guard import StepGuard, check_guard
from dovetail_train.step.state import OptShardings, Transformation
from dovetail_train.step.terms import Loss, check_accumulation, check_loss, group_rows

# Changes a module in place, after an accepted update.
AfterUpdate = Callable[[Any], None]


@_elsewhere.call
@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtype of the parameters inside the loss.

    Parameters, gradients and optimizer state keep their dtype (float32 in nearly every run): the
    cast is differentiated, so its transpose returns gradients in it. Batches are not cast, since a
    bfloat16 mask could not count above 256. Variables with the metadata `keep_dtype=True`
    (`nnx.Param(x, keep_dtype=True)`) are not cast either: the model says that rounding them would
    change decisions, as that of a router.

    Args:
        compute: "float32" (no cast) or "bfloat16". float16 would need loss scaling.
        keep: Name patterns of parameters without a cast, such as "**.norm.scale": `*` within a
            segment, `**` for any number of segments.
    """

    compute: Literal["float32", "bfloat16"]
    keep: Patterns = ()

    def __post_init__(self) -> None:
        if self.compute not in ("float32", "bfloat16"):
            raise ValueError(
                f'compute must be "float32" or "bfloat16", got compute={self.compute!r}; '
                f'float16 needs loss scaling, so write Precision(compute="bfloat16")'
            )
        if self.keep != ():
            each_of(self.keep)  # raises for what is no pattern

    def check(self, *trees: Any) -> None:
        """Raises ValueError if a pattern of `keep` matches no parameter of the trees."""
        if self.keep != ():
            select(self.keep, [name for tree in trees for name in names_of(tree)])

    def cast(self, params: Any, *, kept: Collection[str] = ()) -> Any:
        """Casts float parameters to the compute dtype, except those of `keep` and `kept`."""
        if self.compute == "float32":
            return params
        dtype = jnp.dtype(self.compute)

        def leaf(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
            name = name_of(path)
            own = name in kept or (self.keep != () and matches(self.keep, name))
            return x if own or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)

        return jax.tree_util.tree_map_with_path(leaf, params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a `Trainer`. Raises TypeError or ValueError for one that cannot be right.

    Attributes:
        tx: Optimizer, or a function of the placed parameters.
        loss: Loss.
        weights: Factors of its terms.
        trainable: Patterns or a flax.nnx filter.
        accumulate: Microbatches per step.
        opt_shardings: Placement of the optimizer state.
        precision: Compute dtype inside the loss.
        ema: Decay of the moving average, or None.
        guard: Guard, or None.
        after_update: Changes the module after an update, or None.
        max_skips: Rejected steps in a row before a run ends.
        seed: Seed of the key passed to the loss.
        placement: Mesh, and placement of a batch.
    """

    tx: Transformation
    loss: Loss
    weights: Mapping[str, float]
    trainable: Any
    accumulate: int
    opt_shardings: OptShardings
    precision: Precision
    ema: float | None
    guard: StepGuard | None
    after_update: AfterUpdate | None
    max_skips: int
    seed: int
    placement: BatchPlacement

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if self.accumulate < 1:
            raise ValueError(
                f"accumulate must be at least 1, got accumulate={self.accumulate}; write "
                f"accumulate=1"
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(
                f"ema must lie between 0 and 1, got ema={self.ema}; write for example ema=0.999, "
                f"or ema=None for no average"
            )
        if self.max_skips < 0:
            raise ValueError(
                f"max_skips must be at least 0, got max_skips={self.max_skips}; write "
                f"max_skips=10, or max_skips=0 to end at the first refused step"
            )
        check_accumulation(self.loss, accumulate=self.accumulate)
        group_rows(self.loss)
        check_guard(self.guard)

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; may be abstract."""
        return self.placement.rows.mesh

    @property
    def group(self) -> int:
        """Rows of the loss that are never split."""
        return group_rows(self.loss)
