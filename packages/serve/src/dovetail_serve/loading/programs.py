# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Serialized programs of a bundle: chosen by rows and platform, checked, and read."""

import contextlib
import logging
import math
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
from jax import export as jax_export
from jax.sharding import Sharding

from dovetail_serve._compat import Format
from dovetail_serve.bundle.arrays import converted
from dovetail_serve.bundle.folder import Folder
from dovetail_serve.bundle.manifest import SYMBOLIC, Manifest, Program
from dovetail_serve.context import without_mesh
from dovetail_serve.errors import BundleError
from dovetail_serve.loading.custom_calls import check_custom_calls

_log = logging.getLogger(__name__)

# In the text of a program: an operation, its result's dtype (the last one of the line), and the
# operations that round nothing.
_OPERATION = re.compile(r"= \"?stablehlo\.(\w+)")
_FLOAT = re.compile(r"[<x](bf16|f\d+\w*)>")
_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16"}
_MOVES = re.compile(
    "broadcast_in_dim|concatenate|constant|dynamic_slice|dynamic_update_slice|gather|"
    "optimization_barrier|reshape|reverse|select|slice|sort|transpose"
)


def check_requirements(manifest: Manifest) -> None:
    """Raises BundleError unless packages have the versions pinned by the bundle."""
    for name, pinned in manifest.requires.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "none"
        if installed != pinned:
            raise BundleError(
                f"the bundle has custom calls that need {name}=={pinned}, got {installed}; install "
                f"{name}=={pinned}, or export it again here"
            )


@contextlib.contextmanager
def options_of(manifest: Manifest) -> Iterator[None]:
    """Sets options of JAX as they were at the export, whatever the caller's are."""
    with jax.enable_x64(manifest.x64), jax.transfer_guard("allow"), without_mesh():
        yield


