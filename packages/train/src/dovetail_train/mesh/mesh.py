# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Device meshes with fixed axis names, and the division of parameters and batches among devices."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from dovetail_train import _elsewhere
from dovetail_train.mesh.devices import absent_twin, kind_of, slice_of
from dovetail_train.mesh.slices import hybrid_devices

# Outermost first: the axes that talk most lie innermost, on the nearest devices.
AXES = ("stage", "data", "fsdp", "expert", "context", "tensor")
# The axes that split the rows of a batch.
BATCH_AXES = ("data", "fsdp", "expert")
_AUTO = (AxisType.Auto,) * len(AXES)
_CACHED = (
    "programs on several CPU devices must not come from JAX's compilation cache, where their "
    "collectives lose their order and the devices can wait for each other for ever; got "
    "jax_compilation_cache_dir and a mesh of CPU devices; set JAX_ENABLE_COMPILATION_CACHE=false"
)


@_elsewhere.make_mesh
def make_mesh(
    *,
    data: int = 1,
    fsdp: int = -1,
    tensor: int = 1,
    context: int = 1,
    expert: int = 1,
    stage: int = 1,
    devices: Sequence[Any] | None = None,
    dcn: Mapping[str, int] | None = None,
    allow_split_physical_axes: bool = False,
) -> Mesh:
    """Returns a mesh of all six axes (AxisType.Auto). An axis of -1 takes the remaining devices.

    Devices of several TPU slices (`slice_index`) are arranged so that data alone crosses them.

    The trainer also takes any other mesh. The axes of a plain `jax.make_mesh` are Explicit, and
    many modules cannot run on these by themselves; see `auto_mesh`. Warns if several CPU devices
    meet JAX's persistent compilation cache, which can deadlock them.

    Args:
        data: Splits rows; parameters are replicated.
        fsdp: Splits rows, parameters and optimizer state.
        tensor: Splits heads and hidden layers.
        context: Splits tokens of a row.
        expert: Splits experts, and rows elsewhere.
        stage: Pipeline stages.
        devices: Devices. Default: all of `jax.devices()`.
        dcn: Slices along each axis that crosses slow links, among stage, data and fsdp. On devices
            without slices, such as hosts of GPUs, it counts processes. Default: all slices along
            data.
        allow_split_physical_axes: Let several axes share a dimension of a TPU slice, as fsdp=512
            and tensor=8 must on 16x16x16. Their neighbours are farther apart.

    Raises:
        NotImplementedError: Axes would share a dimension of a TPU slice, and may not.
        ValueError: The product of the axes is not the number of devices, or slices do not fit.

    Example:

        >>> make_mesh().shape["fsdp"]
        1
    """
    devices = jax.devices() if devices is None else list(devices)
    if caches_cpu_programs(devices):
        warnings.warn(_CACHED, stacklevel=2)
    sizes = {"stage": stage, "data": data, "fsdp": fsdp}
    sizes |= {"expert": expert, "context": context, "tensor": tensor}
    shape, split = _shape(sizes, count=len(devices)), allow_split_physical_axes
    if dcn is not None or len(set(map(slice_of, devices))) > 1:
        hybrid = hybrid_devices(dict(zip(AXES, shape, strict=True)), devices, dcn, split=split)
        return Mesh(hybrid, AXES, axis_types=_AUTO)
    if split:
        arranged = create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(arranged, AXES, axis_types=_AUTO)
    return jax.make_mesh(shape, AXES, axis_types=_AUTO, devices=devices)


def caches_cpu_programs(devices: Sequence[Any]) -> bool:
    """Tests for several CPU devices with JAX's persistent compilation cache.

    XLA:CPU loses the order of collectives when it loads a program with collectives both in a loop
    and around it. Its devices then wait for each other for ever. Seen with jaxlib 0.10.2 and
    0.12.0.
    """
    config: Any = jax.config  # its options are attributes that are set as JAX is imported
    kept = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir
    return bool(kept) and len(devices) > 1 and devices[0].platform == "cpu"


