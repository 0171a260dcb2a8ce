# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates of a step on absent devices: bytes by kind, FLOPs, a lower bound on its time.

Everything is read off the traced step. The shardings of its arguments give the bytes of the state
exactly, its gradient the FLOPs, and the residuals of its derivative the memory of the backward
pass. Only the compiler's choices are missing (fusion, temporaries, collectives). To include them,
compile the same `Program`.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import Literal as Constant

from dovetail_train.clock import memory as memory_of
from dovetail_train.clock import peak_flops as peak_of
from dovetail_train.mesh import BATCH_AXES, ambient

if TYPE_CHECKING:
    from flax import nnx

    from dovetail_train.program import Program
    from dovetail_train.step import Batch
    from dovetail_train.trainer import Trainer

_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Needs of one step. Bytes and times are per device.

    Attributes:
        device: Kind of device.
        devices: Number of devices.
        mesh: Mesh axes above 1.
        state_bytes: Exact, by kind (params, frozen, rest, opt, skips, ema, guard).
        batch_bytes: Bytes of the step's batch.
        gradient_bytes: Bytes of one tree of gradients, and of their float32 sum with microbatches.
        residual_bytes: Estimated memory of one microbatch for the backward pass, split like rows
            and tokens. Fusion needs less, a tensor axis splits it further, and one recomputed block
            comes on top.
        memory_bytes: Memory of the device, or None if unknown.
        model_flops: FLOPs of the step on all devices, as given to the trainer or counted.
        recomputed_flops: FLOPs computed again.
        opaque: Calls whose FLOPs could not be counted, by name.
        seconds: Lower bound on the step time: products at peak rate, or reading and writing the
            state once. Communication is not included.
        bound: The longer of the two.
    """

    device: str
    devices: int
    mesh: dict[str, int]
    state_bytes: dict[str, int]
    batch_bytes: int
    gradient_bytes: int
    residual_bytes: int
    memory_bytes: int | None
    model_flops: int
    recomputed_flops: int
    opaque: dict[str, int]
    seconds: float | None
    bound: Literal["products", "memory"] | None

    @property
    def total_bytes(self) -> int:
        """Sum of all bytes of one device."""
        state = sum(self.state_bytes.values())
        return state + self.batch_bytes + self.gradient_bytes + self.residual_bytes

    @property
    def fits(self) -> bool | None:
        """Whether `total_bytes` is below the device's memory; None if unknown."""
        return None if self.memory_bytes is None else self.total_bytes < self.memory_bytes

    def json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return dataclasses.asdict(self) | {"total_bytes": self.total_bytes, "fits": self.fits}

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.items()) or "one device"
        lines = [f"{self.devices} x {self.device}, {axes}", "", "bytes of one device"]
        kinds = {f"state.{name}": n for name, n in self.state_bytes.items()}
        kinds |= {
            "batch": self.batch_bytes,
            "gradients": self.gradient_bytes,
            "kept for backward": self.residual_bytes,
            "total": self.total_bytes,
        }
        power, unit = next(u for u in _UNITS if self.total_bytes >= 10 * 2 ** u[0] or not u[0])
        lines += [f"  {name:<20}{n / 2**power:>14,.1f} {unit}" for name, n in kinds.items() if n]
        if self.memory_bytes is not None:
            fits = "fits" if self.fits else "does not fit"
            has = f"{self.memory_bytes / 2**power:>14,.1f} {unit}"
            lines.append(f"  {'of the device':<20}{has}  {fits}")
        else:
            lines.append(f"  {'of the device':<20}{'unknown':>14}, and so is the step's time")
        lines += ["", f"{'GFLOP of a step':<22}{self.model_flops / 1e9:>14,.6g}"]
        lines.append(f"{'recomputed GFLOP':<22}{self.recomputed_flops / 1e9:>14,.6g}")
        if self.opaque:
            hidden = ", ".join(f"{name} x {n}" for name, n in self.opaque.items())
            lines.append(f"could not be counted: {hidden}")
        if self.seconds is not None:
            lines.append(f"{'at least':<22}{self.seconds * 1e3:>14,.4g} ms, by {self.bound}")
        return "\n".join(lines)


