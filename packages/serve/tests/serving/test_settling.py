# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Versions whose files are on their way: a copy in progress is no damage."""

import asyncio
import itertools
import shutil

import pytest

from dovetail_serve import IntegrityError, NotReady

TEMPORARY = ".weights.safetensors.Ab3dE1"
POLL_S = 0.01


def state(repository, version):
    (found,) = (s for s in repository.find("mlp").states("'latest:1'") if s.version == version)
    return found


def begin_copy(files, source, version):
    """Copies a bundle as rsync does: weights last, under another name."""
    path = files.path("mlp", version)
    path.parent.mkdir(exist_ok=True)
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("weights.safetensors"))
    (path / TEMPORARY).write_bytes(b"x")
    return path


async def passes(repository, count):
    """Waits for passes over the model."""
    served = repository.find("mlp")
    for _ in range(count):
        listed = asyncio.Event()
        original = served.settled

        def settled(wanted, listed=listed, original=original):
            original(wanted)
            listed.set()

        served.settled = settled
        await asyncio.wait_for(listed.wait(), 120)
        served.settled = original


async def test_a_copy_in_progress_is_waited_for(files, exported, lines, opened):
    files.put("mlp", 1)
    async with opened(poll_s=POLL_S) as repository:
        path = begin_copy(files, exported[2][0], 2)
        served, sizes = repository.find("mlp"), itertools.count(2)
        original, grown = served.settled, asyncio.Event()

        def grow(wanted):  # in every pass, since two passes over the same files would settle them
            original(wanted)
            (path / TEMPORARY).write_bytes(b"x" * (size := next(sizes)))
            if size == 6:
                grown.set()

        served.settled = grow
        await asyncio.wait_for(grown.wait(), 120)
        found = state(repository, "2")
        assert found.state == "LOADING"
        assert found.reason.startswith("its files may still be on their way")
        with pytest.raises(NotReady, match="which is loading"):
            repository.routed("2")
        assert repository.routed() == "1"
        loaded = asyncio.create_task(lines.next("loaded model=mlp version=2"))
        await asyncio.sleep(0)
        served.settled = original
        shutil.copy(exported[2][0] / "weights.safetensors", path / TEMPORARY)
        (path / TEMPORARY).rename(path / "weights.safetensors")
        await loaded
        assert repository.routed() == "2"
        assert not served.settling
    assert not lines.matching("failed model=mlp")
    assert not lines.matching("delete it")


async def test_a_copy_that_was_cut_off_is_told_once_it_is_quiet(files, exported, lines, opened):
    files.put("mlp", 1)
    async with opened(poll_s=POLL_S) as repository:
        failed = asyncio.create_task(lines.next("failed model=mlp version=2"))
        begin_copy(files, exported[2][0], 2)
        await failed
        found = state(repository, "2")
        assert found.state == "UNAVAILABLE"
        assert "damaged in weights.safetensors: it must be a file, and is missing" in found.reason
        assert repository.routed() == "1"
        await passes(repository, 2)
    assert len(lines.matching("failed model=mlp")) == 1
    (line,) = lines.matching(TEMPORARY)
    assert "a temporary file of rsync, of a copy that goes on or was cut off; copy again" in line


async def test_a_version_that_serves_goes_on_while_files_come_and_go_beside_it(
    files, lines, opened
):
    path = files.put("mlp", 1)
    async with opened(poll_s=POLL_S) as repository:
        before = repository.find("mlp").route(None)
        for name in (TEMPORARY, ".DS_Store", ".nfs000000000a3f00120000002b"):
            (path / name).write_bytes(b"x")
            await passes(repository, 2)
        (path / TEMPORARY).unlink()
        await passes(repository, 2)
        assert repository.find("mlp").route(None) is before
        assert state(repository, "1").reason == ""
    assert not lines.matching("failed")
    assert not lines.matching("waiting")


@pytest.mark.parametrize(
    "file", ["manifest.json", "SHA256SUMS", "programs/cpu-cuda-tpu.8.stablehlo"]
)
async def test_a_file_cut_short_under_a_version_leaves_it_alone(files, lines, opened, file):
    path = files.put("mlp", 1)
    async with opened(poll_s=POLL_S) as repository:
        failed = asyncio.create_task(lines.next("failed model=mlp version=1"))
        await asyncio.sleep(0)
        (path / file).chmod(0o644)
        (path / file).write_bytes(b"{")
        await failed
        assert repository.routed() == "1"
        assert state(repository, "1").state == "READY"
        assert file in state(repository, "1").reason


async def test_without_polling_or_by_an_order_damage_is_told_at_once(files, exported, opened):
    files.put("mlp", 1)
    async with opened() as repository:
        begin_copy(files, exported[2][0], 2)
        with pytest.raises(IntegrityError, match=r"weights\.safetensors: it must be a file"):
            await repository.load("mlp")
        assert state(repository, "2").state == "UNAVAILABLE"
