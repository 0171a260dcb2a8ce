# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The step of a trainer for any compiler, by shapes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from dovetail_train._device_kinds import Platform
from dovetail_train.mesh.mesh import ambient
from dovetail_train.step.flops import Flops, count_flops
from dovetail_train.step.metrics import Metrics
from dovetail_train.step.options import Options
from dovetail_train.step.state import State, abstract
from dovetail_train.step.terms import Batch
from dovetail_train.step.update import TrainStep

# Of JAX's refusal to lower such an operation on an abstract mesh; it has no error class of its own.
_NEEDS_DEVICES = "require devices to be present"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The step fn(state, batch) -> (state, metrics). Nothing is allocated or run.

    Attributes:
        step: The step.
        args: (state, batch) of ShapeDtypeStructs with shardings on `mesh`.
        model_flops: FLOPs given to the trainer, or None.
    """

    step: TrainStep
    args: tuple[Any, Any]
    model_flops: float | None = None

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; may be abstract."""
        return self.step.options.mesh

    @property
    def accumulate(self) -> int:
        """Number of microbatches of the step."""
        return self.step.options.accumulate

    @property
    def donate(self) -> tuple[int, ...]:
        """Indices of donated arguments."""
        return (0,)

    @property
    def out_shardings(self) -> Any:
        """Shardings of the results."""
        return self.step.out_shardings

    @property
    def fn(self) -> Callable[[State, Batch], tuple[State, Metrics]]:
        """The step as a pure function."""
        return self.step.train_step

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
            return count_flops(self.step.objective.gradient, state, batch)

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


def step_program(
    options: Options, model: nnx.Module, batch: Batch, *, model_flops: float | None
) -> Program:
    """Returns the step for a model and a batch by shapes.

    Args:
        options: Options of the trainer.
        model: The model; may consist of ShapeDtypeStructs.
        batch: The batch; likewise.
        model_flops: FLOPs given to the trainer, or None.
    """
    step, arrays = TrainStep.of(model, options)
    rows = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=options.placement.of(x.ndim))
        for name, x in batch.items()
    }
    return Program(
        step=step,
        args=(abstract(step.definition, arrays), rows),
        model_flops=model_flops,
    )
