# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Changes that make a step fit: each one is applied, and the changed program measured.

The order is that of their cost: a sharding of the same devices is free, recomputation and
microbatches cost time, bfloat16 changes rounding, more devices cost money, and fewer rows change
the training. A combination is tried only if no single change suffices.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding

from dovetail_train.memory.memory import StepMemory, step_memory
from dovetail_train.mesh.mesh import batch_placement, row_shards
from dovetail_train.step.options import Options
from dovetail_train.step.program import step_program
from dovetail_train.step.terms import Batch

_MOST_DEVICES = 4096  # beyond, a mesh is a question of its network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change that lowers the memory of a step on one device.

    Attributes:
        changes: New values by name: remat, accumulate, compute, data, fsdp, rows.
        code: The Python to write.
        saved_bytes: Bytes saved on a device: the total before less the total after.
        fits: Whether the step then fits.
    """

    changes: dict[str, Any]
    code: str
    saved_bytes: int
    fits: bool


@runtime_checkable
class _Configurable(Protocol):
    configure: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step by shapes on an abstract mesh, with the changes already made to it.

    Attributes:
        options: Options of the trainer, on the mesh.
        model: The model by shapes, on that mesh.
        batch: The batch by shapes.
        changes: Changes so far.
    """

    options: Options
    model: nnx.Module
    batch: Batch
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def memory(self) -> StepMemory:
        """Bytes of one device."""
        return step_memory(step_program(self.options, self.model, self.batch, model_flops=None))

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return next(iter(self.batch.values())).shape[0]

    def changed(self, changes: Mapping[str, Any]) -> "PlannedStep":
        """Returns the step with further changes."""
        options, model, batch = self.options, self.model, dict(self.batch)
        axes = {name: n for name, n in changes.items() if name in ("data", "fsdp")}
        if axes:
            mesh = resized(options.mesh, axes)
            model = placed_on(model, mesh, before=options.mesh)
            options = dataclasses.replace(options, placement=batch_placement(mesh))
        if "remat" in changes:
            model = _rematerialized(model)
        if "accumulate" in changes:
            options = dataclasses.replace(options, accumulate=changes["accumulate"])
        if "compute" in changes:
            precision = dataclasses.replace(options.precision, compute=changes["compute"])
            options = dataclasses.replace(options, precision=precision)
        if "rows" in changes:
            batch = {
                name: jax.ShapeDtypeStruct((changes["rows"], *x.shape[1:]), x.dtype)
                for name, x in batch.items()
            }
        return PlannedStep(
            options=options, model=model, batch=batch, changes={**self.changes, **changes}
        )


def remedies(step: PlannedStep, *, memory_bytes: int) -> tuple[Remedy, ...]:
    """Returns changes that save memory: sufficient ones first, then by their cost.

    Args:
        step: The step that does not fit.
        memory_bytes: Memory of the device.
    """
    before = step.memory.total_bytes
    single = [
        lower
        for name in _CANDIDATES
        if (lower := _lowered(step, name, memory_bytes=memory_bytes)) is not None
    ]
    if not any(_fits(lower, memory_bytes) for lower in single) and len(single) > 1:
        single.append(_combined(step, memory_bytes=memory_bytes))
    each = [
        Remedy(
            changes=lower.changes,
            code=_code(lower),
            saved_bytes=before - lower.memory.total_bytes,
            fits=_fits(lower, memory_bytes),
        )
        for lower in single
    ]
    return tuple(sorted(each, key=lambda remedy: not remedy.fits))


def _fits(step: PlannedStep, memory_bytes: int) -> bool:
    return step.memory.total_bytes < memory_bytes


def _lowered(step: PlannedStep, name: str, *, memory_bytes: int) -> PlannedStep | None:
    """Returns the step with the weakest change of this name that fits, or else saves nearly all.

    Args:
        step: The step before.
        name: Key of `_CANDIDATES`.
        memory_bytes: Memory of the device.

    Returns:
        The changed step, or None if no change of this name saves memory.
    """
    likely = [(changes, _likely_bytes(step, changes)) for changes in _CANDIDATES[name](step)]
    if not likely:
        return None
    least = min(size for _, size in likely)
    # If none suffices, seven eighths of the bytes will do: thousands of microbatches save no more.
    enough = max(memory_bytes, least + (step.memory.total_bytes - least) / 8)
    lower = step
    for changes, size in likely:
        if size <= enough:
            lower = step.changed(changes)
            if _fits(lower, memory_bytes) or least >= memory_bytes:
                break
    return lower if lower.memory.total_bytes < step.memory.total_bytes else None


def _likely_bytes(step: PlannedStep, changes: Mapping[str, Any]) -> float:
    """Returns a number that the changed step hardly goes below, to skip candidates too weak."""
    memory = step.memory
    per_row = memory.residual_bytes + memory.batch_bytes
    if "fsdp" in changes:
        size = step.options.mesh.shape
        ways = math.prod(changes.get(axis, size[axis]) / size[axis] for axis in ("data", "fsdp"))
        return (memory.total_bytes - per_row) * size["fsdp"] / changes["fsdp"] + per_row / ways
    if "accumulate" in changes:
        before = step.options.accumulate
        summed = memory.gradient_bytes if before == 1 else 0  # microbatches add up in a second tree
        saved = memory.residual_bytes * (1 - before / changes["accumulate"])
        return memory.total_bytes + summed - saved
    if "rows" in changes:
        return memory.total_bytes - per_row * (1 - changes["rows"] / step.rows)
    return 0.0


