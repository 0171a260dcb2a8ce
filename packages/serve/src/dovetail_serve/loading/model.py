# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`load`: a bundle becomes a callable model on this machine's devices."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np

from dovetail_serve import _elsewhere
from dovetail_serve._compat import platform_of
from dovetail_serve.bundle.folder import Folder, Report, open_bundle, verify_folder
from dovetail_serve.bundle.golden import SelfTest
from dovetail_serve.bundle.manifest import GOLDEN, Manifest
from dovetail_serve.loading import aot
from dovetail_serve.loading.call import call_rows, read_only
from dovetail_serve.loading.check import check_inputs, check_results, given_function
from dovetail_serve.loading.memory import WeightMemory
from dovetail_serve.loading.programs import check_requirements, compile_program, options_of
from dovetail_serve.loading.self_test import Programs, compiled
from dovetail_serve.loading.weights import (
    formats,
    load_weights,
    mesh_on,
    shardings,
    share_keys,
    unconverted,
    verify_weights,
)
from dovetail_serve.types import Array, HostCall, Signature

Verify = Literal["full", "files", "none"]


@_elsewhere.call
def verify(path: str | os.PathLike[str]) -> Report:
    """Compares every byte of a bundle with its digests.

    Args:
        path: The directory of the bundle.

    Returns:
        Numbers of files, arrays and bytes, and the bundle's digest.

    Raises:
        FileNotFoundError: There is no bundle.
        BundleError: It is of another format or a newer schema.
        IntegrityError: A byte differs. The message names the file and the array.
    """
    return verify_folder(open_bundle(path))


@_elsewhere.load
def load(
    path: str | os.PathLike[str],
    *,
    verify: Verify = "full",
    devices: Sequence[Any] | None = None,
    functions: Mapping[str, HostCall] | None = None,
    share: Sequence["Model"] = (),
    sidecar: bool = True,
    map_weights: bool = False,
    memory: WeightMemory | None = None,
) -> "Model":
    """Loads a bundle onto this machine's devices.

    Weights are read into memory. The directory may then be changed, renamed or deleted, unless a
    host function reads assets from it.

    Args:
        path: The directory of the bundle. A link is followed once, and may then be moved.
        verify: "full" compares every byte with its digest, compiles every program, and compares
            its results of the example on this device with the stored ones. "files" compares the
            bytes alone. "none" compares those of the manifest and the programs.
        devices: Devices to use; a sharded model takes as many as it was exported for, others take
            the first. Default: `jax.local_devices()`, whatever `jax_default_device` is.
        functions: Host functions by their names in the bundle.
        share: Loaded models, such as older versions. Their weights with equal digests on the same
            devices are used and not loaded again.
        sidecar: Use the programs of `precompile` on this machine, and compile the
            others. False compiles all.
        map_weights: On CPUs, take the map of their file for the weights. It needs no memory of its
            own, and the file must stay as it is while the model is in use: cut short, it ends this
            process (SIGBUS), and a write into it changes the answers.
        memory: Bounds the weights in memory of several models, as that of a server. Default: 75% of
            this machine's for this model alone.

    Returns:
        The model. Call it with arrays by name.

    Raises:
        FileNotFoundError: There is no bundle.
        BundleError: It cannot be used here: another platform, a newer producer, too few devices.
        IntegrityError: A byte or a result differs, or the bundle was replaced meanwhile.
        MemoryExceeded: The weights do not fit in memory.
        TypeError: `devices` is a single device.
        ValueError: A host function is missing, `devices` is empty, or `verify` is none of the
            three.

    Example:

        >>> model = load(path)  # doctest: +SKIP
        >>> model(x=np.ones((3, 4), "float32"))["y"].shape  # doctest: +SKIP
        (3, 10)
    """
    if isinstance(devices, jax.Device):
        raise TypeError(
            f"devices must be a sequence, got devices={devices!r}; write devices=[device]"
        )
    if verify not in get_args(Verify):
        raise ValueError(
            f"verify must be one of {', '.join(map(repr, get_args(Verify)))}, got "
            f"verify={verify!r}; write verify='full'"
        )
    devices = jax.local_devices() if devices is None else list(devices)
    if not devices:
        raise ValueError("devices must not be empty, got devices=[]; leave it out for JAX's own")
    folder = open_bundle(path)
    check_requirements(folder.manifest)
    try:
        model = Model(
            folder,
            devices=devices,
            functions=functions or {},
            share=share,
            sidecar=sidecar,
            verify=verify != "none",
            memory=None if map_weights else memory or WeightMemory(),
        )
    finally:
        folder.check_same()  # the bytes of another bundle are no damage
    if verify == "full":
        model._prove()
    return model


