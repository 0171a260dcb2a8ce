# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed files as streams that report a missing end.

The readers of the standard library and of zstandard are lenient in different ways: a zstd file cut
short reads as a shorter one, and junk after a bzip2 or xz file is dropped. A cut file must not look
like a short one. So the four formats share one loop here, and it knows whether a member is
complete.
"""

import bz2
import functools
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from dovetail_data._arguments import require_package

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_MAGIC = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),  # "BZh9" alone could begin a text
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # or a skippable frame
}
_MAGIC_BYTES = 10
_PADDED = (".gz", ".xz")  # zeros may follow a member: tapes and the xz format add them
# Input of one call of a decompressor. When a call fails its output is lost with it, and a call
# on a file made to exhaust memory returns up to 32,000 times as much.
_PIECE_BYTES = 4096
_BUFFER_BYTES = 1 << 17
_WINDOW_BYTES = 1 << 31  # `zstd --long=31`, as large dumps are packed; allocated only if needed


class Damaged(ValueError):
    """A compressed file that cannot be read further."""


def suffix(path: str) -> str:
    """Returns the compression suffix of `path`; "" for a plain file."""
    ending = Path(path).suffix
    return ending if ending in SUFFIXES else ""


def disguise(path: str) -> str | None:
    """Returns a message if the content of a file contradicts its suffix, else None."""
    with open(path, "rb") as stream:
        head = stream.read(_MAGIC_BYTES)
    name, ending = Path(path).name, suffix(path)
    if not ending:
        looks = next((kind for kind, magic in _MAGIC.items() if magic.match(head)), None)
        return looks and (
            f"a compressed file must have the suffix of its format: got {name!r}, which begins as "
            f"a {looks} file does. Rename it to {name + looks!r}."
        )
    if _MAGIC[ending].match(head):
        return None
    return (
        f"a {ending} file must begin as that format does: got {name!r}, which begins with "
        f"{head!r}. Give it the suffix of its format, or fetch it again."
    )


def open_file(path: str) -> io.BufferedReader:
    """Opens a file for reading bytes, and decompresses it if its suffix says so.

    Members or frames are read one after the other. Needs the extra `zstd` for ".zst".

    Raises:
        Damaged: By a read, after the readable bytes, if a member is damaged, ends early, or is
            followed by anything but another member.
    """
    ending = suffix(path)
    if not ending:
        return open(path, "rb")
    codec = _codec(ending)
    return io.BufferedReader(_Unpacked(open(path, "rb"), ending, codec), _BUFFER_BYTES)


def require(paths: Iterable[str]) -> None:
    """Raises ImportError, with the name of the extra, if a decompressor is missing."""
    for ending in {suffix(path) for path in paths} - {""}:
        _codec(ending)


class _Unpacked(io.RawIOBase):
    def __init__(self, stream: BinaryIO, ending: str, codec: "_Codec") -> None:
        self._stream = stream
        self._ending = ending
        self._decompressor, self._errors = codec
        self._member: Any = self._decompressor()  # so that an empty file ends within a member
        self._rest = b""
        self._ready = memoryview(b"")
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = self._rest or self._stream.read(_PIECE_BYTES)
            self._rest = b""
            if not piece:
                return self._end()
            self._ready = memoryview(self._decompress(piece))
            self._unpacked_bytes += len(self._ready)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress(self, piece: bytes) -> bytes:
        if self._member is None:
            if self._ending in _PADDED and not (piece := piece.lstrip(b"\0")):
                return b""
            self._member = self._decompressor()
        try:
            content = self._member.decompress(piece)
        except self._errors as error:
            raise self._damaged(str(error)) from error
        if self._member.eof:
            self._rest = self._member.unused_data
            self._member = None
        return content

    def _end(self) -> int:
        if self._member is not None:
            raise self._damaged("its end missing")
        return 0

    def _damaged(self, reason: str) -> Damaged:
        return Damaged(
            f"a {self._ending} file must be whole: got one with {reason}, after "
            f"{self._unpacked_bytes} bytes were unpacked. Fetch or write it again."
        )

    def close(self) -> None:
        self._stream.close()
        super().close()


_Codec = tuple[Callable[[], Any], type[Exception]]
"""The constructor of a decompressor for one member, and its error for damage."""


def _codec(ending: str) -> _Codec:
    if ending == ".gz":
        return functools.partial(zlib.decompressobj, wbits=16 + zlib.MAX_WBITS), zlib.error
    if ending == ".bz2":
        return bz2.BZ2Decompressor, OSError
    if ending == ".xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    zstandard = _require_zstandard()
    context = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    return context.decompressobj, zstandard.ZstdError


def _require_zstandard() -> Any:
    return require_package("zstandard", "a .zst file needs", extra="zstd")
