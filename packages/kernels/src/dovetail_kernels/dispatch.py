# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Selection of an implementation for an operation, with the reasons against the others.

An operation has a list of implementations, best first. Each one reports from abstract arguments
alone (shapes, dtypes, options, device) why it cannot give the documented result, forward and
backward. The first one without a reason runs. No implementation is tried and caught: an exception
in a kernel is a bug and is raised, and the selection is made before tracing starts.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from jax.core import Tracer

CallT = TypeVar("CallT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """The device of an operation.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        kind: JAX's `device_kind`.
    """

    platform: str
    kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Cost of one forward call. An upper bound if values (lengths, segments) decide.

    Attributes:
        flops: Floating-point operations of the matrix products.
        bytes: Bytes of arguments and results, counted once, and of intermediate arrays written to
            memory and read again.
    """

    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation(Generic[CallT]):
    """One way to compute an operation.

    Attributes:
        name: Its name, as in `impl`.
        refuse: Returns the reason why it cannot do a call, in words after "NAME: ", or None. Pure.
        work: Returns the cost of a call. Called only if `refuse` returns None.
        run: Computes the result from the arguments documented by the operation.
    """

    name: str
    refuse: Callable[[CallT], str | None]
    work: Callable[[CallT], Work]
    run: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The state of one implementation for one call.

    Attributes:
        name: Name of the implementation.
        selected: Whether it runs.
        refusal: Reason why it cannot run or is not requested. None otherwise.
        work: Cost of the call. None if the implementation cannot do the call.
    """

    name: str
    selected: bool
    refusal: str | None
    work: Work | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Generic[CallT]):
    """One call of an operation before it runs.

    Attributes:
        operation: Name of the operation, for error messages.
        call: The call's shapes, dtypes and options.
        device: The device of the call.
        implementations: All implementations, best first.
        impl: Name or names requested by the caller, in order of preference. None for all.
    """

    operation: str
    call: CallT
    device: Device
    implementations: Sequence[Implementation[CallT]]
    impl: str | Sequence[str] | None

    def choices(self) -> list[Choice]:
        """Returns the state of every implementation, in the plan's order. At most one is selected.

        Raises:
            ValueError: `impl` is empty or has an unknown name.
        """
        asked, choices = self._asked(), []
        first = self._first(asked)
        for implementation in self.implementations:
            refusal = implementation.refuse(self.call)
            work = implementation.work(self.call) if refusal is None else None
            if refusal is None and implementation.name not in asked:
                refusal = f"not among impl={self.impl!r}"
            is_first = implementation.name == first
            choices.append(
                Choice(name=implementation.name, selected=is_first, refusal=refusal, work=work)
            )
        return choices

    def choose(self) -> Implementation[CallT]:
        """Returns the first requested implementation without a refusal.

        Raises:
            ValueError: `impl` is empty or has an unknown name, or every requested implementation
                refuses. The message has every reason.
        """
        asked = self._asked()
        first = self._first(asked)
        named = {implementation.name: implementation for implementation in self.implementations}
        if first is not None:
            return named[first]
        reasons = "; ".join(f"{name}: {named[name].refuse(self.call)}" for name in asked)
        others = [
            name
            for name, implementation in named.items()
            if name not in asked and not implementation.refuse(self.call)
        ]
        hint = f"use impl={others[0]!r} or leave impl out" if others else "change what is refused"
        raise ValueError(
            f"{self.operation} needs an implementation that supports every option of the call, got "
            f"impl={self.impl!r} on {self.device.platform}: {reasons}. To go on, {hint}."
        )

    def _asked(self) -> list[str]:
        names = [implementation.name for implementation in self.implementations]
        if self.impl is None:
            return names
        asked = [self.impl] if isinstance(self.impl, str) else list(self.impl)
        unknown = [name for name in asked if name not in names]
        if unknown or not asked:
            raise ValueError(
                f"impl must name implementations of {self.operation}, {names}, got "
                f"impl={self.impl!r}. Use one of them, or leave it out."
            )
        return asked

    def _first(self, asked: Sequence[str]) -> str | None:
        named = {implementation.name: implementation for implementation in self.implementations}
        return next((name for name in asked if named[name].refuse(self.call) is None), None)


def device(*arrays: Any) -> Device:
    """Returns the device of a call with these arguments.

    Without tracers it is the device of the first concrete array. With tracers it is the device of
    the mesh in scope, then of the mesh in a tracer's type, then of a concrete array, then JAX's
    default. `jax.sharding.use_abstract_mesh` with an `AbstractDevice` therefore selects for an
    absent device, as for `jax.export`, also if the function captures concrete arrays.
    """
    traced = [array for array in arrays if isinstance(array, Tracer)]
    concrete = [a for a in arrays if isinstance(a, jax.Array) and not isinstance(a, Tracer)]
    meshes = [jax.sharding.get_abstract_mesh(), *(jax.typeof(a).sharding.mesh for a in traced)]
    abstract = [mesh.abstract_device for mesh in meshes if mesh.abstract_device is not None]
    if abstract and (traced or not concrete):
        return Device(platform=_platform(abstract[0].platform), kind=abstract[0].device_kind)
    if concrete:
        target = next(iter(concrete[0].devices()))
        return Device(platform=target.platform, kind=target.device_kind)
    # JAX adds its options to the class when it is imported.
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(default, str):
        default = jax.devices(default)[0]
    target = default or jax.devices()[0]
    return Device(platform=target.platform, kind=target.device_kind)


def _platform(name: str) -> str:
    """Returns the platform as a device names it. An `AbstractDevice` may say "cuda"."""
    return "gpu" if name in ("cuda", "rocm") else name
