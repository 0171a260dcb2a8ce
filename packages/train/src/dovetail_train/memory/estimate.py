# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Estimates of a step on absent devices: bytes by kind, FLOPs, a lower bound on its time.

Everything is read off the traced step. It is traced for the estimated device, so operations with a
kernel for it choose that kernel. Only the compiler's choices are missing (fusion, temporaries,
collectives). To include them, compile the same `Program`.
"""

import dataclasses
import html
from collections.abc import Mapping
from typing import Any, Literal

import jax
from flax import nnx
from jax.sharding import AbstractMesh

from dovetail_train import _elsewhere
from dovetail_train._device_kinds import DeviceKind
from dovetail_train.loop.trainer import Trainer
from dovetail_train.memory.links import link_bytes
from dovetail_train.memory.remedies import PlannedStep, Remedy, placed_on, remedies
from dovetail_train.mesh.devices import absent_twin, check_rate, kind_of, with_rates
from dovetail_train.mesh.mesh import batch_placement
from dovetail_train.mesh.slices import slice_ids
from dovetail_train.step.checks import check_model
from dovetail_train.step.flops import hidden_work
from dovetail_train.step.program import step_program
from dovetail_train.step.terms import Batch

_DEFAULT = "NVIDIA H200"
_RATES = ("peak_flops", "memory_bytes_per_s")
_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Needs of one step. Bytes and times are per device.

    Attributes:
        device: Kind of device, as JAX names it.
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
            state once. Communication and opaque calls are not included. None if a rate of the
            device is not known.
        bound: The longer of the two.
        compute: Dtype of the products.
        peak_flops: FLOP/s in that dtype, or None if unknown.
        memory_bytes_per_s: Bandwidth of the memory, or None if unknown.
        given: Names of the rates that the caller gave; the others are published.
        slices: Number of slices.
        link_bytes: Bytes that a device sends within its slice, at least: gradients and split
            parameters, without activations.
        dcn_bytes: The same to other slices.
        link_seconds: Their time, or None if `link_bytes_per_s` is not given.
        dcn_seconds: Likewise, by `dcn_bytes_per_s`.
        remedies: If the step does not fit, changes that save memory: sufficient ones first.
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
    compute: str = "float32"
    peak_flops: float | None = None
    memory_bytes_per_s: float | None = None
    given: tuple[str, ...] = ()
    slices: int = 1
    link_bytes: int = 0
    dcn_bytes: int = 0
    link_seconds: float | None = None
    dcn_seconds: float | None = None
    remedies: tuple[Remedy, ...] = ()

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

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

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
            lines.append(f"  {'of the device':<20}{'not known':>14}")
        if self.remedies:
            lines += ["", "bytes of one device saved by a change"]
        for remedy in self.remedies:
            saved = f"{remedy.saved_bytes / 2**power:>14,.1f} {unit}"
            fits = "fits" if remedy.fits else "does not fit"
            lines.append(f"  {'':<20}{saved}  {fits}: {remedy.code}")
        lines += ["", f"{'GFLOP of a step':<22}{self.model_flops / 1e9:>14,.6g}"]
        lines.append(f"{'recomputed GFLOP':<22}{self.recomputed_flops / 1e9:>14,.6g}")
        if self.opaque:
            lines.append(f"could not be counted: {hidden_work(self.opaque)}")
        return "\n".join([*lines, *self._times(), *self._links()])

    def _links(self) -> list[str]:
        """Returns the lines about links, for several slices or a given rate."""
        if self.slices == 1 and self.link_seconds is None:
            return []
        rows = [("within a slice", self.link_bytes, self.link_seconds)]
        if self.slices > 1:
            rows.append((f"between {self.slices} slices", self.dcn_bytes, self.dcn_seconds))
        lines = ["", "gradients and parameters sent by one device, at least"]
        for name, n, seconds in rows:
            time = "time not known" if seconds is None else f"{seconds * 1e3:,.4g} ms"
            lines.append(f"  {name:<20}{n / 2**20:>14,.1f} MiB  {time}")
        return lines

    def _times(self) -> list[str]:
        rates = {name: getattr(self, name) for name in _RATES}
        if self.seconds is None:
            words = {
                "peak_flops": f"FLOP/s in {self.compute}: pass peak_flops= (--peak-flops)",
                "memory_bytes_per_s": "bandwidth of the memory: pass memory_bytes_per_s= "
                "(--memory-bytes-per-s)",
            }
            missing = ", and no ".join(words[name] for name, rate in rates.items() if rate is None)
            return [f"{'at least':<22}{'not known':>14}: no published {missing}"]
        lines = [f"{'at least':<22}{self.seconds * 1e3:>14,.4g} ms, by {self.bound}"]
        given = ", ".join(f"{name}={rates[name]:.6g}" for name in self.given)
        return [*lines, f"{'with the given':<22}{given}"] if given else lines


@_elsewhere.call
def estimate(
    trainer: Trainer,
    model: "nnx.Module",
    batch: Batch,
    *,
    device: str | None = None,
    peak_flops: float | None = None,
    memory_bytes_per_s: float | None = None,
    link_bytes_per_s: float | None = None,
    dcn_bytes_per_s: float | None = None,
    dcn: Mapping[str, int] | None = None,
) -> Estimate:
    """Estimates a step of `trainer` on its mesh, with devices that may be absent.

    Allocates nothing. Takes about a second, and some more if the step does not fit: each remedy is
    applied and measured. Raises the errors of tracing the step, or of lowering it for the platform
    of the device; a step with callbacks is only traced.

    Args:
        trainer: The trainer. Its mesh may be abstract, or of this machine's devices.
        model: A module of arrays or `jax.ShapeDtypeStruct`.
        batch: A batch of arrays or `jax.ShapeDtypeStruct`.
        device: Name of a kind of device, such as "H200", "a100-80gb" or "TPU v5e". Case, spaces
            and hyphens do not matter. A kind of this machine without published figures is accepted;
            its memory is None. Default: the device of the trainer's `abstract_mesh`, else
            "NVIDIA H200".
        peak_flops: FLOP/s of one device in the compute dtype, as measured. Default: as published.
        memory_bytes_per_s: Bandwidth of its memory, as measured. Default: as published.
        link_bytes_per_s: Bytes per second that one device sends within its slice.
        dcn_bytes_per_s: The same to other slices: the network of a host, divided by its devices.
        dcn: Slices along each axis that crosses, as for `make_mesh`. Default: as the devices of the
            mesh lie; those of an abstract mesh are one slice.

    Raises:
        TypeError: `device` is not a string.
        ValueError: `device` is unknown or names several kinds, a rate is not positive, `dcn` does
            not divide the axes, or the batch cannot be split.

    Example:

        >>> import jax, numpy as np, optax
        >>> from flax import nnx
        >>> from dovetail_train import Trainer, abstract_mesh, estimate, lm_loss
        >>> from dovetail_train.testing import TinyDecoder
        >>> trainer = Trainer(optax.adamw(1e-3), lm_loss(), mesh=abstract_mesh(4, device="H200"))
        >>> model = TinyDecoder(vocab_size=10, width=8, depth=1, rngs=nnx.Rngs(0))
        >>> tokens = jax.ShapeDtypeStruct((4, 6), np.int32)
        >>> estimate(trainer, model, dict(tokens=tokens, targets=tokens, mask=tokens)).fits
        True
    """
    given = {"peak_flops": peak_flops, "memory_bytes_per_s": memory_bytes_per_s}
    compute = trainer.precision.compute
    kind = kind_of(_device_of(trainer) if device is None else device)
    kind = with_rates(kind, compute=compute, **given)
    step = _planned(trainer, model, batch, kind)
    given_flops = trainer._flops
    program = step_program(step.options, step.model, step.batch, model_flops=given_flops)
    program.check(kind.platform)
    flops, memory = program.flops(), step.memory
    model_flops = flops.model if given_flops is None else int(given_flops)
    seconds, bound = _least_seconds(
        products=(model_flops + flops.recomputed) / program.mesh.size,
        moved=2 * sum(memory.state_bytes.values()),
        peak=kind.peak_flops.get(compute),
        rate=kind.memory_bytes_per_s,
    )
    for name, rate in (("link", link_bytes_per_s), ("dcn", dcn_bytes_per_s)):
        check_rate(f"{name}_bytes_per_s", rate)
    sent = link_bytes(program.args[0].params, slice_ids(trainer.mesh, dcn=dcn))
    size = kind.memory_bytes
    small = size if size is not None and memory.total_bytes >= size else None
    return Estimate(
        device=kind.name,
        devices=program.mesh.size,
        mesh={name: n for name, n in program.mesh.shape.items() if n > 1},
        state_bytes=memory.state_bytes,
        batch_bytes=memory.batch_bytes,
        gradient_bytes=memory.gradient_bytes,
        residual_bytes=memory.residual_bytes,
        memory_bytes=size,
        model_flops=model_flops,
        recomputed_flops=flops.recomputed,
        opaque=dict(flops.opaque),
        seconds=seconds,
        bound=bound,
        compute=compute,
        peak_flops=kind.peak_flops.get(compute),
        memory_bytes_per_s=kind.memory_bytes_per_s,
        given=tuple(name for name, rate in given.items() if rate is not None),
        slices=sent.slices,
        link_bytes=sent.link_bytes,
        dcn_bytes=sent.dcn_bytes,
        link_seconds=None if link_bytes_per_s is None else sent.link_bytes / link_bytes_per_s,
        dcn_seconds=None if dcn_bytes_per_s is None else sent.dcn_bytes / dcn_bytes_per_s,
        remedies=() if small is None else remedies(step, memory_bytes=small),
    )


def _device_of(trainer: Trainer) -> str:
    mesh = trainer.mesh
    absent = mesh.abstract_device if isinstance(mesh, AbstractMesh) else None
    return _DEFAULT if absent is None else absent.device_kind


def _planned(trainer: Trainer, model: Any, batch: Any, kind: DeviceKind) -> PlannedStep:
    """Returns the step by shapes, on the mesh of the trainer with devices of `kind`."""
    check_model(model)
    options = trainer._options
    trainer._check_batch(batch)
    mesh = absent_twin(options.mesh, kind)
    return PlannedStep(
        options=dataclasses.replace(options, placement=batch_placement(mesh)),
        model=placed_on(model, mesh, before=options.mesh),
        batch={name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()},
    )


def _least_seconds(
    *, products: float, moved: int, peak: float | None, rate: float | None
) -> tuple[float | None, Literal["products", "memory"] | None]:
    if peak is None or rate is None:
        return None, None
    by_products, by_memory = products / peak, moved / rate
    return max(by_products, by_memory), "products" if by_products >= by_memory else "memory"
