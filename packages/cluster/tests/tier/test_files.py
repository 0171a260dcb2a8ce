# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a rank and a step: what is written is read, what is changed is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_cluster.tier.blocks import Block
from dovetail_cluster.tier.files import (
    Header,
    Name,
    parse,
    proven,
    read_header,
    verify,
    with_blocks,
    write,
)

NAME = Name(12, 3, 1, 4)


def make(path, values):
    """Writes arrays as blocks of one file. Returns the header."""
    blocks = [Block(n, (0,) * x.ndim, x.shape, x.nbytes, 1) for n, x in values.items()]
    arrays = {name: (str(x.dtype), x.shape) for name, x in values.items()}
    header = with_blocks(Header(NAME, arrays, ["t"], {"d": {"at": 1}}, {"m": 0.5}, []), blocks)
    return write(path, header, memoryview(b"".join(x.tobytes() for x in values.values())))


VALUES = {
    "t/a": np.arange(15, dtype=np.float32).reshape(3, 5).T,  # not contiguous
    "t/b": np.array(7, np.int64),
    "t/c": np.array([True, False, True]),
}


def test_a_file_gives_back_what_was_written(tmp_path):
    written = make(tmp_path / "x", VALUES)
    header = verify(tmp_path / "x", NAME)
    assert header == written
    assert header.size_bytes == (tmp_path / "x").stat().st_size
    data = (tmp_path / "x").read_bytes()
    for block in header.blocks:
        part = data[block.offset : block.offset + block.size_bytes]
        value = proven(block, part, np.dtype(header.arrays[block.name][0]))
        assert np.array_equal(value, VALUES[block.name])
        with pytest.raises(ValueError, match=f"{block.name} must have its digest, got other bytes"):
            proven(block, bytes([part[0] ^ 1]) + part[1:], value.dtype)


def test_a_rank_without_blocks_has_a_file_too(tmp_path):
    assert make(tmp_path / "x", {}) == verify(tmp_path / "x", NAME)


@pytest.mark.capability("a flipped bit on a shelf is found")
@given(st.data())
@settings(max_examples=60)
def test_each_flipped_bit_and_each_cut_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("files") / "x"
    make(path, VALUES)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"must have its digest|must be whole"):
        verify(path, NAME)


def test_a_file_under_another_name_is_refused(tmp_path):
    make(tmp_path / "x", VALUES)
    with pytest.raises(ValueError, match=r"must be whole and under its name, got 12\.3\.1\.4"):
        read_header(tmp_path / "x", NAME._replace(step=13))


def test_names_are_read_as_they_are_written():
    assert parse(str(NAME)) == NAME
    assert [parse(text) for text in ("12.3.1", "12.3.1.4.new", "12.3.1.x", "lock")] == [None] * 4
