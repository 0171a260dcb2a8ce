# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Selection of an implementation for an operation, with the reasons against the others.

An operation has a list of implementations, best first. Each one reports from abstract arguments
alone (shapes, dtypes, options, device) why it cannot give the documented result, forward and
backward. The first one without a reason runs, or the one that a tuning file names for the call. No
implementation is tried and caught: an exception in a kernel is a bug and is raised, and the
selection is made before tracing starts.
"""

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import jax
from jax.core import Tracer

from dovetail_kernels import measured
from dovetail_kernels.mesh import is_single
from dovetail_kernels.precision import describe_precision
from dovetail_kernels.symbolic import has_symbolic_sizes

CallT = TypeVar("CallT")
# As JAX names them: "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB".
_HOPPER = re.compile(r"\bG?H(100|200|20|800)\b")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """The device of an operation.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        kind: JAX's `device_kind`.
    """

    platform: str
    kind: str


class Call:
    """Static facts of a call: the base of each operation's class."""

    _FACTS: ClassVar[frozenset[str]]  # fields that every call has; all others are options
    dtype: Any

    @property
    def precision(self) -> str:
        """Precision of the products in words."""
        return describe_precision(self.dtype)

    @property
    def pinned(self) -> str | None:
        """Why no tuning file changes the implementation of this call, or None."""
        return None

    @property
    def options(self) -> frozenset[str]:
        """Names of the options in use, such as "causal". An implementation refuses unknown ones."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]  # subclasses are
        names = {field.name for field in fields} - self._FACTS
        return frozenset(name for name in names if getattr(self, name) not in (None, False, ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Cost of one forward call. An upper bound if values (lengths, segments) decide.

    Attributes:
        flops: Floating-point operations of the matrix products. An operation without products
            counts additions, multiplications, comparisons and functions such as exp, one each.
        bytes: Bytes of arguments and results, counted once, and of intermediate arrays written to
            memory and read again.
        peak_bytes: Bytes of the temporary arrays of one forward call when they are largest, without
            arguments and results.
    """

    flops: int
    bytes: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation(Generic[CallT]):
    """One way to compute an operation.

    The functions are static under `jax.jit`: make one object at the top of a module. Each further
    object is compiled anew.

    Attributes:
        name: Its name, as in `impl`.
        refuse: Returns the reason why it cannot do a call, in words after "NAME: ", or None. Pure.
        work: Returns the cost of a call. Called only if `refuse` returns None.
        run: Returns `run(call, inputs)`, the results as the operation's inputs class documents
            them. Traced under `jax.jit`. For sharded arrays `inputs` are those of one shard, and
            `call` has their shapes.
    """

    name: str
    refuse: Callable[[CallT], str | None]
    work: Callable[[CallT], Work]
    run: Callable[[CallT, Any], Any]

    def __post_init__(self) -> None:
        try:
            hash(self)
        except TypeError as error:
            raise TypeError(
                "refuse, work and run of an Implementation must be hashable, got "
                f"name={self.name!r} with an {error}. Use functions, or a frozen dataclass with "
                "__call__."
            ) from None


