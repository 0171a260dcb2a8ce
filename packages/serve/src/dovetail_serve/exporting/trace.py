# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Serialized programs: a function traced for each number of rows and each platform.

A program takes two dictionaries, weights and inputs, and returns a dictionary of outputs. Weights
are arguments: as constants, 128 MiB of weights made a program of 128 MiB, as arguments 1.4 kB.

Programs for a fixed number of rows are the rule. They load in older JAX and every operation
supports them. A program for any number of rows comes with them where the function traces with a
symbolic batch axis.

Operations that choose an implementation by device choose while they are traced. A platform with a
device kind is therefore traced under an abstract device of this kind, and has programs of its own.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import export as jax_export
from jax.sharding import AbstractMesh

from dovetail_serve._compat import AbstractDevice
from dovetail_serve.bundle.arrays import converted
from dovetail_serve.bundle.manifest import PROGRAMS, SYMBOLIC, Program
from dovetail_serve.exporting.frames import place_of
from dovetail_serve.exporting.jaxpr import check_jaxpr
from dovetail_serve.exporting.limits import LIMIT_S, limited
from dovetail_serve.exporting.outputs import check_equal, outputs_of
from dovetail_serve.exporting.refusals import check_targets, custom_call_refusal, symbolic_refusal
from dovetail_serve.exporting.sharding import check_devices, mesh_of, on_mesh, replicated
from dovetail_serve.types import BATCH, Platform, Tensor

# The exported function: (weights, inputs) to outputs, arrays by name each.
Flow = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]

# `_without_source_locations` sets an option of the whole process, so two exports take turns.
_LOCATIONS_LOCK = threading.Lock()

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
    """Serialized programs and their outputs.

    Attributes:
        programs: Entries of the manifest.
        files: Serialized bytes by file name.
        outputs: Outputs by name.
        symbolic: None if a program for any number of rows is among them; else the reason.
    """

    programs: tuple[Program, ...]
    files: Mapping[str, bytes]
    outputs: Mapping[str, Tensor]
    symbolic: str | None


