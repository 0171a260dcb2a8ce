# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which implementation of an operation runs, and why not each other one.

An operation has a list of implementations, best first. Each can say, from abstract arguments alone
(shapes, dtypes, options, device), why it cannot give the documented answer, forward and backward.
The first without a reason runs. Nothing is tried and caught: an exception in a kernel is a bug and
is seen, and the choice is known before anything is traced.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from jax.core import Tracer

CallT = TypeVar("CallT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """What an operation runs on: `platform` "cpu", "gpu" or "tpu", and the kind that JAX names."""

    platform: str
    kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What one forward call does: `flops` of its matrix products, and `bytes` that it moves.

    Bytes are those of arguments and results once, and of what is written to memory and read again
    between them. An upper bound where values (lengths, segments) decide.
    """

    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation(Generic[CallT]):
    """One way to compute an operation.

    refuse: why it cannot do a call, in words that finish "NAME: ...", or None. Pure.
    work: what the call costs; asked only where `refuse` gives None.
    run: the computation, with the arguments that its operation documents.
    """

    name: str
    refuse: Callable[[CallT], str | None]
    work: Callable[[CallT], Work]
    run: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What became of one implementation: `refusal` is None where it could run."""

    name: str
    chosen: bool
    refusal: str | None
    work: Work | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Generic[CallT]):
    """One call of an operation before it runs: what is asked, and of whom."""

    operation: str
    call: CallT
    device: Device
    implementations: Sequence[Implementation[CallT]]
    impl: str | Sequence[str] | None

    def choices(self) -> list[Choice]:
        """Every implementation, in order of preference; at most one is chosen."""
        asked, found = self._asked(), []
        first = self._first(asked)
        for one in self.implementations:
            refusal = one.refuse(self.call)
            work = one.work(self.call) if refusal is None else None
            if refusal is None and one.name not in asked:
                refusal = f"not among impl={self.impl!r}"
            chosen = one.name == first
            found.append(Choice(name=one.name, chosen=chosen, refusal=refusal, work=work))
        return found

    def choose(self) -> Implementation[CallT]:
        """The implementation that runs; ValueError with every reason if none can."""
        asked = self._asked()
        first = self._first(asked)
        named = {one.name: one for one in self.implementations}
        if first is not None:
            return named[first]
        reasons = "; ".join(f"{name}: {named[name].refuse(self.call)}" for name in asked)
        others = [n for n, one in named.items() if n not in asked and not one.refuse(self.call)]
        hint = f"use impl={others[0]!r} or leave impl out" if others else "change what is refused"
        raise ValueError(
            f"{self.operation} needs an implementation that supports every option of the call, got "
            f"impl={self.impl!r} on {self.device.platform}: {reasons}. To go on, {hint}."
        )

    def _asked(self) -> list[str]:
        names = [one.name for one in self.implementations]
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
        named = {one.name: one for one in self.implementations}
        return next((name for name in asked if named[name].refuse(self.call) is None), None)


def device(*arrays: Any) -> Device:
    """The device that a call with these arguments will run on.

    That of the first array which is on one; under a trace that of the mesh in scope, of the
    argument's sharding, or JAX's default. `jax.sharding.use_abstract_mesh` with an `AbstractDevice`
    therefore chooses for a device that is not here, as for `jax.export`.
    """
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, Tracer):
            one = next(iter(array.devices()))
            return Device(platform=one.platform, kind=one.device_kind)
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(a).sharding.mesh for a in arrays if isinstance(a, Tracer)]
    for mesh in meshes:
        if mesh.abstract_device is not None:
            one = mesh.abstract_device
            return Device(platform=_platform(one.platform), kind=one.device_kind)
    # JAX adds its options to the class when it is imported.
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(default, str):
        default = jax.devices(default)[0]
    one = default or jax.devices()[0]
    return Device(platform=one.platform, kind=one.device_kind)


def _platform(name: str) -> str:
    """As a device names it: an AbstractDevice may say "cuda"."""
    return "gpu" if name in ("cuda", "rocm") else name
