# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files at a URL, by fsspec: s3://, gs://, hf://, memory:// and its other file systems.

Every call has a deadline, because a remote call can hang for ever, and is repeated with a growing,
random delay. Nothing is read that was not verified: a file is fetched beside its place, compared
with its size and digest, and renamed. Credentials and endpoints are fsspec's configuration.
"""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dovetail_data._arguments import is_remote, require_package
from dovetail_data._durable import sync

T = TypeVar("T")
ATTEMPTS = 5
DEADLINE_S = 60.0  # of a call; an upload gets 1 s more for each MB
BACKOFF_S = 0.5  # the mean of the first delay; each is twice the last
_BLOCK_BYTES = 1 << 23  # of one read: a retry repeats little, and latency is small beside it
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, ImportError)
# Entries of the file systems' information that change with a file's content, in lower case.
_IDENTITY = {"size", "etag", "md5hash", "crc32c", "generation", "blob_id"}
_IDENTITY |= {"mtime", "lastmodified", "last_modified", "created", "updated"}
_logger = logging.getLogger(__name__)


def located(path: str) -> str | Path:
    """Returns a URL as it is, and another path as a Path. A Path would drop a slash of a URL."""
    return path if is_remote(path) else Path(path)


def cache_directory() -> Path:
    """Returns the user's cache directory of this package."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "data"