def _combined(step: PlannedStep, *, memory_bytes: int) -> PlannedStep:
    """Returns the step with one change after the other, until it fits."""
    for name in _CANDIDATES:
        if name != "rows":
            step = _lowered(step, name, memory_bytes=memory_bytes) or step
        if _fits(step, memory_bytes):
            break
    return step


def _remat(step: PlannedStep) -> Iterator[dict[str, Any]]:
    model = step.model
    if isinstance(model, _Configurable):
        options = inspect.signature(model.configure).parameters
        if {"scan", "remat"} <= options.keys():
            yield {"remat": True}


def _rematerialized(model: Any) -> Any:
    return model.configure(scan=True, remat=True)


def _split_rows(step: PlannedStep) -> int:
    """Returns the rows that one microbatch could have at the least."""
    return row_shards(step.options.mesh.shape) * step.options.group


def _accumulate(step: PlannedStep) -> Iterator[dict[str, Any]]:
    each = step.rows // _split_rows(step)
    now = step.options.accumulate
    yield from ({"accumulate": n} for n in range(now + 1, each + 1) if each % n == 0)


def _compute(step: PlannedStep) -> Iterator[dict[str, Any]]:
    if step.options.precision.compute == "float32":
        yield {"compute": "bfloat16"}


def _same_devices(step: PlannedStep) -> Iterator[dict[str, Any]]:
    size = step.options.mesh.shape
    if "fsdp" in size and size.get("data", 1) > 1:
        yield {"data": 1, "fsdp": size["data"] * size["fsdp"]}


def _more_devices(step: PlannedStep) -> Iterator[dict[str, Any]]:
    """Yields meshes of twice the devices, as long as the rows can be split among them."""
    size = step.options.mesh.shape
    if "fsdp" not in size:
        return
    rows = step.rows // (step.options.accumulate * step.options.group * size.get("expert", 1))
    fsdp = 2 * size["fsdp"] * size.get("data", 1)
    while rows % fsdp == 0 and fsdp <= _MOST_DEVICES:
        yield {"data": 1, "fsdp": fsdp} if size.get("data", 1) > 1 else {"fsdp": fsdp}
        fsdp *= 2


def _rows(step: PlannedStep) -> Iterator[dict[str, Any]]:
    least = _split_rows(step) * step.options.accumulate
    each = step.rows // least
    yield from ({"rows": n * least} for n in range(each - 1, 0, -1) if each % n == 0)


# By the cost of a change, lowest first. Each yields its values, weakest first.
_CANDIDATES: dict[str, Callable[[PlannedStep], Iterator[dict[str, Any]]]] = {
    "same devices": _same_devices,
    "remat": _remat,
    "accumulate": _accumulate,
    "compute": _compute,
    "more devices": _more_devices,
    "rows": _rows,
}


def _code(step: PlannedStep) -> str:
    """Returns the Python of a step's changes."""
    changes, options = step.changes, []
    if "accumulate" in changes:
        options.append(f"accumulate={changes['accumulate']}")
    if "compute" in changes:
        options.append(f'precision=Precision(compute="{changes["compute"]}")')
    if "fsdp" in changes:
        axes = {name: n for name, n in step.options.mesh.shape.items() if n > 1}
        options.append(f"mesh=make_mesh({', '.join(f'{name}={n}' for name, n in axes.items())})")
    texts = [f"Trainer({', '.join(options)})"] if options else []
    if "remat" in changes:
        texts.insert(0, "model.configure(scan=True, remat=True)")
    if "rows" in changes:
        texts.append(f"a batch of {changes['rows']} rows")
    if "fsdp" in changes:
        texts[-1] += f" on {step.options.mesh.size} devices"
    return ", ".join(texts)


def resized(mesh: Any, axes: Mapping[str, int]) -> AbstractMesh:
    """Returns an abstract mesh with other sizes of some axes."""
    sizes = tuple(axes.get(name, n) for name, n in mesh.shape.items())
    return AbstractMesh(
        sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=mesh.abstract_device
    )


def placed_on(model: nnx.Module, mesh: AbstractMesh, *, before: Any) -> nnx.Module:
    """Returns the model by shapes. Named shardings move to `mesh` with their specs.

    Args:
        model: The model. Arrays without a named sharding are left to the trainer.
        mesh: The mesh to move to.
        before: The mesh to move from. Shardings on others stay, to be refused.
    """

    def leaf(x: Any) -> Any:
        now = getattr(x, "sharding", None)  # a NumPy array has none
        if not isinstance(now, NamedSharding):
            now = None
        elif now.mesh.shape == before.shape:
            now = NamedSharding(mesh, now.spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=now)

    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(leaf, state))
