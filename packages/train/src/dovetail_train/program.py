# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A train step for any compiler, on present or absent devices."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh

from dovetail_train.flops import Flops, count_flops
from dovetail_train.mesh import ambient

Platform = Literal["cpu", "cuda", "rocm", "tpu"]


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

    def compile(self) -> Any:
        """Compiles the step for the devices of `mesh` (`jax.stages.Compiled`)."""
        if isinstance(self.mesh, AbstractMesh):
            raise RuntimeError(
                f"a program is compiled for devices, got one on {self.mesh}; make it on "
                f"make_mesh(...), or use lower"
            )
        return self.lower().compile()