class Store:
    """The files below a URL. Pickles.

    Args:
        url: Such as "s3://bucket/corpus".

    Attributes:
        url: The URL without a slash at its end.
        retries: Number of calls that were repeated.

    Raises:
        ImportError: fsspec or the package of the scheme is missing.
        ValueError: fsspec does not know the scheme.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.retries = 0
        _ = self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "retries": 0}

    @functools.cached_property
    def _opened(self) -> tuple[Any, str]:
        return _file_system(self.url)

    def path(self, name: str) -> str:
        """Returns the path of a file in the file system; of the URL itself for ""."""
        root = self._opened[1].rstrip("/")
        return f"{root}/{name}" if name else root

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file, None if there is none."""
        information = self.information(name)
        return None if information is None or _is_directory(information) else information["size"]

    def information(self, name: str) -> dict[str, Any] | None:
        """Returns what the file system says of a path, None if it is absent."""
        files = self._opened[0]
        try:
            return self._call(f"information of {name!r}", lambda: files.info(self.path(name)))
        except FileNotFoundError:
            return None

    def files(self, pattern: str | None = None) -> dict[str, dict[str, Any]]:
        """Returns what the file system says of each file below the URL, by relative name.

        With `pattern`, those that this glob matches.
        """
        files, root = self._opened[0], self.path("") + "/"
        if pattern is None:
            listing = functools.partial(files.find, self.path(""), detail=True)
        else:
            listing = functools.partial(files.glob, root + pattern, detail=True)
        try:
            listed = self._call("a listing", listing)
        except FileNotFoundError:
            return {}
        plain = {path: entry for path, entry in listed.items() if not _is_directory(entry)}
        return {path.removeprefix(root): entry for path, entry in plain.items()}

    def key(self, name: str, information: dict[str, Any]) -> str:
        """Returns a digest that changes with a file: of its size, and its tag or times."""
        kept = {k: v for k, v in information.items() if k.lower() in _IDENTITY}
        said = repr((self.url, name, sorted((k, str(v)) for k, v in kept.items())))
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def read(self, name: str) -> bytes:
        """Returns the content of a small file. FileNotFoundError if there is none."""
        files = self._opened[0]
        return self._call(f"the content of {name!r}", lambda: files.cat_file(self.path(name)))

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yields the content of a file of `size` bytes in blocks."""
        files, path = self._opened[0], self.path(name)
        for start in range(0, size, _BLOCK_BYTES):
            stop = min(start + _BLOCK_BYTES, size)
            read = functools.partial(_block, files, path, start, stop)
            yield self._call(f"bytes {start} to {stop} of {name!r}", read)

    def digest(self, name: str, size: int) -> str:
        """Returns the sha256 of a file of `size` bytes."""
        total = hashlib.sha256()
        for block in self.blocks(name, size):
            total.update(block)
        return total.hexdigest()

    def download(self, name: str, path: Path, *, size: int, sha256: str | None) -> str:
        """Fetches a file of `size` bytes, and returns its digest.

        `path` appears whole, by a rename. A fetched file of another digest is fetched again.

        Args:
            name: Name below the URL.
            path: Where to put it.
            size: Its size.
            sha256: Its digest; None if it is not known.

        Raises:
            OSError: It could not be fetched, or came with another digest each time.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        digests = []
        try:
            for _ in range(ATTEMPTS):
                total = hashlib.sha256()
                with partial.open("wb") as stream:
                    for block in self.blocks(name, size):
                        stream.write(block)
                        total.update(block)
                    stream.flush()
                    os.fsync(stream.fileno())
                if sha256 in (None, total.hexdigest()):
                    partial.replace(path)
                    sync(path.parent)
                    return total.hexdigest()
                digests.append(f"sha256 {total.hexdigest()}")
                self._again(f"{name!r} has another digest")
        finally:
            partial.unlink(missing_ok=True)
        raise self._failed(f"the file {name!r} with sha256 {sha256}", digests)

    def upload(self, path: Path, name: str) -> None:
        """Writes a file, reads it back, and writes it again if it came back otherwise.

        Raises:
            OSError: It could not be written.
        """
        files, size = self._opened[0], path.stat().st_size
        with path.open("rb") as stream:
            expected = hashlib.file_digest(stream, "sha256").hexdigest()
        deadline_s = DEADLINE_S + size / 1e6
        errors = []
        for _ in range(ATTEMPTS):
            put = functools.partial(files.put_file, str(path), self.path(name))
            self._call(f"writing of {name!r}", put, deadline_s=deadline_s)
            files.invalidate_cache()
            stored = self.size(name)
            if stored == size and self.digest(name, size) == expected:
                return
            errors.append(f"{stored} of {size} bytes, or another digest")
            self._again(f"{name!r} came back otherwise")
        raise self._failed(f"the written file {name!r}", errors)

    def _call(self, what: str, function: Callable[[], T], *, deadline_s: float | None = None) -> T:
        """Returns the result of a call, repeated if it fails or exceeds its deadline.

        Args:
            what: The subject of the message.
            function: The call.
            deadline_s: Its deadline; None for the usual one.
        """
        errors = []
        for attempt in range(ATTEMPTS):
            if attempt:
                self._again(f"{what}: {errors[-1]}")
                time.sleep(random.uniform(0, 2 * BACKOFF_S * 2 ** (attempt - 1)))
            try:
                return _within(DEADLINE_S if deadline_s is None else deadline_s, function)
            except _FINAL:
                raise
            except Exception as error:  # each file system has its own
                errors.append(f"{type(error).__name__}: {error}")
        raise self._failed(what, errors)

    def _again(self, reason: str) -> None:
        self.retries += 1
        _logger.warning("%s is asked again: %s", self.url, reason)
        with contextlib.suppress(Exception):  # only a cache; the call itself tells of errors
            self._opened[0].invalidate_cache()

    def _failed(self, what: str, errors: list[str]) -> OSError:
        listed = "\n".join(f"  attempt {i}: {error}" for i, error in enumerate(errors, start=1))
        return OSError(
            errno.EIO,
            f"remote storage must give {what} within {ATTEMPTS} attempts: got from {self.url}\n"
            f"{listed}\nCall again when it answers; what arrived whole is kept.",
        )


def _is_directory(information: dict[str, Any]) -> bool:
    return information.get("type") == "directory"


def _block(files: Any, path: str, start: int, stop: int) -> bytes:
    content = files.cat_file(path, start=start, end=stop)
    if len(content) != stop - start:
        raise OSError(f"{len(content)} of {stop - start} bytes came")
    return content


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Returns the result of `function`; TimeoutError after `seconds`. Its thread is left behind."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="dovetail-remote")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


def _file_system(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL and the path in it."""
    scheme = url.partition("://")[0]
    fsspec = require_package("fsspec", f"paths such as {scheme}:// need", extra="remote")
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(scheme, f"that fsspec names ({error})")
        raise ImportError(
            f"paths of {scheme}:// need the package {package}, which is not installed: "
            f"pip install {_PACKAGES.get(scheme, 'it')}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"a URL must have a scheme that fsspec knows: got url={url!r}: {error}. Pass a local "
            "path, or one of s3://, gs://, hf://."
        ) from error
