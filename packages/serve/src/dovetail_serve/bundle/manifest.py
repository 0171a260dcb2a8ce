# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a bundle: a JSON document with the types, digests and origin of all its parts.

A bundle is a directory:

    SHA256SUMS               digest of each other file, as `sha256sum -c` reads it
    manifest.json            this document; its digest identifies the bundle
    weights.safetensors      weights by dotted name
    golden.safetensors       inputs and outputs of the example: `inputs.NAME`, `outputs.NAME`
    programs/*.stablehlo     functions as `jax.export` serializes them
    assets/*                 files for host functions

A manifest comes from elsewhere, so all of it is checked before any of it is used: every key is
known, names cannot leave the directory, sizes are bounded by the files themselves.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from dovetail_serve._decode import DecodeError, at, decode, shortened
from dovetail_serve._safetensors import FormatError, parse_json
from dovetail_serve.bundle.arrays import DTYPES
from dovetail_serve.errors import BundleError
from dovetail_serve.types import (
    BYTES,
    NAME,
    PLATFORMS,
    HostFunction,
    Platform,
    Signature,
    Tensor,
    check_name,
)

FORMAT = "dovetail-bundle"
SCHEMA = 1
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
WEIGHTS, GOLDEN = "weights.safetensors", "golden.safetensors"
PROGRAMS, ASSETS = "programs", "assets"
SYMBOLIC = "symbolic"

_SAFETENSORS = "|".join(map(re.escape, (WEIGHTS, GOLDEN)))
_FILE = re.compile(rf"{_SAFETENSORS}|(?:{PROGRAMS}|{ASSETS})/{NAME.pattern}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """An entry of a file.

    Attributes:
        bytes: Size of the file.
        sha256: Digest of the file. For a safetensors file, `sha256sum -c` alone compares it.
        header: Digest of a safetensors file before its data; None for other files.
    """

    bytes: int
    sha256: str
    header: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """An array of a safetensors file.

    Attributes:
        dtype: Name of the dtype that the program takes.
        shape: Sizes of the axes.
        sha256: Digest of the values in C order, little-endian.
        spec: Mesh axes that shard each axis of the array; None for a replicated array.
        key: Implementation of a random key, whose data the file holds; None for other arrays.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    spec: tuple[tuple[str, ...], ...] | None = None
    key: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A serialized function.

    Attributes:
        file: Its file within the bundle.
        platforms: Names of the platforms that it was lowered for.
        batch: Its number of rows, "symbolic" for any, None for inputs without a batch axis.
        calling_convention: Version of `jax.export`'s calling convention.
    """

    file: str
    platforms: tuple[str, ...]
    batch: int | str | None
    calling_convention: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """The mesh that a sharded model was exported on."""

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
    """The example's inputs and outputs.

    Attributes:
        rows: Number of rows; None without a batch axis.
        platform: Platform that computed the outputs.
        inputs: Arrays by name of the program's inputs.
        outputs: Arrays by name of the program's outputs.
    """

    rows: int | None
    platform: str
    inputs: Mapping[str, ArrayEntry]
    outputs: Mapping[str, ArrayEntry]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that is known of a bundle without its arrays.

    Attributes:
        created: Time of the export in UTC, ISO 8601.
        producer: Versions by package: dovetail-serve, jax, jaxlib.
        requires: Versions that the loader must have exactly, by package. Not empty only for
            programs with custom calls that `jax.export` does not promise to keep.
        provenance: Texts of the exporter, such as the digest of a training checkpoint.
        x64: Whether the program was traced with 64-bit types enabled.
        signature: Inputs and outputs of the program.
        before: Host function before the program, or None.
        after: Host function after it, or None.
        batch_sizes: Numbers of rows with a program of their own, ascending; empty without a batch
            axis.
        platforms: The platforms, with what is particular to each.
        programs: The serialized functions.
        symbolic: None if there is a program for any number of rows; else the reason, in a sentence.
        mesh: The mesh of a sharded model, or None.
        weights: Arrays of the weights by dotted name. `Platform.layouts` has these names, no
            patterns.
        golden: The example.
        files: Every file of the bundle but the manifest and the checksums.
    """

    created: str
    producer: Mapping[str, str]
    requires: Mapping[str, str]
    provenance: Mapping[str, str]
    x64: bool
    signature: Signature
    before: HostFunction | None
    after: HostFunction | None
    batch_sizes: tuple[int, ...]
    platforms: tuple[Platform, ...]
    programs: tuple[Program, ...]
    symbolic: str | None
    mesh: Mesh | None
    weights: Mapping[str, ArrayEntry]
    golden: Golden
    files: Mapping[str, FileEntry]

    @property
    def outer(self) -> Signature:
        """The signature with host functions: what a caller sends and receives."""
        return Signature(
            inputs=self.before.tensors if self.before else self.signature.inputs,
            outputs=self.after.tensors if self.after else self.signature.outputs,
        )

    def platform(self, name: str) -> Platform:
        """Returns the entry of a platform. Raises BundleError if the bundle has none."""
        for platform in self.platforms:
            if platform.name == name:
                return platform
        names = ", ".join(platform.name for platform in self.platforms)
        raise BundleError(
            f"the bundle must have a program for this platform, {name!r}, and has {names}; export "
            f"it for {name} too, or load it on devices of {names}"
        )

    def to_json(self) -> bytes:
        """Returns the document.

        Keys are sorted, but tensors keep their order, so that equal manifests with tensors in one
        order give equal bytes.
        """
        document = _plain({"format": FORMAT, "schema": SCHEMA, **vars(self)})
        return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def read_manifest(text: bytes) -> Manifest:
    """Parses and checks a manifest.

    Raises:
        BundleError: It is of another format or a newer schema, or an entry is wrong. The message
            gives the path of the entry.
    """
    try:
        document = parse_json(text)
    except FormatError as error:
        raise BundleError(f"{MANIFEST} {error}; export the bundle again") from error
    if document.get("format") != FORMAT:
        raise BundleError(
            f'{MANIFEST} must have "format": "{FORMAT}", got {document.get("format")!r}; give the '
            "directory of a bundle, such as repo/mlp/1"
        )
    schema = document.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise BundleError(
            f"{MANIFEST} has schema {schema!r}, and this dovetail-serve reads up to {SCHEMA}; "
            "install a newer dovetail-serve"
        )
    fields = {k: v for k, v in document.items() if k not in ("format", "schema")}
    try:
        manifest = decode(Manifest, fields)
    except DecodeError as error:
        raise BundleError(f"{MANIFEST}: {error}; export the bundle again") from error
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Checks what the types of the entries do not say. Raises BundleError."""
    _check_files(manifest)
    _check_signature(manifest)
    _check_arrays(manifest)
    _check_programs(manifest)
    _check_placement(manifest)


def _check_files(manifest: Manifest) -> None:
    programs = {program.file for program in manifest.programs}
    for name, entry in manifest.files.items():
        path = f"files.{shortened(name)}"
        if not _FILE.fullmatch(name) or (name.startswith(PROGRAMS) and name not in programs):
            _refuse(path, "must name a file of the bundle's directory that has a use")
        if entry.bytes < 0:
            _refuse(f"{path}.bytes", "must be from 0", entry.bytes)
        if not _is_digest(entry.sha256):
            _refuse(f"{path}.sha256", "must be a SHA-256 digest", entry.sha256)
        with_header = name in (WEIGHTS, GOLDEN)
        if with_header != (entry.header is not None) or not _is_digest(entry.header or "0" * 64):
            _refuse(f"{path}.header", "must be a digest for safetensors alone", entry.header)
    for name in (WEIGHTS, GOLDEN, *sorted(programs)):
        if name not in manifest.files:
            _refuse("files", f"must list {name!r}")


def _check_signature(manifest: Manifest) -> None:
    signature, sizes = manifest.signature, manifest.batch_sizes
    if not signature.inputs:
        _refuse("signature.inputs", "must not be empty")
    if list(sizes) != sorted(set(sizes)) or (sizes and sizes[0] < 1):
        _refuse("batch_sizes", "must ascend from 1", sizes)
    if bool(sizes) != signature.batched:
        _refuse("batch_sizes", "must be there for inputs with a batch axis, and only then", sizes)
    for side, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        _check_tensors(f"signature.{side}", tensors, batched=signature.batched)
        for name, tensor in tensors.items():
            if tensor.dtype == BYTES:
                _refuse(f"signature.{side}.{name}.dtype", "must be a dtype that JAX holds", BYTES)
    for side, function in (("before", manifest.before), ("after", manifest.after)):
        if function:
            _check_tensors(f"{side}.tensors", function.tensors, batched=signature.batched)


def _check_tensors(path: str, tensors: Mapping[str, Tensor], *, batched: bool) -> None:
    for name, tensor in tensors.items():
        try:
            check_name(name, "a tensor")
        except ValueError as error:
            _refuse(path, f"is refused: {error}")
        if tensor.batched != batched:
            _refuse(f"{path}.{name}.shape", "must begin with 'batch' like the others", tensor.shape)


def _check_arrays(manifest: Manifest) -> None:
    for name, entry in _arrays(manifest):
        if not _is_digest(entry.sha256):
            _refuse(f"{name}.sha256", "must be a SHA-256 digest", entry.sha256)
        if min(entry.shape, default=0) < 0:
            _refuse(f"{name}.shape", "must have sizes from 0", entry.shape)
        if entry.dtype not in DTYPES:
            _refuse(f"{name}.dtype", "must be the name of a dtype in safetensors", entry.dtype)
        if entry.key is not None and entry.dtype != "uint32":
            _refuse(f"{name}.dtype", "must be uint32, the data of a random key", entry.dtype)
        if name.startswith("golden.") and (entry.spec, entry.key) != (None, None):
            _refuse(name, "must have no spec and no key", entry)
    golden, signature = manifest.golden, manifest.signature
    if (golden.rows is not None) != signature.batched or (golden.rows or 1) < 1:
        _refuse("golden.rows", "must be from 1 with a batch axis, and null without", golden.rows)
    if golden.platform not in PLATFORMS:
        _refuse("golden.platform", f"must be one of {PLATFORMS}", golden.platform)
    for side, tensors, entries in (
        ("inputs", signature.inputs, golden.inputs),
        ("outputs", signature.outputs, golden.outputs),
    ):
        expected = {name: (t.sized(golden.rows), t.dtype) for name, t in tensors.items()}
        arrays = {name: (entry.shape, entry.dtype) for name, entry in entries.items()}
        if expected != arrays:
            _refuse(f"golden.{side}", f"must be {shortened(expected)} by the signature", arrays)


def _check_programs(manifest: Manifest) -> None:
    names = [platform.name for platform in manifest.platforms]
    if not names or len(set(names)) < len(names):
        _refuse("platforms", "must name each platform once", names)
    batches = manifest.batch_sizes or (None,)
    if manifest.symbolic is None:
        batches = (*batches, SYMBOLIC)
    present: set[tuple[str, int | str | None]] = set()
    for i, program in enumerate(manifest.programs):
        if not program.file.startswith(f"{PROGRAMS}/"):
            _refuse(f"programs.{i}.file", f"must be in {PROGRAMS}/", program.file)
        if program.batch not in batches or type(program.batch) is bool:
            _refuse(f"programs.{i}.batch", f"must be one of {batches}", program.batch)
        if program.calling_convention < 1:
            _refuse(f"programs.{i}.calling_convention", "must be from 1", program)
        for name in program.platforms:
            if name not in names or (name, program.batch) in present:
                _refuse(f"programs.{i}.platforms", f"must be among {names}, each once", program)
            present.add((name, program.batch))
        if not program.platforms:
            _refuse(f"programs.{i}.platforms", "must not be empty")
    for name in names:
        for batch in batches:
            if (name, batch) not in present:
                _refuse("programs", f"must have one for {name!r} and the batch size {batch!r}")
    if manifest.symbolic is None and not manifest.batch_sizes:
        _refuse("symbolic", "must have the reason, since inputs have no batch axis")


def _check_placement(manifest: Manifest) -> None:
    """Checks the mesh, the shardings and the layouts of weights."""
    mesh = manifest.mesh
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=False)) if mesh else {}
    if mesh and (len(sizes) != len(mesh.axis_sizes) or len(sizes) != len(mesh.axis_names)):
        _refuse("mesh", "must have one size for each name, and each name once", mesh)
    if mesh and (not sizes or min(sizes.values()) < 1):
        _refuse("mesh.axis_sizes", "must be from 1", mesh.axis_sizes)
    for name, entry in manifest.weights.items():
        if entry.spec is None:
            continue
        path = f"{at('weights', name)}.spec"
        axes = list(itertools.chain.from_iterable(entry.spec))
        if len(entry.spec) != len(entry.shape) or len(set(axes)) < len(axes):
            _refuse(path, "must have each axis of the array", entry.spec)
        if not set(axes) <= sizes.keys():
            _refuse(path, f"must have axes of the mesh, {list(sizes)}", axes)
        for size, names in zip(entry.shape, entry.spec, strict=True):
            if size % math.prod(sizes[axis] for axis in names):
                _refuse(path, f"must divide the shape {entry.shape}", entry.spec)
    for i, platform in enumerate(manifest.platforms):
        for name, order in platform.layouts.items():
            if name not in manifest.weights:
                _refuse(f"platforms.{i}.layouts", "must name a weight", name)
            if sorted(order) != list(range(len(manifest.weights[name].shape))):
                _refuse(at(f"platforms.{i}.layouts", name), "must be an order of its axes", order)


def _arrays(manifest: Manifest) -> Iterator[tuple[str, ArrayEntry]]:
    for name, entry in manifest.weights.items():
        yield at("weights", name), entry
    for name, entry in manifest.golden.inputs.items():
        yield at("golden.inputs", name), entry
    for name, entry in manifest.golden.outputs.items():
        yield at("golden.outputs", name), entry


def _is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _plain(value: Any) -> Any:
    """Returns `value` as JSON values. Optional fields that are None or empty mappings stay."""
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, Mapping):
        tensors = all(isinstance(item, Tensor) for item in value.values())
        items = value.items() if tensors else sorted(value.items())
        return {key: _plain(item) for key, item in items}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _refuse(path: str, rule: str, value: Any = None) -> NoReturn:
    came = "" if value is None else f", got {shortened(value)}"
    raise BundleError(f"{MANIFEST}: {path} {rule}{came}; export the bundle again")
