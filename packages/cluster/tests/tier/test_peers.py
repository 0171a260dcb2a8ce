# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two ranks in one process: copies, fetches, and a rank that is gone."""

import numpy as np
import pytest

from dovetail_cluster.tier import peers as module
from dovetail_cluster.tier.blocks import Block
from dovetail_cluster.tier.files import Header, Name, verify, with_blocks, write
from dovetail_cluster.tier.folder import Folder, Key
from dovetail_cluster.tier.peers import Peers

NAME = Name(4, 0, 0, 2)


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Ranks 0 and 1, whose values meet in a list in place of a collective."""
    folders = [Folder(tmp_path / str(rank), 10**6) for rank in range(2)]
    key, addresses = "07" * 32, [""]
    monkeypatch.setattr(module, "gather", lambda x: [key] if len(x) == 64 else [*addresses, x])
    second = Peers(folders[1], local="127.0.0.1", rank=1, hosts=2)
    addresses[:] = second._addresses
    monkeypatch.setattr(module, "gather", lambda x: [key] if len(x) == 64 else ["", addresses[1]])
    first = Peers(folders[0], local="127.0.0.1", rank=0, hosts=2)
    yield first, second, folders
    first.close()
    second.close()


def add(folder, size=1000):
    values = np.random.default_rng(0).integers(0, 255, size).astype(np.uint8)
    header = Header(NAME, {"t/w": ("uint8", (size,))}, ["t"], {}, {}, [])
    header = with_blocks(header, [Block("t/w", (0,), (size,), size, 0)])
    write(folder.new(NAME, header.size_bytes), header, values.data)
    folder.put(NAME)
    return values


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_a_copy_and_its_parts(two, monkeypatch, chunk_bytes):
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    first, second, folders = two
    values = add(folders[0])
    folders[0].complete = Key(0, 3)
    first.copy(NAME, 1)
    assert folders[1].complete == Key(0, 3)
    assert folders[1].file(NAME).read_bytes() == folders[0].file(NAME).read_bytes()
    header = first.header(NAME, 1)
    assert header == verify(folders[1].file(NAME), NAME) == second.header(NAME, 1)
    assert first.read(NAME, 1, 10, 500) == values[10:510].tobytes() == first.read(NAME, 0, 10, 500)


def test_a_copy_that_arrives_damaged_is_not_kept(two, monkeypatch):
    first, _, folders = two
    add(folders[0])
    path = folders[0].file(NAME)
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(OSError, match=r"cannot answer Put: .* t/w must have its digest"):
        first.copy(NAME, 1)
    assert [*folders[1].path.iterdir()] == []


def test_a_neighbour_without_room_says_so(two):
    first, _, folders = two
    add(folders[0])
    folders[1]._limit_bytes = 100
    with pytest.raises(OSError, match=r"cannot answer Put: .* below limit_bytes=100, got 0 bytes"):
        first.copy(NAME, 1)


def test_a_file_that_is_not_there_is_an_error(two):
    first, _, folders = two
    with pytest.raises(OSError, match="cannot answer Head"):
        first.header(NAME, 1)
    add(folders[1])
    with pytest.raises(OSError, match=r"4\.0\.0\.2 must have 9 bytes at 1000000"):
        first.read(NAME, 1, 10**6, 9)


def test_a_rank_that_is_gone_is_an_error_each_time(two):
    first, second, folders = two
    add(folders[1])
    first.header(NAME, 1)
    second.close()
    for _ in range(2):
        with pytest.raises(OSError, match="cannot answer Head: the connection"):
            first.header(NAME, 1)


def test_one_rank_alone_listens_to_nobody(tmp_path):
    folder = Folder(tmp_path, 10**6)
    values = add(folder)
    alone = Peers(folder, local="127.0.0.1", rank=0, hosts=1)
    assert alone.read(NAME, 0, 0, 1000) == values.tobytes()
    alone.close()