Impl = str | Implementation[Any] | Sequence[str | Implementation[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The state of one implementation for one call.

    Attributes:
        name: Name of the implementation.
        selected: Whether it runs.
        refusal: Reason why it cannot run or is not requested. None otherwise.
        reason: The state in words: why it is selected, after which one it is able, or the refusal.
        work: Cost of the call. None if the implementation cannot do it, or a size is symbolic.
    """

    name: str
    selected: bool
    refusal: str | None
    reason: str
    work: Work | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Generic[CallT]):
    """One call of an operation before it runs.

    Attributes:
        operation: Name of the operation, for error messages.
        call: The call's shapes, dtypes and options.
        device: The device of the call.
        implementations: All implementations of the package, best first.
        impl: Implementations requested by the caller, by name or as objects, in order of
            preference. None for all of the package.
        arrays: Arguments that may be sharded. A tuning file is for calls on one device.
    """

    operation: str
    call: CallT
    device: Device
    implementations: Sequence[Implementation[CallT]]
    impl: Impl | None
    arrays: Sequence[Any] = ()

    def choices(self) -> list[Choice]:
        """Returns the state of every implementation, best first. At most one is selected.

        Implementations of the caller, in `impl`, come before those of the package.

        Raises:
            ValueError: `impl` is empty, has an unknown name, or a name for two implementations.
        """
        requested, choices = self._requested(), []
        symbolic = has_symbolic_sizes(self.call)
        selected = self._selected(requested)
        own = [each for each in requested if each not in self.implementations]
        for implementation in (*own, *self.implementations):
            refusal = implementation.refuse(self.call)
            work = None if refusal is not None or symbolic else implementation.work(self.call)
            if refusal is None and implementation not in requested:
                refusal = f"not among impl={self._impl_words()}"
            reason = refusal
            if implementation == selected:
                reason = f"selected: {self._preference()}"
            elif reason is None and selected is not None:
                reason = f"able, after {selected.name}"
            choices.append(
                Choice(
                    name=implementation.name,
                    selected=implementation == selected,
                    refusal=refusal,
                    reason=str(reason),
                    work=work,
                )
            )
        return choices

    def choose(self) -> Implementation[CallT]:
        """Returns the first requested implementation without a refusal.

        Raises:
            ValueError: `impl` is empty, has an unknown name or a name for two implementations, or
                every requested implementation refuses. The message has every reason.
        """
        requested = self._requested()
        selected = self._selected(requested)
        if self._tunable():
            measured.record(self.operation, self.call)
        if selected is not None:
            return selected
        reasons = "; ".join(f"{each.name}: {each.refuse(self.call)}" for each in requested)
        others = [
            each.name
            for each in self.implementations
            if each not in requested and not each.refuse(self.call)
        ]
        hint = f"use impl={others[0]!r} or leave impl out" if others else "change what is refused"
        raise ValueError(
            f"{self.operation} needs an implementation that supports every option of the call, got "
            f"impl={self._impl_words()} on {self.device.platform}: {reasons}. To go on, {hint}."
        )

    def _requested(self) -> list[Implementation[CallT]]:
        if self.impl is None:
            return list(self.implementations)
        named = {implementation.name: implementation for implementation in self.implementations}
        requested: list[str | Implementation[CallT]] = (
            [self.impl] if isinstance(self.impl, str | Implementation) else list(self.impl)
        )
        unknown = [
            each
            for each in requested
            if not isinstance(each, Implementation) and each not in list(named)
        ]
        if unknown or not requested:
            raise ValueError(
                f"impl must name implementations of {self.operation}, {list(named)}, got "
                f"impl={self._impl_words()}. Use one of them, or leave it out."
            )
        resolved = [named[each] if isinstance(each, str) else each for each in requested]
        for each in resolved:
            if named.setdefault(each.name, each) != each:
                raise ValueError(
                    f"implementations of {self.operation} must differ in name, {list(named)}, got "
                    f"another Implementation with name={each.name!r}. Give it a name of its own."
                )
        return resolved

    def _selected(self, requested: Sequence[Implementation[CallT]]) -> Implementation[CallT] | None:
        winner, _ = self._measured()
        return winner or next((each for each in requested if not each.refuse(self.call)), None)

    def _preference(self) -> str:
        if self.impl is not None:
            return f"first able of impl={self._impl_words()}"
        if len(self.implementations) == 1:
            return "the only one"
        winner, words = self._measured()
        if winner is not None:
            return words
        return "; ".join(filter(None, ("first able, in order of preference", words)))

    def _tunable(self) -> bool:
        if self.impl is not None or not self.arrays or not measured.is_in_use():
            return False
        pinned = not isinstance(self.call, Call) or self.call.pinned is not None
        return not pinned and not has_symbolic_sizes(self.call) and is_single(*self.arrays)

    def _measured(self) -> tuple[Implementation[CallT] | None, str]:
        """Returns the winner by the tuning file in use, or None, and the reason in words."""
        line = measured.look_up(self.operation, self.call) if self._tunable() else None
        name, words = line or (None, "")
        winner = next((each for each in self.implementations if each.name == name), None)
        if winner is None:
            return None, words if name is None else f"a tuning file names {name!r}, which is none"
        refusal = winner.refuse(self.call)
        return (winner, words) if refusal is None else (None, f"{name} {words}, but: {refusal}")

    def _impl_words(self) -> str:
        """Returns `impl` as typed, with the names of objects."""
        if isinstance(self.impl, Implementation):
            return repr(self.impl.name)
        if self.impl is None or isinstance(self.impl, str):
            return repr(self.impl)
        names = [each.name if isinstance(each, Implementation) else each for each in self.impl]
        return repr(type(self.impl)(names) if isinstance(self.impl, list | tuple) else names)


def run(operation: str, implementation: Implementation[CallT], call: CallT, inputs: Any) -> Any:
    """Returns `implementation.run(call, inputs)`, with its name in the metadata of the program.

    Profiles and compiled programs then have "OPERATION/IMPLEMENTATION" in the names of operations,
    forward and backward.

    Args:
        operation: Name of the operation.
        implementation: The selected implementation.
        call: The call, of the shapes of `inputs`.
        inputs: The arrays, as documented by the operation's inputs class.
    """
    with jax.named_scope(operation), jax.named_scope(implementation.name):
        return implementation.run(call, inputs)


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


def refuse_beside_hopper(device: Device) -> str | None:
    """Returns why a kernel of ours for Hopper GPUs cannot run on a device, or None."""
    if device.platform != "gpu" or not _HOPPER.search(device.kind):
        return (
            "needs a Hopper GPU (H100, H200, GH200), got "
            f"platform={device.platform!r}, kind={device.kind!r}"
        )
    if _missing() is not None:
        return f"needs {_missing()}, which this JAX imports for GPU kernels: pip install absl-py"
    return None


@functools.cache
def _missing() -> str | None:
    """Returns the missing undeclared dependency of JAX 0.10's GPU kernels, or None if present."""
    try:
        importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    except ModuleNotFoundError as error:
        return error.name
    return None
