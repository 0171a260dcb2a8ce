# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a trainer as pure functions, and its step for any compiler."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail_train._checks import check_model
from dovetail_train._device_kinds import Platform
from dovetail_train.flops import Flops, count_flops
from dovetail_train.guard import StepGuard
from dovetail_train.mesh import BatchPlacement, ambient, split_rows
from dovetail_train.state import (
    Arrays,
    Definition,
    Extras,
    OptShardings,
    State,
    Transformation,
    abstract,
    split,
)
from dovetail_train.step import (
    Batch,
    Loss,
    Precision,
    make_gradients,
    make_objective,
    make_value,
    mean_loss,
)
from dovetail_train.update import AfterUpdate, make_change, make_step

# Of JAX's refusal to lower such an operation on an abstract mesh; it has no error class of its own.
_NEEDS_DEVICES = "require devices to be present"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The step fn(state, batch) -> (state, metrics). Nothing is allocated or run.

    Attributes:
        fn: The step.
        args: (state, batch) of ShapeDtypeStructs with shardings on `mesh`.
        donate: Indices of donated arguments.
        out_shardings: Shardings of the results.
        mesh: The mesh; may be abstract.
        objective: (params, state, batch) -> the loss f32[] of a whole batch.
        gradients: (state, batch) -> its gradient.
        accumulate: Number of microbatches of the step.
        model_flops: FLOPs given to the trainer, or None.
    """

    fn: Callable[..., Any]
    args: tuple[Any, Any]
    donate: tuple[int, ...]
    out_shardings: Any
    mesh: Mesh | AbstractMesh
    objective: Callable[..., Any]
    gradients: Callable[..., Any]
    accumulate: int
    model_flops: float | None = None

    def __repr__(self) -> str:
        shapes = {name: f"{x.dtype}{list(x.shape)}" for name, x in self.args[1].items()}
        return (
            f"Program(accumulate={self.accumulate}, mesh={dict(self.mesh.shape)}, batch={shapes})"
        )

    def jit(self) -> Any:
        """Returns `jax.jit` of the step with donation and shardings. Call it under
        `ambient(mesh)`.
        """
        return jax.jit(self.fn, donate_argnums=self.donate, out_shardings=self.out_shardings)

    def flops(self) -> Flops:
        """Counts the FLOPs of the gradient over the whole batch. Computes nothing."""
        state, batch = self.args
        with ambient(self.mesh):
            return count_flops(self.gradients, state, batch)

    def lower(self, platform: Platform | None = None) -> Any:
        """Returns the step in StableHLO (`jax.stages.Lowered`), for a platform that may be
        absent.
        """
        platforms = None if platform is None else (platform,)
        with ambient(self.mesh):
            return self.jit().trace(*self.args).lower(lowering_platforms=platforms)

    def check(self, platform: Platform | None) -> None:
        """Raises the errors of tracing the step, and of lowering it for a platform.

        Callbacks and cuDNN's attention, as JAX traces it beside a GPU, lower for present devices
        alone. On an abstract mesh a step with one of them is only traced.
        """
        try:
            self.lower(platform)
        except ValueError as error:
            if not isinstance(self.mesh, AbstractMesh) or _NEEDS_DEVICES not in str(error):
                raise

    def compile(self) -> Any:
        """Compiles the step for the devices of `mesh` (`jax.stages.Compiled`)."""
        if isinstance(self.mesh, AbstractMesh):
            raise RuntimeError(
                f"a program is compiled for devices, got one on {self.mesh}; make it on "
                f"make_mesh(...), or use lower"
            )
        return self.lower().compile()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """Builds the loss, its gradients and the step from the options of a `Trainer`.

    Attributes:
        tx: Optimizer, or a function of the placed parameters.
        loss: Loss.
        weights: Factors of its terms.
        trainable: Patterns or a flax.nnx filter.
        accumulate: Microbatches per step.
        group: Rows of the loss that are never split.
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
    group: int
    opt_shardings: OptShardings
    precision: Precision
    ema: float | None
    guard: StepGuard | None
    after_update: AfterUpdate | None
    max_skips: int
    seed: int
    placement: BatchPlacement

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; may be abstract."""
        return self.placement.rows.mesh

    @jax.transfer_guard("allow")  # the user's guard is for the steps of training
    def split(self, model: nnx.Module) -> tuple[Definition, Arrays]:
        """Splits a model into definition and arrays. Raises the errors of `state.split`."""
        check_model(model)
        definition, arrays = split(
            model,
            self.tx,
            trainable=self.trainable,
            mesh=self.mesh,
            shard_opt=self.opt_shardings,
            extras=Extras(ema=self.ema is not None, guard=self.guard),
        )
        self.precision.check(arrays.params, arrays.frozen)
        return definition, arrays

    def out_shardings(self, definition: Definition) -> tuple[State, NamedSharding]:
        """Returns the shardings of the step's results."""
        return definition.shardings, NamedSharding(self.mesh, PartitionSpec())

    def gradients(self, definition: Definition, *, accumulate: int) -> Callable[..., Any]:
        """Returns (state, batch, key) -> (gradients, terms, rest), see `make_gradients`."""
        return make_gradients(
            make_objective(definition, self.loss, self.precision),
            weights=self.weights,
            accumulate=accumulate,
            split_rows=self._split_rows(accumulate),
        )

    def _split_rows(self, accumulate: int) -> Callable[[Batch], Any]:
        return functools.partial(
            split_rows, accumulate=accumulate, placement=self.placement, group=self.group
        )

    def whole_gradients(self, definition: Definition) -> Callable[..., Any]:
        """Returns (state, batch) -> gradients of the whole batch at once."""
        gradients = self.gradients(definition, accumulate=1)
        return lambda state, batch: gradients(state, batch, jax.random.key(self.seed))

    def objective(self, definition: Definition) -> Callable[..., Any]:
        """Returns (params, state, batch) -> the loss f32[] of a whole batch."""
        objective = make_objective(definition, self.loss, self.precision)

        def whole(params: Any, state: State, batch: Batch) -> jax.Array:
            key = jax.random.key(self.seed)
            terms, _ = objective(params, state.frozen, state.rest, batch, key)
            counts = {name: jax.lax.stop_gradient(term[1]) for name, term in terms.items()}
            return mean_loss(terms, counts, self.weights)

        return whole

    def step(self, definition: Definition) -> Callable[..., Any]:
        """Returns (state, batch) -> (state, metrics), see `make_step`."""
        return make_step(
            self.gradients(definition, accumulate=self.accumulate),
            make_value(
                make_objective(definition, self.loss, self.precision),
                weights=self.weights,
                accumulate=self.accumulate,
                split_rows=self._split_rows(self.accumulate),
            ),
            definition.tx,
            weights=self.weights,
            seed=self.seed,
            guard=self.guard,
            change=make_change(definition, self.after_update),
            max_skips=self.max_skips,
            ema=self.ema,
        )

    def program(self, model: nnx.Module, batch: Batch, *, model_flops: float | None) -> Program:
        """Returns the step for a model and a batch by shapes.

        Args:
            model: The model; may consist of ShapeDtypeStructs.
            batch: The batch; likewise.
            model_flops: FLOPs given to the trainer, or None.
        """
        definition, arrays = self.split(model)
        rows = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.placement.of(x.ndim))
            for name, x in batch.items()
        }
        return Program(
            fn=self.step(definition),
            args=(abstract(definition, arrays), rows),
            donate=(0,),
            out_shardings=self.out_shardings(definition),
            mesh=self.mesh,
            objective=self.objective(definition),
            gradients=self.whole_gradients(definition),
            accumulate=self.accumulate,
            model_flops=model_flops,
        )
