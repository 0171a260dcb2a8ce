# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Versions that leave: drained without a limit, or withdrawn since their weights have changed."""

import asyncio
import os
import shutil

import numpy as np
import pytest

from dovetail_serve import IntegrityError, NotReady, load

WEIGHTS = "weights.safetensors"


@pytest.mark.thorough
async def test_a_pass_does_not_wait_for_a_version_that_drains(files, lines, opened, held):
    files.put("mlp", 1)
    async with opened(loads=held) as repository:
        requests = await held.send(repository.find("mlp").route(None).batcher, 3)
        for version, seed in ((1, 2), (2, 1)):  # first another bundle in the same directory
            files.put("mlp", version, seed=seed)
            await repository.load("mlp")  # the requests wait still
            assert repository.routed() == str(version)
        assert repository.find("mlp").statistics("1").queued == 2
        await repository.unload("mlp")
        assert not any(request.done() for request in requests)
        held.gate.set()
        results = await asyncio.gather(*requests)
        assert [outputs["y"].shape for outputs, _ in results] == [(1, 3)] * 3
    assert len(lines.matching("released model=mlp version=1")) == 2


async def test_an_unload_waits_for_the_answers_and_a_load_does_not(files, opened, held):
    files.put("mlp", 1)
    async with opened(loads=held) as repository:
        requests = await held.send(repository.find("mlp").route(None).batcher, 2)
        unloading = asyncio.create_task(repository.unload("mlp"))
        while repository.find("mlp").ready:
            await asyncio.sleep(0)
        files.put("mlp", 2)
        await repository.load("mlp")
        assert repository.routed() == "2"
        assert not unloading.done()
        held.gate.set()
        await asyncio.gather(*requests)
        await unloading


@pytest.mark.thorough
async def test_closing_ends_a_drain_that_has_no_limit(files, opened, held):
    files.put("mlp", 1)
    async with opened(loads=held) as repository:
        requests = await held.send(repository.find("mlp").route(None).batcher, 3)
        files.put("mlp", 2)
        await repository.load("mlp")
        await repository.close(0.0)
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [NotReady] * 3
        held.gate.set()


def overwrite(path):
    """Writes another last weight in place."""
    with open(path / WEIGHTS, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(1000).tobytes())


def answer(repository, version=None):
    """The last output for ones: the last weight."""
    model = repository.find("mlp").route(version).model
    return model(x=np.ones((1, 128), "float32"))["y"][0, -1]


def sharing(path, loaded):
    return load(path, share=loaded, map_weights=True)


@pytest.fixture
def put(files, mapped, tmp_path):
    """Copies the bundle with mapped weights into the repository, by a rename."""

    def put(version):
        shutil.copytree(mapped, tmp_path / "copied")
        files.path("mlp", version).parent.mkdir(exist_ok=True)
        return (tmp_path / "copied").rename(files.path("mlp", version))

    return put


@pytest.mark.thorough
async def test_a_version_whose_weights_are_overwritten_is_withdrawn(lines, opened, put):
    path = put(1)
    before = (path / WEIGHTS).read_bytes()
    async with opened() as repository:
        assert answer(repository) == 1
        overwrite(path)
        assert answer(repository) == 1000  # the weights are mapped
        with pytest.raises(IntegrityError, match=r"weights\.safetensors: array 'w'"):
            await repository.load("mlp")
        served = repository.find("mlp")
        (state,) = served.states("'latest:1'")
        assert state.state == "UNAVAILABLE"
        assert "array 'w' differs" in state.reason
        assert served.has_failed
        with pytest.raises(NotReady, match="which failed to load"):
            served.route(None)
        with open(path / WEIGHTS, "r+b") as file:
            file.write(before)
        await repository.load("mlp")
        assert answer(repository) == 1
    assert len(lines.matching("ERROR withdrawn model=mlp version=1 reason=the array 'w'")) == 1


@pytest.mark.thorough
async def test_requests_in_the_queue_of_overwritten_weights_are_refused(opened, put, held):
    path = put(1)
    async with opened(loads=held) as repository:
        batcher, x = repository.find("mlp").route(None).batcher, np.ones((1, 128), "float32")
        held.gate.clear()
        held.entered.clear()
        requests = [asyncio.create_task(batcher.infer({"x": x}, 1))]
        assert await asyncio.to_thread(held.entered.wait, 120)
        requests.append(asyncio.create_task(batcher.infer({"x": x}, 1)))
        await asyncio.sleep(0)
        overwrite(path)
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [NotReady, NotReady]
        held.gate.set()


async def test_weights_that_are_cut_short_are_withdrawn_and_not_read(opened, put):
    path = put(1)
    async with opened() as repository:
        model = repository.find("mlp").route(None).model
        size = (path / WEIGHTS).stat().st_size
        os.truncate(path / WEIGHTS, 100)
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        assert repository.states() == {"1": "UNAVAILABLE"}
        os.truncate(path / WEIGHTS, size)
        del model


async def test_versions_that_share_overwritten_weights_are_loaded_again(lines, opened, put):
    path = put(1)
    async with opened(versions="all", loads=sharing) as repository:
        put(2)
        await repository.load("mlp")
        old, new = (repository.find("mlp").route(v).model for v in ("1", "2"))
        assert new.shares(old)
        overwrite(path)
        assert answer(repository, "2") == 1000
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        assert repository.states() == {"1": "UNAVAILABLE", "2": "READY"}
        assert answer(repository, "2") == 1
    assert len(lines.matching("withdrawn model=mlp")) == 2


@pytest.mark.thorough
async def test_a_new_version_does_not_share_weights_that_were_overwritten(opened, put):
    path = put(1)
    async with opened(loads=sharing) as repository:
        put(2)
        overwrite(path)
        await repository.load("mlp")
        assert answer(repository) == 1


async def test_a_damaged_file_in_place_of_the_mapped_one_leaves_the_version_alone(
    files, opened, put
):
    path = put(1)
    async with opened() as repository:
        files.delete("mlp", 1)
        overwrite(put(1))
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        assert repository.states() == {"1": "READY"}
        assert answer(repository) == 1
    assert path.exists()
