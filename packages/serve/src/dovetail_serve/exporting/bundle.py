# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Bundle`: an exported function with its weights in memory. `save` writes it as a directory."""

import dataclasses
import datetime
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail_serve._compat import platform_of
from dovetail_serve._durable import new_directory
from dovetail_serve._patterns import select
from dovetail_serve.bundle.arrays import Written, stored, write_arrays
from dovetail_serve.bundle.digest import array_digest, digest, on_all_cores
from dovetail_serve.bundle.folder import check_size, checksums
from dovetail_serve.bundle.manifest import (
    GOLDEN,
    MANIFEST,
    PROGRAMS,
    SUMS,
    WEIGHTS,
    ArrayEntry,
    FileEntry,
    Golden,
    Manifest,
    Mesh,
    read_manifest,
)
from dovetail_serve.bundle.tree import Flat
from dovetail_serve.exporting.assets import Asset, write_assets
from dovetail_serve.exporting.sharding import mesh_of, specs_of
from dovetail_serve.exporting.sharing import link_equal
from dovetail_serve.exporting.trace import Traced
from dovetail_serve.types import HostFunction, Platform, Signature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """An exported function with its weights, in memory. `save` writes it.

    Attributes:
        signature: Inputs and outputs of the program.
        platforms: The platforms.
        batch_sizes: Numbers of rows with a program of their own.
        traced: The serialized programs.
        flat: The weights.
        digests: Digests of the weights in host memory, as they were at the export, by name.
        golden: Inputs and outputs of the example.
        before: Host function before the program.
        after: Host function after it.
        assets: Files for host functions, by name.
        requires: Exact versions for the loader.
        provenance: Texts of the exporter.
        x64: Whether 64-bit types were enabled.
    """

    signature: Signature
    platforms: tuple[Platform, ...]
    batch_sizes: tuple[int, ...]
    traced: Traced
    flat: Flat
    digests: Mapping[str, str]
    golden: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    before: HostFunction | None
    after: HostFunction | None
    assets: Mapping[str, Asset]
    requires: Mapping[str, str]
    provenance: Mapping[str, str]
    x64: bool

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the bundle as a directory, all of it or nothing.

        If a version beside it has equal weights, both share one file by a hard link. Files of
        arrays are read-only, since running models on CPUs map them: never write into a version,
        and save another one.

        Args:
            path: A new directory. Its name is the version for a server: "repo/mlp/3".

        Returns:
            The digest of the manifest, "sha256:...": the identity of the bundle. It covers the
            time of the save, or SOURCE_DATE_EPOCH where the environment has it.

        Raises:
            RuntimeError: A weight in host memory or a file of `assets` has changed since the
                export, or a weight was donated.
            FileExistsError: Something is at `path`.
            OSError: The disk is full or not writable, or an asset cannot be read.
            ValueError: Names and shapes of the arrays take more than the 16 MiB that a manifest
                may have, or SOURCE_DATE_EPOCH is no time. After any error nothing is at `path`.
        """
        self._check_present()
        with new_directory(Path(path)) as folder:
            inputs, outputs = self.golden
            golden = {f"inputs.{name}": array for name, array in inputs.items()}
            golden |= {f"outputs.{name}": array for name, array in outputs.items()}
            examples = write_arrays(folder / GOLDEN, golden)
            weights = link_equal(folder / WEIGHTS, self.flat.arrays, beside=Path(path))
            if weights is None:
                weights = write_arrays(folder / WEIGHTS, self.flat.arrays)
            self._check_unchanged(weights)
            files = {WEIGHTS: _entry(weights), GOLDEN: _entry(examples)}
            (folder / PROGRAMS).mkdir()
            for name, data in self.traced.files.items():
                (folder / name).write_bytes(data)
                files[name] = FileEntry(bytes=len(data), sha256=digest(data))
            files |= write_assets(folder, self.assets)
            manifest = self._manifest(weights, examples, files)
            text = manifest.to_json()
            # As every reader does, while the fault can still be told.
            check_size(MANIFEST, len(text))
            read_manifest(text)
            (folder / MANIFEST).write_bytes(text)
            (folder / SUMS).write_bytes(checksums(manifest, text))
        return f"sha256:{digest(text)}"

    def _check_present(self) -> None:
        """Raises RuntimeError if a weight was donated since the export."""
        for name, array in self.flat.arrays.items():
            if isinstance(array, jax.Array) and array.is_deleted():
                raise RuntimeError(
                    f"weights must exist until save, got {name!r}, which was deleted or donated to "
                    "a function of jax.jit; call save before that, or export copies "
                    "(jax.tree.map(jax.numpy.copy, params))"
                )

    def _check_unchanged(self, weights: Written) -> None:
        """Raises RuntimeError if other weights were written than the results are from."""
        for name, exported in self.digests.items():
            if weights.arrays[name] != exported:
                raise RuntimeError(
                    f"weights must not change between export and save, got other values of "
                    f"{name!r}; call export again, with a copy of what changes in place "
                    "(array.copy())"
                )

    def _manifest(
        self, weights: Written, examples: Written, files: Mapping[str, FileEntry]
    ) -> Manifest:
        specs = specs_of(self.flat.arrays)
        inputs, outputs = self.golden
        batched = self.signature.batched
        mesh = mesh_of(self.flat.arrays)
        return Manifest(
            created=_created(),
            producer={name: version(name) for name in ("dovetail-serve", "jax", "jaxlib")},
            requires=self.requires,
            provenance=self.provenance,
            x64=self.x64,
            signature=self.signature,
            before=self.before,
            after=self.after,
            batch_sizes=self.batch_sizes,
            platforms=tuple(_named_layouts(p, self.flat.arrays) for p in self.platforms),
            programs=self.traced.programs,
            symbolic=self.traced.symbolic,
            mesh=None
            if mesh is None
            else Mesh(
                axis_names=tuple(map(str, mesh.axis_names)), axis_sizes=tuple(mesh.axis_sizes)
            ),
            weights={
                name: ArrayEntry(
                    dtype=array.dtype.name,
                    shape=tuple(array.shape),
                    sha256=weights.arrays[name],
                    spec=specs.get(name),
                    key=self.flat.keys.get(name),
                )
                for name, array in self.flat.arrays.items()
            },
            golden=Golden(
                rows=len(next(iter(inputs.values()))) if batched else None,
                platform=platform_of(jax.devices()[0]),
                inputs=_golden_entries(inputs, examples, "inputs."),
                outputs=_golden_entries(outputs, examples, "outputs."),
            ),
            files=files,
        )


def host_digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Returns digests of the weights that may change in place, by name.

    Those are NumPy's arrays, and JAX's on a CPU, which may share memory with one of NumPy's.
    """
    in_host = {
        name: array
        for name, array in arrays.items()
        if not isinstance(array, jax.Array)
        or [device.platform for device in array.devices()] == ["cpu"]
    }
    digests = on_all_cores(lambda array: array_digest(stored(array)), in_host.values())
    return dict(zip(in_host, digests, strict=True))