class Model:
    """A loaded bundle, made by `load`. Threads may call it at the same time.

    Args:
        folder: The bundle.
        devices: Candidates; an attribute with the devices in use.
        functions, share, sidecar: As in `load`.
        verify: Compare every byte with its digest.
        memory: Counts the bytes of the weights; None to map them.

    Attributes:
        manifest: The manifest of the bundle.
        digest: The bundle's identity, "sha256:...".
        signature: Inputs and outputs of a call, host functions included.
        batch_sizes: Numbers of rows with a program of their own, ascending; empty without a batch
            axis.
        platform: Name of its platform.
        assets: Paths of the files for host functions, by name.
        maps_weights: Whether weights may be the map of their file.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        devices: Sequence[Any],
        functions: Mapping[str, HostCall],
        share: Sequence["Model"] = (),
        sidecar: bool = False,
        verify: bool = True,
        memory: WeightMemory | None = None,
    ) -> None:
        manifest = folder.manifest
        self.manifest: Manifest = manifest
        self.digest = folder.digest
        self.signature: Signature = manifest.outer
        self.batch_sizes = manifest.batch_sizes
        self.platform = platform_of(devices[0])
        self.assets = folder.assets
        self._before = given_function(manifest.before, functions)
        self._after = given_function(manifest.after, functions)
        self._target = manifest.platform(self.platform)
        mesh = mesh_on(manifest, devices)
        self.devices = list(devices[:1]) if mesh is None else list(mesh.devices.flat)
        placed, self._arguments = shardings(manifest, mesh, devices[0])
        self._formats = formats(placed, self._target)
        self._share_keys = share_keys(manifest, self._formats, self._target)
        self.maps_weights = memory is None and self.platform == "cpu"
        shared = {m._share_keys[n]: array for m in share for n, array in m._weights.items()}
        taken = {n: shared[key] for n, key in self._share_keys.items() if key in shared}
        with options_of(manifest):
            self._weights = load_weights(
                folder, self._formats, self._target, taken=taken, verify=verify, memory=memory
            )
        # In memory: sizes are compiled when they are first called, and the directory may be gone.
        self._folder = folder.hold(
            program.file for program in manifest.programs if self.platform in program.platforms
        )
        self._golden = folder.arrays(GOLDEN, verify=verify)
        self._sidecar = sidecar
        self._compiled: dict[int | None, Any] = {}
        self._precompiled: set[int | None] = set()
        self._proved: Mapping[int | None, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, /, **inputs: Array) -> dict[str, np.ndarray]:
        """Returns the outputs for any number of rows: padded to a size, or split over several.

        Another size adds sums in another order, so a row's results move within rounding with
        the number of rows beside it.

        Args:
            **inputs: Arrays by name, of the dtypes of `signature`. With no rows, nothing runs.

        Returns:
            NumPy arrays by name. They own their memory.

        Raises:
            RequestError: A name, a dtype or a shape differs from `signature`.
            ExecutionError: A host function has returned something else than the bundle says.
        """
        rows = check_inputs(self.signature, inputs)
        if rows == 0:
            return call_rows(
                self.execute,
                inputs,
                rows=0,
                batch_sizes=self.batch_sizes,
                outputs=self.signature.outputs,
            )
        outputs = self.after(self.run(self.before(inputs, rows), rows), rows)
        if self._after is None:
            return outputs
        # A host function may return its inputs, or the same buffer each time.
        return {name: np.array(value) for name, value in outputs.items()}

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Model must stay in its process, since it has programs and arrays on devices, got a "
            "call of pickle or copy; send the path of its bundle, and call load(path) there"
        )

    def before(self, inputs: Mapping[str, Array], rows: int | None) -> Mapping[str, Any]:
        """Returns the program's inputs: the result of the host function before it, if any.

        Args:
            inputs: Inputs of a call, checked by `check_inputs`.
            rows: Their number of rows; None without a batch axis.

        Raises:
            ExecutionError: The function has returned something else than the bundle says.
        """
        function = self.manifest.before
        if function is None or self._before is None:
            return inputs
        results = self._before(read_only(inputs), self.assets)
        check_results(function, results, rows, self.manifest.signature.inputs)
        return results

    def after(self, outputs: dict[str, np.ndarray], rows: int | None) -> dict[str, np.ndarray]:
        """Returns the outputs of a call: the result of the host function after the program, if any.

        Args:
            outputs: Outputs of the program.
            rows: Their number of rows; None without a batch axis.

        Raises:
            ExecutionError: The function has returned something else than the bundle says.
        """
        function = self.manifest.after
        if function is None or self._after is None:
            return outputs
        results = self._after(read_only(outputs), self.assets)
        check_results(function, results, rows, self.signature.outputs)
        return dict(results)

    @jax.transfer_guard_device_to_host("allow")
    def run(self, inputs: Mapping[str, Array], rows: int | None) -> dict[str, np.ndarray]:
        """Returns the program's outputs for any number of rows, without host functions.

        Args:
            inputs: The program's inputs, checked by `check_inputs`.
            rows: Their number of rows; None without a batch axis.
        """
        if rows is None or rows in self.batch_sizes:
            return self.execute({name: self._placed(value) for name, value in inputs.items()}, rows)
        return call_rows(
            self._execute,
            inputs,
            rows=rows,
            batch_sizes=self.batch_sizes,
            outputs=self.manifest.signature.outputs,
        )

    @jax.transfer_guard_device_to_host("allow")
    def execute(self, inputs: Mapping[str, Array], rows: int | None) -> dict[str, np.ndarray]:
        """Runs the program for exactly `rows` rows, without host functions, and waits for it.

        Args:
            inputs: The program's inputs, of its dtypes, with `rows` rows.
            rows: One of `batch_sizes`, or None without a batch axis. Another number runs the
                program for any number of rows, if the bundle has one, and compiles it first.

        Returns:
            The program's outputs. They own their memory.
        """
        # np.array copies: np.asarray would give a view of XLA's buffer.
        return {name: np.array(value) for name, value in self._execute(inputs, rows).items()}

    def compile(self, rows: int | None) -> Any:
        """Compiles the program for `rows` rows, once, and returns the executable.

        Raises:
            BundleError: There is no program for it, or this JAX cannot read it.
            IntegrityError: Its bytes differ from its digest; or, after a load with verify="full",
                its results of the example from the stored ones.
        """
        with self._lock:
            if rows not in self._compiled:
                program = self._compile(rows)
                if self._proved:
                    reference = next(iter(self._proved.items()))
                    self._self_test(dict([reference, (rows, program)])).check()
                self._compiled[rows] = program
            return self._compiled[rows]

    def golden(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the inputs and stored outputs of the example, those of the program, by name."""
        arrays, golden = self._golden, self.manifest.golden
        return (
            {name: arrays[f"inputs.{name}"] for name in golden.inputs},
            {name: arrays[f"outputs.{name}"] for name in golden.outputs},
        )

    def self_test(self) -> SelfTest:
        """Compares the example's results by each program on this device with the stored ones.

        Programs that are not compiled yet are; host functions do not take part.
        `SelfTest.check` raises IntegrityError for a failure.
        """
        return self._self_test(compiled(self.manifest, self.compile))

    def _self_test(self, programs: Mapping[int | None, Any]) -> SelfTest:
        tested = Programs(
            self._folder,
            self.platform,
            example=self.golden(),
            weights=self._weights,
            compiled=programs,
            precompiled=self._precompiled,
        )
        return tested.self_test()

    def _prove(self) -> None:
        """Tests the programs now, and each later one before its first results."""
        programs = compiled(self.manifest, self.compile, precompiled=self._precompiled)
        self._self_test(programs).check()
        self._proved = programs

    def verify(self) -> int:
        """Compares the weights in memory with their digests; a model may be in use meanwhile.

        Returns:
            The number of arrays.

        Raises:
            BundleError: The platform converts its weights, so they have no stored digests.
            IntegrityError: An array differs. The message names it.
        """
        return verify_weights(self._weights, self.manifest.weights)

    @property
    def unconverted(self) -> dict[str, jax.Array]:
        """Weights with the dtype of their file, which are its map if `maps_weights`."""
        return unconverted(self._weights, self.manifest.weights)

    def shares(self, other: "Model") -> bool:
        """Whether it uses weights of another model, or the other way round."""
        theirs = set(map(id, other._weights.values()))
        return any(id(array) in theirs for array in self._weights.values())

    def _execute(self, inputs: Mapping[str, Array], rows: int | None) -> Mapping[str, jax.Array]:
        program = self._compiled.get(rows) or self.compile(rows)
        with jax.transfer_guard_host_to_device("allow"), jax.enable_x64(self.manifest.x64):
            return program(self._weights, inputs)

    def _placed(self, value: Array) -> Array:
        """Returns an array as the program takes it; one of other devices by way of the host."""
        if isinstance(value, np.ndarray) or value.sharding == self._arguments:
            return value
        return np.asarray(value)

    def _compile(self, rows: int | None) -> Any:
        if self._sidecar and (rows is None or rows in self.batch_sizes):
            ready = aot.load_executable(self._folder, rows, devices=self.devices)
            if ready is not None:
                self._precompiled.add(rows)
                return ready
        return compile_program(
            self._folder, self.platform, rows, weights=self._formats, inputs=self._arguments
        )
