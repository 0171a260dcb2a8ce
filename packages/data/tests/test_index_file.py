# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import mmap
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from dovetail_data.damage import DamageError
from dovetail_data.rows.index_file import load
from dovetail_data.rows.token_rows import SpanTable

OF = {"corpus": "c", "packing": "p"}
NAMES = ["document", "start", "length", "offsets"]


def table(rows=1700):
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 1 << 30, (3, 2 * rows)).astype(np.int32)
    return SpanTable(*columns, np.arange(0, 2 * rows + 1, 2))


def unexpected():
    raise AssertionError("built again")


def the_only_entry(directory):
    (entry,) = directory.iterdir()
    return entry


def assert_same(found, expected):
    for name in NAMES:
        array = getattr(found, name)
        np.testing.assert_array_equal(array, getattr(expected, name))
        assert array.dtype == getattr(expected, name).dtype


def test_what_was_built_is_mapped_from_then_on(tmp_path):
    for mapped in (load(tmp_path, of=OF, build=table), load(tmp_path, of=OF, build=unexpected)):
        assert_same(mapped, table())
        assert type(mapped.start) is np.ndarray
        assert isinstance(mapped.start.base.base, mmap.mmap)
        assert not mapped.start.flags.writeable
    with pytest.raises(AssertionError, match="built again"):
        load(tmp_path, of={**OF, "packing": "q"}, build=unexpected)


def test_it_pickles_by_its_path(tmp_path):
    mapped = load(tmp_path, of=OF, build=table)
    pickled = pickle.dumps(mapped)
    assert len(pickled) < 1000  # of 34 kB of arrays
    assert_same(pickle.loads(pickled), table())


def test_several_may_write_at_once(tmp_path):
    together = threading.Barrier(3, timeout=300)

    def build():
        together.wait()
        return table()

    tables = []
    threads = [
        threading.Thread(target=lambda: tables.append(load(tmp_path, of=OF, build=build)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables) == 3
    for mapped in tables:
        assert_same(mapped, table())
    assert the_only_entry(tmp_path).name[0] != "."


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from dovetail_data.rows import index_file as _index_file
from dovetail_data.rows.token_rows import SpanTable
calls, fsync = 0, os.fsync
def sync_or_die(descriptor):
    global calls
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    calls += 1
    fsync(descriptor)
os.fsync = sync_or_die
one = np.zeros(1, np.int32)
_index_file.load(
    Path(sys.argv[1]),
    of={"corpus": "c", "packing": "p"},
    build=lambda: SpanTable(one, one, one + 1, np.arange(2)),
)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("at, whole", [(2, False), (5, False), (6, True)])
def test_a_killed_writer_leaves_all_or_nothing(tmp_path, at, whole):
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(at)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    if whole:
        assert len(load(tmp_path, of=OF, build=unexpected).start) == 1
    else:
        assert_same(load(tmp_path, of=OF, build=table), table())


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        load(tmp_path / "new", of=OF, build=lambda: 1 / 0)
    assert not (tmp_path / "new").exists()


WRITTEN = r"as it was written: got .*index\.json and .*{name}\.npy with"


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage, found",
    [
        (flipped, WRITTEN),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-9]),
            WRITTEN,
        ),
        (lambda path: path.unlink(), "whole: got .*No such file"),
    ],
)
def test_damage_is_an_error(tmp_path, name, damage, found):
    load(tmp_path, of=OF, build=table)
    entry = the_only_entry(tmp_path)
    damage(entry / f"{name}.npy")
    found = found.replace("{name}", name)
    with pytest.raises(ValueError, match=rf"must be {found}(?s:.*)Delete {entry} and pack again"):
        load(tmp_path, of=OF, build=unexpected)
    shutil.rmtree(entry)
    assert_same(load(tmp_path, of=OF, build=table), table())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": {}}', '{"files": 1}'])
def test_a_torn_list_is_an_error(tmp_path, content):
    load(tmp_path, of=OF, build=table)
    (the_only_entry(tmp_path) / "index.json").write_text(content)
    message = r"as it was written: got .*index\.json.* with another digest\. Delete .* and pack ag"
    with pytest.raises(DamageError, match=message):
        load(tmp_path, of=OF, build=unexpected)


def test_a_flip_of_any_bit_is_found(tmp_path):
    load(tmp_path, of=OF, build=lambda: table(5))
    entry = the_only_entry(tmp_path)
    rng = random.Random(0)
    for _ in range(20):
        path = rng.choice(sorted(entry.iterdir()))
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamageError, match=str(path)):
            load(tmp_path, of=OF, build=unexpected)
        path.write_bytes(whole)
    assert_same(load(tmp_path, of=OF, build=unexpected), table(5))


def test_the_index_of_another_packing_is_an_error(tmp_path):
    load(tmp_path / "ours", of=OF, build=table)
    load(tmp_path / "theirs", of={**OF, "corpus": "d"}, build=table)
    ours, theirs = the_only_entry(tmp_path / "ours"), the_only_entry(tmp_path / "theirs")
    shutil.rmtree(ours)
    theirs.rename(ours)
    message = rf"must be that of .*'c'.*: got .*json of .*'d'.*\. Delete {ours} and pack again"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "ours", of=OF, build=unexpected)


def test_the_list_says_what_it_is_of(tmp_path):
    load(tmp_path, of=OF, build=table)
    content = json.loads((the_only_entry(tmp_path) / "index.json").read_text())
    assert content["of"] == {**OF, "format": "1"}
    assert (
        content["files"]["start"]["bytes"]
        == (the_only_entry(tmp_path) / "start.npy").stat().st_size
    )
