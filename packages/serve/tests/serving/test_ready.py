# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Readiness by all models or by any, and objects frozen after a load."""

import asyncio
import gc
import inspect

import pytest

from dovetail_serve import Server


@pytest.mark.parametrize("ready", ["any", "all"])
async def test_one_damaged_model_and_the_readiness_of_the_others(files, ready):
    files.put("good", 1)
    files.put("bad", 1, damaged=True)
    async with Server(files.root, ready=ready) as server:
        assert server.ready == (ready == "any")
        await server.unload("good")
        assert not server.ready
        await server.load("good")
        assert server.ready == (ready == "any")
        files.put("bad", 1)
        await server.load("bad")
        assert server.ready
    assert not server.ready


@pytest.mark.parametrize("ready", ["any", "all"])
async def test_a_model_that_is_loading_and_the_readiness_of_the_others(
    files, loads, monkeypatch, ready
):
    files.put("good", 1)
    files.put("slow", 1)
    server = Server(files.root, ready=ready)

    def load(path, loaded):
        return loads(path, loaded) if path.parent.name == "slow" else quick(path, loaded)

    quick = server._repository._deployments._load
    monkeypatch.setattr(server._repository._deployments, "_load", load)
    async with loads.held() as started:
        starting = asyncio.create_task(server.start())
        assert await started()
        while not server._repository.accepting or not server.model_ready("good"):
            await asyncio.sleep(0.01)
        assert server.ready == (ready == "any")
    await starting
    assert server.ready
    await server.stop()
    assert not server.ready


@pytest.mark.parametrize("ready", ["any", "all"])
async def test_an_empty_repository_is_ready(files, ready):
    async with Server(files.root, ready=ready) as server:
        assert server.ready


def test_another_readiness_is_refused(files):
    with pytest.raises(ValueError, match='"all" or "any", got ready=\'most\'; write ready="all"'):
        inspect.unwrap(Server.__init__)(object.__new__(Server), files.root, ready="most")


async def test_objects_are_frozen_after_a_load(files):
    files.put("mlp", 1)
    gc.unfreeze()
    async with Server(files.root) as server:
        frozen = gc.get_freeze_count()
        assert frozen > 10_000  # modules and programs
        files.put("other", 1)
        await server.load("other")
        assert gc.get_freeze_count() > frozen
    gc.unfreeze()
