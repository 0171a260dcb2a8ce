# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The directory of a bundle: opened, read and verified.

`SHA256SUMS` follows from the manifest byte for byte, so a flipped byte in either one is found. Each
byte of a safetensors file belongs to its header or to one array; their digests cover the file, and
arrays are hashed on all cores, where one digest of the file would take one. That digest is for
`sha256sum -c` and is not compared here. A writer can lie about it, but not about the arrays.
"""

import dataclasses
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from dovetail_serve._safetensors import FormatError
from dovetail_serve.bundle.arrays import Place, map_arrays, places, read_array, unstored
from dovetail_serve.bundle.digest import (
    array_digest,
    digest,
    file_digest,
    on_all_cores,
    range_digest,
)
from dovetail_serve.bundle.manifest import (
    ASSETS,
    GOLDEN,
    MANIFEST,
    SUMS,
    WEIGHTS,
    ArrayEntry,
    Manifest,
    read_manifest,
)
from dovetail_serve.bundle.strays import stray
from dovetail_serve.errors import BundleError, IntegrityError

_log = logging.getLogger("dovetail_serve")
# Larger manifests are refused unread. An array takes 230 bytes, 300 if it is sharded, so this holds
# 50,000 of them. Llama 3 405B has 1,137, and DeepSeek-V3 about 46,000 with each expert apart.
# Hostile JSON takes up to 30 times its size in memory, here 0.5 GB.
MAX_MANIFEST_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a verification without a difference.

    Attributes:
        digest: Digest of the manifest, "sha256:...": the identity of the bundle.
        files: Number of files whose bytes were compared.
        arrays: Number of arrays whose digests were compared.
        bytes: Sum of the files' sizes.
    """

    digest: str
    files: int
    arrays: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.files} files with {self.arrays} arrays, {self.bytes:,} bytes, are as they were "
            f"written\n  {self.digest}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """An opened bundle: its manifest has been checked, its other files have not been read.

    Attributes:
        path: The directory, absolute and without links.
        manifest: The manifest.
        digest: Digest of the manifest's bytes, "sha256:...".
        held: Contents of files in memory, by name. `read` takes them from here.
    """

    path: Path
    manifest: Manifest
    digest: str
    held: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def assets(self) -> dict[str, Path]:
        """Paths of the files for host functions, by name."""
        return {
            name.removeprefix(f"{ASSETS}/"): self.path / name
            for name in self.manifest.files
            if name.startswith(f"{ASSETS}/")
        }

    def arrays(
        self,
        file: str,
        names: Iterable[str] | None = None,
        *,
        mapped: bool = False,
        verify: bool = False,
    ) -> dict[str, np.ndarray]:
        """Returns arrays of "weights.safetensors" or "golden.safetensors", read-only.

        Args:
            file: The file.
            names: Names of the arrays; None for all.
            mapped: Map the file. Then the process ends when it is cut short, and a write into it
                changes the arrays. False reads it into memory.
            verify: Compare what was read with the digests.

        Raises:
            IntegrityError: The file's header does not fit the manifest, or an array differs.
        """
        entries, path = dict(array_entries(self.manifest, file)), self.path / file
        by_name = self.places(file)
        names = [*by_name] if names is None else [*names]
        if mapped:
            arrays = map_arrays(path, {name: by_name[name] for name in names})
            return {name: unstored(arrays[name], entries[name].dtype) for name in names}

        def read(name: str) -> np.ndarray:
            try:
                values = read_array(path, by_name[name])
            except FormatError as error:
                raise _damaged(self.path, file, str(error), name) from error
            if verify and array_digest(values) != entries[name].sha256:
                raise _damaged(self.path, file, _differs(name), name)
            return unstored(values, entries[name].dtype)

        return dict(zip(names, on_all_cores(read, names), strict=True))

    def places(self, file: str) -> dict[str, Place]:
        """Returns the places of a file's arrays. Raises IntegrityError as `arrays`."""
        entries = dict(array_entries(self.manifest, file))
        try:
            by_name = places(self.path / file, {k: e.dtype for k, e in entries.items()})
        except FormatError as error:
            raise _damaged(self.path, file, str(error)) from error
        for name, entry in entries.items():
            if by_name[name].shape != entry.shape:
                raise _damaged(self.path, file, f"array {name!r} has another shape", array=name)
        return by_name

    def read(self, file: str) -> bytes:
        """Returns the bytes of a file after comparing them with its digest.

        Raises IntegrityError if they differ.
        """
        if file in self.held:
            return self.held[file]
        data = (self.path / file).read_bytes()
        if digest(data) != self.manifest.files[file].sha256:
            raise _damaged(self.path, file, "its bytes differ from its digest")
        return data

    def hold(self, files: Iterable[str]) -> "Folder":
        """Returns the bundle with files in memory, to read when the directory is gone or replaced.

        Raises as `read`.
        """
        return dataclasses.replace(self, held={file: self.read(file) for file in files})

    def check_same(self) -> None:
        """Raises IntegrityError if another bundle took this one's place since it was opened.

        Files are opened one by one, so a model could have the weights of one and the digest of
        the other.
        """
        if f"sha256:{file_digest(self.path / MANIFEST)}" != self.digest:
            raise IntegrityError(
                f"the bundle {str(self.path)!r} must stay as it is while it is loaded, and "
                f"{MANIFEST} was replaced meanwhile; load it again, and save a new version beside "
                "it",
                file=MANIFEST,
            )


