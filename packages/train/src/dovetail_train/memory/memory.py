# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a step on one device, read off its trace.

The shardings of the arguments give the bytes of state and batch exactly, the residuals of the
loss's derivative the memory of the backward pass.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal as Constant

from dovetail_train.mesh.mesh import BATCH_AXES, ambient
from dovetail_train.step.program import Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of a step on one device.

    Attributes:
        state_bytes: Exact, by kind (params, frozen, rest, opt, skips, ema, guard).
        batch_bytes: Bytes of the step's batch.
        gradient_bytes: Bytes of one tree of gradients, and of their float32 sum with microbatches.
        residual_bytes: Estimated memory of one microbatch for the backward pass.
    """

    state_bytes: dict[str, int]
    batch_bytes: int
    gradient_bytes: int
    residual_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of all bytes."""
        state = sum(self.state_bytes.values())
        return state + self.batch_bytes + self.gradient_bytes + self.residual_bytes


def step_memory(program: Program) -> StepMemory:
    """Returns the bytes of a step on one device."""
    state, rows = program.args
    once = _device_bytes(jax.tree.map(_as_float32, state.params))
    summed = once if program.accumulate > 1 else 0
    return StepMemory(
        state_bytes={
            field.name: _device_bytes(getattr(state, field.name))
            for field in dataclasses.fields(state)
            if field.name != "step"
        },
        batch_bytes=_device_bytes(rows),
        gradient_bytes=_device_bytes(state.params) + summed,
        residual_bytes=_residual_bytes(program),
    )


def _as_float32(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding)


def _device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree's arrays on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def _residual_bytes(program: Program) -> int:
    """Returns the bytes of the loss's residuals, for one microbatch on one device."""
    state, rows = program.args
    loss, size = program.step.objective.loss, program.mesh.shape
    microbatch = {
        name: jax.ShapeDtypeStruct(
            (x.shape[0] // program.accumulate, *x.shape[1:]), x.dtype, sharding=x.sharding
        )
        for name, x in rows.items()
    }

    def residuals(state: Any, microbatch: Any) -> Any:
        return jax.vjp(lambda params: loss(params, state, microbatch), state.params)[1]

    with ambient(program.mesh):
        jaxpr = jax.make_jaxpr(residuals)(state, microbatch).jaxpr
    variables = {x for x in jaxpr.outvars if not isinstance(x, Constant)}
    kept = [x.aval for x in variables - {*jaxpr.invars, *jaxpr.constvars}]
    total = sum(math.prod(x.shape) * x.dtype.itemsize for x in kept)
    return total // math.prod(size.get(axis, 1) for axis in (*BATCH_AXES, "context"))
