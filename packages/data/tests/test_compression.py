# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import bz2
import gzip
import io
import lzma
import random
import re
import struct
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data.sources import compression

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
LINES = b"".join(
    b"%d %s\n" % (i, random.Random(i).randbytes(12).hex().encode()) for i in range(900)
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("compression")


def read_until_damaged(path):
    """The lines that can be read, and what was raised."""
    lines = []
    with compression.open_file(str(path)) as stream:
        try:
            lines.extend(iter(stream.readline, b""))
        except compression.Damaged as error:
            return b"".join(lines), str(error)
    return b"".join(lines), None


@pytest.mark.parametrize("ending", COMPRESS)
@given(
    members=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    piece_bytes=st.integers(1, 90),
)
@settings(max_examples=40, deadline=None)
def test_all_members_are_read_wherever_pieces_end(directory, ending, members, piece_bytes):
    (directory / f"x{ending}").write_bytes(b"".join(map(COMPRESS[ending], members)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PIECE_BYTES", piece_bytes)
        with compression.open_file(str(directory / f"x{ending}")) as stream:
            assert stream.read() == b"".join(members)


@pytest.mark.thorough
@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_cut_anywhere_is_damaged(tmp_path, ending):
    content = COMPRESS[ending](LINES[:400])
    path = tmp_path / f"x{ending}"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        given_lines, error = read_until_damaged(path)
        assert LINES[:400].startswith(given_lines)
        assert error is not None, size
        assert re.match(rf"a \{ending} file must be whole: got one with its end missing", error)
    path.write_bytes(content)
    assert read_until_damaged(path) == (LINES[:400], None)


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_precedes_a_cut_is_given(tmp_path, ending):
    half = len(LINES) // 2
    first, second = COMPRESS[ending](LINES[:half]), COMPRESS[ending](LINES[half:])
    path = tmp_path / f"x{ending}"
    path.write_bytes(first + second[:-3])
    given_lines, error = read_until_damaged(path)
    assert given_lines.startswith(LINES[:half].rpartition(b"\n")[0])
    unpacked = int(re.search(r"after (\d+) bytes were unpacked\. Fetch or write", error).group(1))
    assert half <= unpacked <= len(LINES)
    assert given_lines == LINES[:unpacked].rpartition(b"\n")[0] + b"\n"


@pytest.mark.parametrize("ending", COMPRESS)
def test_one_changed_bit_never_goes_unseen(tmp_path, ending):
    content = COMPRESS[ending](LINES)
    path = tmp_path / f"x{ending}"
    draw = random.Random(0)
    harmless = 0
    for _ in range(60):
        changed = bytearray(content)
        changed[draw.randrange(10, len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        given_lines, error = read_until_damaged(path)
        harmless += error is None and given_lines == LINES
        assert error is not None or given_lines == LINES
    assert harmless < 5  # a flag that says nothing of the content


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_follows_a_member_must_be_another(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(COMPRESS[ending](LINES) + b"<html>")
    given_lines, error = read_until_damaged(path)
    assert LINES.startswith(given_lines)
    assert f"after {len(LINES)} bytes were unpacked" in error


@pytest.mark.parametrize("ending", COMPRESS)
def test_zeros_after_a_member_are_padding_where_the_format_has_it(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(COMPRESS[ending](LINES) + bytes(5000) + COMPRESS[ending](b"more\n") + bytes(8))
    given_lines, error = read_until_damaged(path)
    if ending in (".gz", ".xz"):
        assert (given_lines, error) == (LINES + b"more\n", None)
    else:
        assert error is not None


def test_zstd_frames_as_other_tools_write_them(tmp_path):
    skippable = struct.pack("<II", 0x184D2A51, 7) + b"skipped"
    streamed = io.BytesIO()
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)  # --long=30
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with compressor.stream_writer(streamed, closefd=False) as writer:
        writer.write(LINES)
    path = tmp_path / "x.zst"
    path.write_bytes(skippable + streamed.getvalue() + skippable + COMPRESS[".zst"](b"end"))
    assert compression.disguise(str(path)) is None
    with compression.open_file(str(path)) as stream:
        assert stream.read() == LINES + b"end"


def test_a_plain_file_is_read_as_it_is(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINES)
    assert compression.suffix("a.gz/x.jsonl") == ""
    assert read_until_damaged(tmp_path / "x.jsonl") == (LINES, None)


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_name_must_say_what_a_file_is(tmp_path, ending):
    plain, packed = tmp_path / "x.jsonl", tmp_path / f"x.jsonl{ending}"
    for path in (plain, packed):
        path.write_bytes(COMPRESS[ending](LINES))
    assert compression.disguise(str(packed)) is None
    assert re.fullmatch(
        rf"a compressed file must have the suffix of its format: got 'x\.jsonl', which begins "
        rf"as a \{ending} file does\. Rename it to 'x\.jsonl\{ending}'\.",
        compression.disguise(str(plain)),
    )
    plain.write_bytes(b"BZh9 is no bzip2 file")
    assert compression.disguise(str(plain)) is None
    for content in (b"", b"<html>"):
        packed.write_bytes(content)
        assert re.fullmatch(
            rf"a \{ending} file must begin as that format does: got 'x\.jsonl\{ending}', which "
            rf"begins with {content!r}\. Give it the suffix of its format, or fetch it again\.",
            compression.disguise(str(packed)),
        )


def test_an_empty_bzip2_file_is_known_too(tmp_path):
    (tmp_path / "x.bz2").write_bytes(bz2.compress(b""))
    assert compression.disguise(str(tmp_path / "x.bz2")) is None


def test_the_file_is_closed_with_the_stream(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(LINES))
    stream = compression.open_file(str(tmp_path / "x.gz"))
    stream.read(1)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)  # a file left open would be a ResourceWarning, which is an error here


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    compression.require(["a.jsonl", "a.gz"])
    with pytest.raises(ImportError, match=r"zstandard, .*: pip install 'dovetail-data\[zstd\]'"):
        compression.require(["a.jsonl", "a.zst"])