def open_bundle(path: str | os.PathLike[str]) -> Folder:
    """Opens a bundle: reads its checksums and its manifest, and looks at its other files.

    Raises:
        FileNotFoundError: There is no bundle at `path`.
        BundleError: It is of another format or a newer schema.
        IntegrityError: Manifest and checksums differ; a file is missing, of another size, unknown,
            or a link.
    """
    # Resolved once: files are read later too, and meanwhile the process may change its directory,
    # and a link may be moved to another version.
    given, path = os.fspath(path), Path(os.path.realpath(path))
    if path.is_file():
        raise BundleError(
            f"a bundle is a directory, got the file {given!r}; unpack an archive first"
        )
    if not os.path.lexists(path / MANIFEST):
        raise FileNotFoundError(
            f"a bundle must have a {MANIFEST}, and {given!r} has none; give the directory of "
            "a bundle, such as repo/mlp/1"
        )
    for name in (MANIFEST, SUMS):
        if not _is(path / name, stat.S_ISREG):
            raise _damaged(path, name, "it must be a file, and is missing or a link")
        check_size(name, (path / name).stat().st_size)
    text = (path / MANIFEST).read_bytes()
    sums = (path / SUMS).read_bytes()
    if f"{digest(text)}  {MANIFEST}\n".encode() not in sums:
        raise _damaged(path, MANIFEST, f"its digest is not the one in {SUMS}")
    manifest = read_manifest(text)
    if sums != checksums(manifest, text):
        raise _damaged(path, SUMS, f"it differs from the digests in {MANIFEST}")
    _check_listing(path, manifest)
    return Folder(path=path, manifest=manifest, digest=f"sha256:{digest(text)}")


def check_size(file: str, size: int) -> None:
    """Raises BundleError if the manifest or the checksums have more bytes than a model needs."""
    if size > MAX_MANIFEST_BYTES:
        raise BundleError(
            f"{file} must have at most {MAX_MANIFEST_BYTES} bytes, enough for 50,000 weights, got "
            f"{size}; stack the weights of equal layers in one array, and export the bundle again"
        )


def checksums(manifest: Manifest, text: bytes) -> bytes:
    """Returns the content of SHA256SUMS for a manifest whose bytes are `text`."""
    digests = {name: entry.sha256 for name, entry in manifest.files.items()}
    digests[MANIFEST] = digest(text)
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Region:
    """Bytes of a file with a digest of their own: a whole file, or an array of one."""

    file: str
    array: str | None
    start: int
    stop: int
    sha256: str