def abstract_mesh(count: int, *, device: str | None = None, **axes: int) -> AbstractMesh:
    """Returns the mesh of `make_mesh(**axes)` on absent devices, for estimates.

    Args:
        count: Number of devices.
        device: Name of their kind, such as "H200", "a100-80gb" or "TPU v5e". A program traced on
            the mesh then chooses kernels for it. Default: left open.
        **axes: Sizes of the axes, as in `make_mesh`.

    Raises:
        TypeError: `device` is not a string.
        ValueError: `device` is unknown, or the product of the axes is not `count`.

    Example:

        >>> abstract_mesh(8, device="H200", tensor=2).shape["fsdp"]
        4
    """
    unknown = set(axes) - set(AXES)
    if count < 1 or unknown:
        raise ValueError(
            f"a mesh has at least one device and axes among {', '.join(AXES)}, got count={count}, "
            f"axes={sorted(axes)}; write for example abstract_mesh(8, fsdp=8)"
        )
    sizes = dict.fromkeys(AXES, 1) | {"fsdp": -1} | axes
    mesh = AbstractMesh(_shape(sizes, count=count), AXES, axis_types=_AUTO)
    return mesh if device is None else absent_twin(mesh, kind_of(device))


def ambient(mesh: Mesh | AbstractMesh) -> Any:
    """Returns a context in which programs are traced for `mesh`."""
    if isinstance(mesh, AbstractMesh):
        return jax.sharding.use_abstract_mesh(mesh)
    return jax.set_mesh(mesh)