def lower_program(
    folder: Folder,
    platform: str,
    rows: int | None,
    *,
    weights: Mapping[str, Sharding | Format],
    inputs: Sharding,
) -> jax.stages.Lowered:
    """Reads and lowers the program for `rows` rows: its own one, or the one for any number.

    Args:
        folder: The bundle.
        platform: Name of the platform.
        rows: Number of rows; None without a batch axis.
        weights: Placement of each weight.
        inputs: Placement of all inputs.

    Raises:
        BundleError: There is none, this JAX cannot read it, or it makes a custom call that is
            not allowed.
        IntegrityError: Its bytes differ from its digest.
    """
    manifest = folder.manifest

    def lower(program: Program) -> jax.stages.Lowered:
        exported = _read(folder, program, rows)
        target = manifest.platform(platform)
        arguments = abstract_arguments(manifest, target.weights, rows)
        placed = (weights, dict.fromkeys(arguments[1], inputs))
        try:
            with options_of(manifest):
                lowered = jax.jit(exported.call, in_shardings=placed).lower(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise _unreadable(manifest, program, error) from error
        check_custom_calls(lowered, file=program.file, pinned="jaxlib" in manifest.requires)
        return lowered

    program = _program(manifest, platform, rows)
    if program is not None:
        return lower(program)
    program = _program(manifest, platform, SYMBOLIC)
    if program is not None:
        try:
            return lower(program)
        except BundleError as error:
            _log.warning("the program for any number of rows is skipped: %s", error)
    raise _absent(manifest, platform, rows)


def compile_program(
    folder: Folder,
    platform: str,
    rows: int | None,
    *,
    weights: Mapping[str, Sharding | Format],
    inputs: Sharding,
) -> jax.stages.Compiled:
    """Reads and compiles a program with the platform's compiler options.

    Args:
        folder, platform, rows, weights, inputs: As in `lower_program`.

    Raises:
        BundleError: As in `lower_program`, or a compiler option is unknown.
        IntegrityError: Its bytes differ from its digest.
    """
    lowered = lower_program(folder, platform, rows, weights=weights, inputs=inputs)
    options: Any = dict(folder.manifest.platform(platform).compiler_options)
    try:
        with options_of(folder.manifest):
            return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if not options:
            raise
        raise BundleError(
            f"the bundle's compiler options must be known to jaxlib {version('jaxlib')} on "
            f"{platform!r}, got {options}: {str(error).splitlines()[0]}; export it with other "
            "compiler_options"
        ) from error


def program_of(manifest: Manifest, platform: str, rows: int | None) -> Program:
    """Returns the entry of the program for `rows` rows: its own one, or the one for any number.

    Args:
        manifest: Of the bundle.
        platform, rows: As in `lower_program`.
    """
    program = _program(manifest, platform, rows) or _program(manifest, platform, SYMBOLIC)
    if program is None:
        raise _absent(manifest, platform, rows)
    return program


def rounding_of(folder: Folder, platform: str, rows: int | None) -> str | None:
    """Returns the floating-point dtype of a program's arithmetic with the largest epsilon.

    A dtype of fewer than 16 bits counts as bfloat16, as at the export.

    Args:
        folder, platform, rows: As in `lower_program`.

    Returns:
        Its name; None for a program without arithmetic of floats.
    """
    module = _read(folder, program_of(folder.manifest, platform, rows), rows).mlir_module()
    names = set()
    for line in module.splitlines():
        operation = _OPERATION.search(line)
        if operation and not _MOVES.fullmatch(operation[1]):
            names |= {_FLOATS.get(name, "bfloat16") for name in _FLOAT.findall(line)[-1:]}
    return max(names, key=lambda name: float(jax.numpy.finfo(name).eps), default=None)


def abstract_arguments(
    manifest: Manifest, weights_dtype: str | None, rows: int | None
) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """Returns the abstract weights and inputs of a program.

    Args:
        manifest: The manifest.
        weights_dtype: Dtype of the platform's weights, as `Platform.weights`.
        rows: Number of rows; None without a batch axis.
    """
    arrays = {
        name: jax.ShapeDtypeStruct(entry.shape, converted(entry.dtype, weights_dtype))
        for name, entry in manifest.weights.items()
    }
    inputs = {
        name: jax.ShapeDtypeStruct(tensor.sized(rows), tensor.dtype)  # type: ignore[arg-type]
        for name, tensor in manifest.signature.inputs.items()
    }
    return arrays, inputs


def _program(manifest: Manifest, platform: str, batch: int | str | None) -> Program | None:
    for program in manifest.programs:
        if program.batch == batch and platform in program.platforms:
            return program
    return None


def _absent(manifest: Manifest, platform: str, rows: int | None) -> BundleError:
    return BundleError(
        f"the bundle must have a program for {rows} rows on {platform!r} that loads here, and has "
        f"{manifest.batch_sizes}; pad to one of these, or export it with that batch size"
    )


def _read(folder: Folder, program: Program, rows: int | None) -> jax_export.Exported:
    newest = jax_export.maximum_supported_calling_convention_version
    oldest = jax_export.minimum_supported_calling_convention_version
    producer = folder.manifest.producer.get("jax", "unknown")
    if not oldest <= program.calling_convention <= newest:
        raise BundleError(
            f"programs must be of calling conventions {oldest} to {newest} for jax "
            f"{jax.__version__}, got {program.calling_convention} of jax {producer}; install jax "
            f"{producer}, or export the bundle again"
        )
    data = folder.read(program.file)
    try:
        exported = jax_export.deserialize(bytearray(data))
    except Exception as error:  # flatbuffers and MLIR raise what they please
        raise _unreadable(folder.manifest, program, error) from error
    _check_devices(folder.manifest, program, exported)
    if program.batch != SYMBOLIC:
        _check_arguments(folder.manifest, program, exported, rows)
    return exported


def _unreadable(manifest: Manifest, program: Program, error: Exception) -> BundleError:
    """Returns the error for a program that this JAX cannot read.

    jax 0.12 writes each custom call as `vhlo.custom_call_v2`, which the StableHLO of jax 0.10.2
    does not know. A program for any number of rows has one for its assertions on shapes.
    """
    producer = manifest.producer.get("jax", "unknown")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return BundleError(
        f"{program.file} of jax {producer} must load in jax {jax.__version__}, got {reason}; "
        f"install jax {producer}, or export the bundle with jax {jax.__version__}"
    )


def _check_devices(manifest: Manifest, program: Program, exported: jax_export.Exported) -> None:
    """Raises BundleError if a program is for other devices than its manifest says."""
    count = 1 if manifest.mesh is None else math.prod(manifest.mesh.axis_sizes)
    if exported.nr_devices != count:
        raise BundleError(
            f"{program.file} must be for the devices of the weights, {count}, got a program for "
            f"{exported.nr_devices}; export the bundle again, with params on the mesh of fn"
        )


def _check_arguments(
    manifest: Manifest, program: Program, exported: jax_export.Exported, rows: int | None
) -> None:
    """Raises BundleError if a program takes other arrays than its manifest lists.

    Digests do not show that: they fit whatever files the manifest was written for.
    """
    weights_dtype = manifest.platform(program.platforms[0]).weights
    expected = jax.tree.leaves(abstract_arguments(manifest, weights_dtype, rows))
    avals: Mapping[str, Any] | Any = exported.in_avals
    taken = [(tuple(aval.shape), aval.dtype) for aval in avals]
    if taken != [(leaf.shape, leaf.dtype) for leaf in expected]:
        raise BundleError(
            f"{program.file} must take the weights and inputs of the manifest, got a program of "
            "other arguments; export the bundle again"
        )