def verify_folder(folder: Folder, *, without: Collection[str] = ()) -> Report:
    """Compares every byte with the digests. Raises IntegrityError for the first that differs.

    Args:
        folder: The bundle.
        without: Names of weights that are left out, since they are compared when they are read.
    """
    regions, hashed = [], 0
    for file in (WEIGHTS, GOLDEN):
        by_name = folder.places(file)
        header_bytes = min((place.start for place in by_name.values()), default=0)
        header_bytes = header_bytes or folder.manifest.files[file].bytes
        if range_digest(folder.path / file, 0, header_bytes) != folder.manifest.files[file].header:
            raise _damaged(folder.path, file, "its header differs from its digest")
        for name, entry in array_entries(folder.manifest, file):
            hashed += 1
            if file == GOLDEN or name not in without:
                start, stop = by_name[name].start, by_name[name].stop
                regions.append(
                    _Region(file=file, array=name, start=start, stop=stop, sha256=entry.sha256)
                )
    for file, entry in folder.manifest.files.items():
        if file not in (WEIGHTS, GOLDEN):
            regions.append(
                _Region(file=file, array=None, start=0, stop=entry.bytes, sha256=entry.sha256)
            )
    # The largest first, so that no core is left with a large array while the others idle.
    regions.sort(key=lambda region: region.start - region.stop)

    def computed(region: _Region) -> str:
        return range_digest(folder.path / region.file, region.start, region.stop)

    for region, sha256 in zip(regions, on_all_cores(computed, regions), strict=True):
        if sha256 != region.sha256:
            reason = (
                "its bytes differ from the digest"
                if region.array is None
                else _differs(region.array)
            )
            raise _damaged(folder.path, region.file, reason, region.array)
    own = (MANIFEST, SUMS)
    return Report(
        digest=folder.digest,
        files=len(folder.manifest.files) + len(own),
        arrays=hashed,
        bytes=sum((folder.path / name).stat().st_size for name in own)
        + sum(entry.bytes for entry in folder.manifest.files.values()),
    )


def array_entries(manifest: Manifest, file: str) -> Iterator[tuple[str, ArrayEntry]]:
    """Yields the names of a file's arrays, as the file has them, and their entries."""
    if file == WEIGHTS:
        yield from manifest.weights.items()
        return
    for name, entry in manifest.golden.inputs.items():
        yield f"inputs.{name}", entry
    for name, entry in manifest.golden.outputs.items():
        yield f"outputs.{name}", entry


def _check_listing(path: Path, manifest: Manifest) -> None:
    """Compares names, kinds and sizes with the manifest, before any content is read."""
    folders = {Path(name).parent.as_posix() for name in manifest.files} - {"."}
    present = {}
    for folder in (".", *sorted(folders)):
        if folder != "." and not _is(path / folder, stat.S_ISDIR):
            raise _damaged(path, folder, "it must be a directory, and is missing or a link")
        with os.scandir(path / folder) as items:  # closed if a file vanishes meanwhile
            for item in items:
                name = item.name if folder == "." else f"{folder}/{item.name}"
                present[name] = item.stat(follow_symlinks=False)
    strays: dict[str, str] = {}
    for name in sorted(present.keys() - manifest.files.keys() - folders - {MANIFEST, SUMS}):
        kind = stray(name.rpartition("/")[2])
        if kind is None:
            raise _damaged(path, _printable(name), f"{MANIFEST} does not list it", mend="delete it")
        strays[_printable(name)] = kind
    for name, entry in manifest.files.items():
        # A temporary file tells how it came to that.
        base = name.rpartition("/")[2]
        beside = "".join(f"; {s} is {kind}" for s, kind in strays.items() if base in s)
        if name not in present or not stat.S_ISREG(present[name].st_mode):
            raise _damaged(path, name, f"it must be a file, and is missing or a link{beside}")
        if (size := present[name].st_size) != entry.bytes:
            raise _damaged(path, name, f"it has {size} bytes, not {entry.bytes}{beside}")
    for name, kind in strays.items():
        _log.warning("ignored path=%s reason=it is %s", path / name, kind)


def _differs(array: str) -> str:
    return f"array {array!r} differs from the digest"


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Tests what is at `path` itself, not where a link there leads."""
    try:
        return kind(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _printable(name: str) -> str:
    """Returns a name of the file system with its odd bytes replaced."""
    return os.fsencode(name).decode(errors="replace")


def _damaged(
    path: Path,
    file: str,
    reason: str,
    array: str | None = None,
    *,
    mend: str = "copy it again from where it was exported",
) -> IntegrityError:
    return IntegrityError(
        f"the bundle {str(path)!r} is damaged in {file}: {reason}; {mend}",
        file=file,
        array=array,
    )