def _shape(sizes: dict[str, int], *, count: int) -> tuple[int, ...]:
    given = ", ".join(f"{name}={size}" for name, size in sizes.items())
    fills = [name for name, size in sizes.items() if size == -1]
    if len(fills) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ValueError(
            f"every axis must be positive and at most one may be -1, got {given}; "
            f"write for example make_mesh(data=-1, fsdp=1)"
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    if fills and count % known == 0:
        sizes[fills[0]] = count // known
    elif known != count or fills:
        raise ValueError(
            f"the product of the axes must {'divide' if fills else 'be'} the number of devices, "
            f"got {given} for {count} devices; change an axis or pass devices="
        )
    return tuple(sizes[name] for name in AXES)


def fsdp_shardings(
    module: nnx.Module, mesh: Mesh | AbstractMesh, *, min_size: int = 65536
) -> nnx.State:
    """Returns shardings of `nnx.state(module)`: the largest divisible dimension goes over fsdp.

    Only shapes are read, so an abstract module will do. Use the result with `place`, or as
    `out_shardings` of `jax.jit`.

    Args:
        module: The module; may be abstract.
        mesh: The mesh, of any axis types. The shardings are on it.
        min_size: Arrays of fewer elements are replicated: gathering them costs more than holding
            them.

    Raises:
        TypeError: `mesh` is not a mesh.

    Example:

        >>> layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
        >>> shardings = fsdp_shardings(layer, abstract_mesh(4), min_size=1)
        >>> tuple(shardings["kernel"].get_value().spec)
        ('fsdp',)
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh must be a mesh of devices, got mesh={mesh!r}; pass make_mesh()")
    return jax.tree.map(
        lambda leaf: sharding_by_shape(leaf.shape, mesh, min_size=min_size), nnx.state(module)
    )


def sharding_by_shape(
    shape: tuple[int, ...], mesh: Mesh | AbstractMesh, *, min_size: int
) -> NamedSharding:
    """Shards the largest dimension divisible by fsdp (the first of equals), or none.

    Args:
        shape: Shape of the array.
        mesh: The mesh.
        min_size: Arrays of fewer elements are replicated.
    """
    parts = mesh.shape.get("fsdp", 1)
    fitting = [i for i, size in enumerate(shape) if size % parts == 0]
    if parts == 1 or not fitting or math.prod(shape) < min_size:
        return NamedSharding(mesh, PartitionSpec())
    widest = max(fitting, key=lambda i: shape[i])
    return NamedSharding(mesh, PartitionSpec(*[None] * widest, "fsdp"))


@dataclasses.dataclass(frozen=True)
class BatchPlacement:
    """Placement of a batch: rows over (data, fsdp, expert), tokens over context.

    Attributes:
        rows: Sharding of the rows.
        tokens: Number of shards of the second axis.
    """

    rows: NamedSharding
    tokens: int

    def of(self, ndim: int) -> NamedSharding:
        """Returns the sharding of an array with `ndim` axes."""
        if self.tokens == 1 or ndim < 2:
            return self.rows
        return NamedSharding(self.rows.mesh, PartitionSpec(*self.rows.spec, "context"))

    def holds(self, batch: Any) -> bool:
        """Tests whether every array of a batch is placed like this already."""
        return (
            isinstance(batch, Mapping)
            and bool(batch)
            and all(
                isinstance(x, jax.Array) and x.sharding == self.of(x.ndim) for x in batch.values()
            )
        )

    def check(self, batch: Any, *, accumulate: int, group: int) -> None:
        """Raises unless a batch can be placed like this, in `accumulate` microbatches.

        Args:
            batch: Arrays [rows, ...] by name.
            accumulate: Microbatches per step.
            group: Rows of the loss that are never split.
        """
        shards = row_shards(self.rows.mesh.shape)
        _, processes = process_shard(self.rows.mesh)
        check_batch(batch, accumulate=accumulate, shards=shards, group=group, processes=processes)
        self.check_tokens({name: x.shape for name, x in batch.items()})

    def check_tokens(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ValueError for an array whose second axis the context axis does not divide."""
        for name, shape in shapes.items():
            if self.tokens > 1 and len(shape) > 1 and shape[1] % self.tokens:
                raise ValueError(
                    f"the tokens of a row must be divisible by the context axis, got {name} of "
                    f"shape {shape} over context={self.tokens}; change the row length or the mesh"
                )


def batch_placement(mesh: Mesh | AbstractMesh) -> BatchPlacement:
    """Returns the placement of a batch on `mesh`."""
    rows = NamedSharding(mesh, PartitionSpec(tuple(a for a in BATCH_AXES if a in mesh.shape)))
    return BatchPlacement(rows, mesh.shape.get("context", 1))


def row_shards(axis_sizes: Mapping[str, int]) -> int:
    """Returns the number of shards of a batch's rows."""
    return math.prod(axis_sizes.get(axis, 1) for axis in BATCH_AXES)


def is_array(x: Any) -> bool:
    """Tests for an array, or its shape and dtype."""
    return isinstance(x, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct)


@functools.cache
def process_shard(mesh: Mesh | AbstractMesh) -> tuple[int, int]:
    """Returns (i, n): this process passes share i of n of the rows of each batch.

    The argument `shard` of `dovetail_data.batches`. It is (`jax.process_index()`,
    `jax.process_count()`) if the processes split the rows. Processes along a tensor, context or
    stage axis pass the same rows.

    Raises:
        ValueError: The mesh leaves out this process, or its processes hold unequal shares.

    Example:

        >>> process_shard(make_mesh())
        (0, 1)
    """
    if isinstance(mesh, AbstractMesh):
        return jax.process_index(), jax.process_count()
    rows = [axis for axis in BATCH_AXES if axis in mesh.axis_names]
    axes = [mesh.axis_names.index(axis) for axis in rows]
    first = np.moveaxis(mesh.devices, axes, range(len(axes)))
    by_row = first.reshape(row_shards(mesh.shape), -1)
    held: dict[int, set[int]] = {}
    for row, devices in enumerate(by_row):
        for device in devices:
            held.setdefault(device.process_index, set()).add(row)
    shares = sorted({tuple(sorted(rows)) for rows in held.values()})
    if jax.process_index() not in held:
        raise ValueError(
            f"a mesh must have a device of every process, got {mesh.shape} without one of process "
            f"{jax.process_index()}; pass mesh=make_mesh(), over all devices"
        )
    if sum(map(len, shares)) != len(by_row) or len(set(map(len, shares))) > 1:
        raise ValueError(
            f"processes must hold equal shares of the rows, or the same, got rows {shares} of "
            f"{len(by_row)} by process; change the sizes of the axes or the order of the devices"
        )
    return shares.index(tuple(sorted(held[jax.process_index()]))), len(shares)


def check_batch(
    batch: Any, *, accumulate: int, shards: int, group: int, processes: int = 1
) -> None:
    """Raises TypeError unless `batch` is a mapping, ValueError unless its rows can be split.

    Args:
        batch: Arrays [rows, ...] by name.
        accumulate: Microbatches per step.
        shards: Devices that split the rows.
        group: Rows of the loss that are never split.
        processes: Processes with rows of their own.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            "a batch must be a mapping of arrays [rows, ...] by name, got "
            f"{type(batch).__name__}; write for example {{'x': x, 'y': y}}, and batch['x'] in the "
            "loss"
        )
    strangers = {name: type(x).__name__ for name, x in batch.items() if not is_array(x)}
    if strangers:
        raise TypeError(
            f"a batch must hold arrays alone, of NumPy or JAX, got {strangers}; flatten nested "
            f"mappings to names such as 'image/mask', and write np.asarray(x) for lists and numbers"
        )
    _check_numbers(batch)
    divisor = accumulate * shards * group
    rows = {name: x.shape[:1] for name, x in batch.items()}
    if not rows or len(set(rows.values())) > 1 or () in rows.values():
        raise ValueError(
            f"every array of a batch must have the same number of rows, got "
            f"{ {name: x.shape for name, x in batch.items()} }; "
            f"give each a first axis of rows"
        )
    count = next(iter(rows.values()))[0] * processes
    if count == 0 or count % divisor:
        of_loss, factor = (" × the loss's rows", f" × {group}") if group > 1 else ("", "")
        raise ValueError(
            f"the rows of a batch must be divisible by accumulate × the data axes{of_loss} "
            f"{accumulate} × {shards}{factor} = {divisor}, got rows={count}; use "
            f"{max(1, count // divisor) * divisor} rows or another accumulate"
        )


def _check_numbers(batch: Mapping[Any, Any]) -> None:
    """Raises TypeError unless the arrays have names and hold numbers."""
    if unnamed := [name for name in batch if not isinstance(name, str)]:
        raise TypeError(
            f"the arrays of a batch must be named by strings, got {unnamed}; write for example "
            f"{{'x': x, 'y': y}}"
        )
    # A dtype of random keys is none of NumPy's. Objects, bytes, text and times are not numbers.
    dtypes = {name: x.dtype for name, x in batch.items() if isinstance(x.dtype, np.dtype)}
    if others := {name: str(dtype) for name, dtype in dtypes.items() if dtype.kind in "OSUMm"}:
        raise TypeError(
            f"the arrays of a batch must hold numbers, got {others}; leave text and objects out, "
            f"or convert them, as text by a tokenizer"
        )


def split_rows(
    batch: Mapping[str, Any], *, accumulate: int, placement: BatchPlacement, group: int = 1
) -> Any:
    """Reshapes [rows, ...] to [accumulate, rows / accumulate, ...]: group j is in microbatch j mod
    accumulate.

    Strided, so each device already holds the rows of its share of a microbatch.

    Args:
        batch: Arrays by name.
        accumulate: Number of microbatches.
        placement: Placement of the batch.
        group: Consecutive rows that stay together.
    """

    def leaf(x: Array) -> Array:
        rows = x.shape[0] // accumulate
        groups = x.reshape(rows // group, accumulate, group, *x.shape[1:])
        microbatches = jnp.moveaxis(groups, 1, 0).reshape(accumulate, rows, *x.shape[1:])
        now = placement.of(x.ndim)
        sharding = NamedSharding(now.mesh, PartitionSpec(None, *now.spec))
        return jax.lax.with_sharding_constraint(microbatches, sharding)

    return jax.tree.map(leaf, batch)