def _created() -> str:
    """Returns the time in UTC, or that of SOURCE_DATE_EPOCH, so that equal exports are equal.

    Source: the specification of SOURCE_DATE_EPOCH by the Reproducible Builds project.
    """
    seconds = os.environ.get("SOURCE_DATE_EPOCH", time.time())
    try:
        return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"SOURCE_DATE_EPOCH must be seconds since 1970, got {seconds!r}; unset it for the "
            "present time"
        ) from error


def _entry(written: Written) -> FileEntry:
    return FileEntry(bytes=written.bytes, sha256=written.sha256, header=written.header)


def _golden_entries(
    arrays: Mapping[str, np.ndarray], written: Written, prefix: str
) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(
            dtype=array.dtype.name,
            shape=tuple(array.shape),
            sha256=written.arrays[f"{prefix}{name}"],
        )
        for name, array in arrays.items()
    }


def _named_layouts(platform: Platform, weights: Mapping[str, Any]) -> Platform:
    """Returns the platform with the names of weights in place of patterns.

    A pattern such as `{0..999999999}` in a manifest from elsewhere would fill a reader's memory.
    """
    layouts = {
        name: tuple(order)
        for pattern, order in platform.layouts.items()
        for name in select(pattern, weights)
    }
    return dataclasses.replace(platform, layouts=layouts)