def estimate(
    trainer: "Trainer", model: "nnx.Module", batch: "Batch", *, device: str = "NVIDIA H200"
) -> Estimate:
    """Estimates a step of `trainer` on its mesh, which may be abstract. Allocates nothing.

    Takes about a second. Raises the errors of tracing the step, or of lowering it for the platform
    of the device.

    Args:
        trainer: The trainer.
        model: A module of arrays or `jax.ShapeDtypeStruct`.
        batch: A batch of arrays or `jax.ShapeDtypeStruct`.
        device: Kind of the devices as JAX names it (`device_kind`), such as "NVIDIA H200". For
            other names memory and time are None, and the printed estimate says so.
    """
    program = trainer.program(model, batch)
    program.lower("tpu" if device.startswith("TPU") else "cuda" if "NVIDIA" in device else "cpu")
    state, rows = program.args
    kinds = {
        field.name: _device_bytes(getattr(state, field.name))
        for field in dataclasses.fields(state)
        if field.name != "step"
    }
    flops, given_flops = program.flops(), program.model_flops
    model_flops = flops.model if given_flops is None else int(given_flops)
    once = _device_bytes(jax.tree.map(_as_float32, state.params))
    summed = once if program.accumulate > 1 else 0
    peak = peak_of(device, trainer.precision.compute)
    size, rate = memory_of(device) or (None, None)
    seconds, bound = _least_seconds(
        products=(model_flops + flops.recomputed) / program.mesh.size,
        moved=2 * sum(kinds.values()),
        peak=peak if given_flops is not None or not flops.opaque else None,
        rate=rate,
    )
    return Estimate(
        device=device,
        devices=program.mesh.size,
        mesh={name: n for name, n in program.mesh.shape.items() if n > 1},
        state_bytes=kinds,
        batch_bytes=_device_bytes(rows),
        gradient_bytes=_device_bytes(state.params) + summed,
        residual_bytes=_residual_bytes(program),
        memory_bytes=size,
        model_flops=model_flops,
        recomputed_flops=flops.recomputed,
        opaque=dict(flops.opaque),
        seconds=seconds,
        bound=bound,
    )


def _least_seconds(
    *, products: float, moved: int, peak: float | None, rate: float | None
) -> tuple[float | None, Literal["products", "memory"] | None]:
    if peak is None or rate is None:
        return None, None
    by_products, by_memory = products / peak, moved / rate
    return max(by_products, by_memory), "products" if by_products >= by_memory else "memory"


def _as_float32(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding)


def _device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree's arrays on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def _residual_bytes(program: "Program") -> int:
    """Returns the bytes of the loss's residuals, for one microbatch on one device."""
    state, rows = program.args
    size = program.mesh.shape
    microbatch = {
        name: jax.ShapeDtypeStruct(
            (x.shape[0] // program.accumulate, *x.shape[1:]), x.dtype, sharding=x.sharding
        )
        for name, x in rows.items()
    }

    def residuals(state: Any, microbatch: Any) -> Any:
        return jax.vjp(lambda params: program.objective(params, state, microbatch), state.params)[1]

    with ambient(program.mesh):
        jaxpr = jax.make_jaxpr(residuals)(state, microbatch).jaxpr
    variables = {x for x in jaxpr.outvars if not isinstance(x, Constant)}
    kept = [x.aval for x in variables - {*jaxpr.invars, *jaxpr.constvars}]
    total = sum(math.prod(x.shape) * x.dtype.itemsize for x in kept)
    return total // math.prod(size.get(axis, 1) for axis in (*BATCH_AXES, "context"))