def trace(
    flow: Flow,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    *,
    platforms: Sequence[Platform],
    batch_sizes: Sequence[int],
    custom_calls: Sequence[str] = (),
    limit_s: float = LIMIT_S,
) -> Traced:
    """Traces and serializes `flow` for each platform and number of rows.

    Equal functions give equal bytes: programs hold names of operations, and no paths or lines of
    source files.

    Args:
        flow: The function of (weights, inputs).
        weights: Arrays or abstract arrays by name; shardings are kept.
        inputs: Tensors by name.
        platforms: The platforms.
        batch_sizes: Numbers of rows, ascending; empty without a batch axis.
        custom_calls: Targets of custom calls to allow though `jax.export` does not promise them.
        limit_s: Time that the trace of one program may take, in seconds.

    Returns:
        The serialized programs.

    Raises:
        ValueError: The function does not export, or is for other devices than the weights; its
            outputs lack the batch axis, or differ between platforms and numbers of rows; no
            program has a custom call that is allowed, or one of these calls back into Python; or
            a trace does not end.
    """
    check_targets(custom_calls)
    groups = _groups(platforms)
    exporter = _Exporter(flow, weights, inputs, custom_calls, limit_s)
    fixed: list[tuple[_Group, int | str | None]]
    fixed = [(group, rows) for group in groups for rows in batch_sizes or (None,)]
    with _without_source_locations():
        programs = [exporter.export(group, rows) for group, rows in fixed]
        outputs = outputs_of(programs[0], fixed[0][1])
        for program, (group, rows) in zip(programs, fixed, strict=True):
            check_equal(outputs, outputs_of(program, rows), rows=rows, platforms=group.names)
        symbolic = _unfit(batch_sizes) or exporter.symbolic(groups)
    kept = list(zip(fixed, programs, strict=True))
    if not isinstance(symbolic, str):
        for group, program in zip(groups, symbolic, strict=True):
            others = outputs_of(program, SYMBOLIC)
            check_equal(outputs, others, rows=SYMBOLIC, platforms=group.names)
            kept.append(((group, SYMBOLIC), program))
    _check_used(custom_calls, [program for _, program in kept])
    entries = [_entry(group, rows, program) for (group, rows), program in kept]
    return Traced(
        programs=tuple(entries),
        files={
            entry.file: bytes(program.serialize())
            for entry, (_, program) in zip(entries, kept, strict=True)
        },
        outputs=outputs,
        symbolic=symbolic if isinstance(symbolic, str) else None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """Platforms with common programs."""

    names: tuple[str, ...]
    device_kind: str | None = None
    weights_dtype: str | None = None


def _groups(platforms: Sequence[Platform]) -> list[_Group]:
    shared = tuple(platform.name for platform in platforms if not platform.own_programs)
    own = [
        _Group(names=(p.name,), device_kind=p.device_kind, weights_dtype=p.weights)
        for p in platforms
        if p.own_programs
    ]
    return [*([_Group(names=shared)] if shared else []), *own]


def _unfit(batch_sizes: Sequence[int]) -> str | None:
    """Returns the reason to have no program for any number of rows, before it is tried."""
    if not batch_sizes:
        return "its inputs have no batch axis"
    if tuple(batch_sizes) == (1,):
        # Nothing has shown that rows of a larger batch do not depend on each other.
        return "it was exported for one row at a time"
    return None


class _Exporter:
    """Traces one function for several groups of platforms and numbers of rows."""

    def __init__(
        self,
        flow: Flow,
        weights: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
        custom_calls: Sequence[str],
        limit_s: float,
    ) -> None:
        self._weights, self._inputs, self._limit_s = weights, inputs, limit_s
        self._custom_calls = tuple(custom_calls)
        self._mesh = mesh_of(weights)
        sharding = replicated(self._mesh)
        self._jitted = jax.jit(flow) if sharding is None else jax.jit(flow, out_shardings=sharding)
        self._checked: set[_Group] = set()

    def export(self, group: _Group, rows: int | str | None) -> jax_export.Exported:
        """Traces and lowers for one group of platforms and one number of rows."""
        step = f"tracing fn for {rows or 'all'} rows on {', '.join(group.names)}"
        with _traced_for(group):
            program = limited(lambda: self._traced(group, rows), step, self._limit_s)
        check_devices(program.nr_devices, self._mesh)
        return program

    def _traced(self, group: _Group, rows: int | str | None) -> jax_export.Exported:
        checks = [jax_export.DisabledSafetyCheck.custom_call(name) for name in self._custom_calls]
        arguments = self._arguments(group, rows)
        if group not in self._checked:
            check_jaxpr(self._jitted.trace(*arguments).jaxpr)
            self._checked.add(group)
        exporting = jax_export.export(self._jitted, platforms=group.names, disabled_checks=checks)
        try:
            return exporting(*arguments)
        except ValueError as error:
            refusal = custom_call_refusal(error, self._custom_calls)
            if refusal is None:
                raise
            raise refusal from error

    def symbolic(self, groups: Sequence[_Group]) -> list[jax_export.Exported] | str:
        """Returns a program for any number of rows for each group, or the reason for none."""
        try:
            return [self.export(group, SYMBOLIC) for group in groups]
        except Exception as error:  # any operation may refuse in its own way
            reason = symbolic_refusal(error)
            _log.info(
                "no program for any number of rows: %s, at %s; for one, write jax.vmap or "
                "jax.lax.fori_loop in place of Python loops over rows",
                *(reason, place_of(error)),
            )
            return reason

    def _arguments(self, group: _Group, rows: int | str | None) -> tuple[Any, Any]:
        weights = {
            name: jax.ShapeDtypeStruct(
                array.shape,
                converted(array.dtype, group.weights_dtype),
                sharding=on_mesh(array, self._mesh),
            )
            for name, array in self._weights.items()
        }
        (size,) = jax_export.symbolic_shape(BATCH) if rows == SYMBOLIC else (rows,)
        inputs = {
            name: jax.ShapeDtypeStruct(
                tensor.sized(size), tensor.dtype, sharding=replicated(self._mesh)
            )
            for name, tensor in self._inputs.items()
        }
        return weights, inputs


@contextlib.contextmanager
def _traced_for(group: _Group) -> Iterator[None]:
    """Makes operations see a device of the group's kind."""
    if group.device_kind is None:
        yield
        return
    device = AbstractDevice(device_kind=group.device_kind, num_cores=None, platform=group.names[0])
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        yield


@contextlib.contextmanager
def _without_source_locations() -> Iterator[None]:
    """Leaves paths and lines of source files out of programs; names of operations stay.

    They would tell the exporter's folders, and make equal functions unequal bytes.
    """
    option = "jax_traceback_in_locations_limit"
    with _LOCATIONS_LOCK:
        before = getattr(jax.config, option)
        jax.config.update(option, 0)
        try:
            yield
        finally:
            jax.config.update(option, before)


def _entry(group: _Group, rows: int | str | None, program: jax_export.Exported) -> Program:
    name = f"{'-'.join(group.names)}.{'all' if rows is None else rows}.stablehlo"
    return Program(
        file=f"{PROGRAMS}/{name}",
        platforms=group.names,
        batch=rows,
        calling_convention=program.calling_convention_version,
    )


def _check_used(custom_calls: Sequence[str], programs: Sequence[jax_export.Exported]) -> None:
    """Raises ValueError for an allowed custom call made by no program."""
    for name in custom_calls:
        if not any(name.encode() in program.mlir_module_serialized for program in programs):
            raise ValueError(
                "custom_calls must be targets that fn calls, since they tie the bundle to this "
                f"version of jaxlib, got {name!r}, which no program calls; leave it out"
            )
