# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The repository: opening, routes, polling, unloading and closing."""

import asyncio
import os
import threading
import weakref

import pytest

from dovetail_serve import ModelNotFound, NotReady, load


async def test_labels_route_to_their_version_and_keep_it_loaded(files, opened):
    files.put("mlp", 1)
    async with opened(labels={"mlp": {"stable": 1}}) as repository:
        files.put("mlp", 2)
        await repository.load("mlp")
        assert [repository.routed(v) for v in (None, "stable", "1", "2")] == ["2", "1", "1", "2"]
        with pytest.raises(ModelNotFound, match="write 'stable'"):
            repository.routed("stabel")


async def test_names_that_are_no_directories_of_the_repository_are_not_found(files, opened):
    files.put("mlp", 1)
    async with opened() as repository:
        for name in ("mpl", "", ".", "..", "../repo/mlp", "mlp/1", str(files.root / "mlp"), "a\0b"):
            with pytest.raises(ModelNotFound, match="must be in the repository") as error:
                await repository.load(name)
            assert f"name={name!r}" in str(error.value)
            assert "write 'mlp'" in str(error.value)
        assert [served.name for served in repository.models()] == ["mlp"]


async def test_other_directories_are_logged_once(files, lines, opened):
    files.put("mlp", 1)
    (files.root / "mlp" / "draft").mkdir()
    (files.root / "two words").mkdir()
    async with opened() as repository:
        await repository.load("mlp")
    assert [line.partition(" path=")[0] for line in lines.matching("ignored")] == [
        "WARNING ignored",
        "WARNING ignored",
    ]


@pytest.mark.thorough
async def test_an_unloaded_model_stays_unloaded_until_it_is_loaded(files, lines, opened, freed):
    files.put("mlp", 1)
    files.put("other", 1)
    async with opened(poll_s=0.01) as repository:
        old = weakref.ref(repository.find("mlp").route(None).model)
        await repository.unload("mlp")
        await freed(old)
        for version in (2, 3):  # two passes of polling
            files.put("mlp", version)
            files.put("other", version)
            await lines.next(f"loaded model=other version={version}")
        (*_, state) = repository.find("mlp").states("'latest:1'")
        assert (state.state, state.reason) == ("UNAVAILABLE", "unloaded")
        with pytest.raises(NotReady, match="which was unloaded; load the model"):
            repository.routed()
        await repository.load("mlp")
        assert repository.routed() == "3"


@pytest.mark.thorough
async def test_a_repository_that_is_away_unloads_nothing(files, lines, opened):
    files.put("mlp", 1)
    away = files.root.with_name("away")
    async with opened(poll_s=0.01) as repository:
        files.root.rename(away)
        await lines.next("WARNING unreadable repository=")
        assert repository.routed() == "1"
        away.rename(files.root)
        files.put("mlp", 2)
        await lines.next("loaded model=mlp version=2")


async def test_a_repository_that_is_suddenly_empty_unloads_nothing(files, lines, opened):
    """As the mount point of a file server that is away."""
    files.put("mlp", 1)
    files.put("other", 1)
    away = files.root.with_name("away")
    async with opened(poll_s=0.001) as repository:
        files.root.rename(away)
        files.root.mkdir()
        await lines.next("WARNING unreadable repository=")
        for name in ("mlp", "other") * 20:  # polls meanwhile log nothing
            with pytest.raises(OSError, match="the models that serve, got none of 2 in") as error:
                await repository.load(name)
            assert "mount its file system again, or unload" in str(error.value)
            assert repository.routed(name=name) == "1"
        files.root.rmdir()
        away.rename(files.root)
        files.put("mlp", 2)
        await lines.next("loaded model=mlp version=2")
        files.delete("other")
        with pytest.raises(ModelNotFound):
            await repository.load("other")
    # A poll may also have come between the two calls that move the directory, and found none.
    unreadable = lines.matching("unreadable repository=")
    assert len([line for line in unreadable if "got none of" in line]) == 1


async def test_the_last_model_is_removed_by_an_order(files, opened):
    files.put("mlp", 1)
    async with opened() as repository:
        await repository.unload("mlp")
        files.delete("mlp")
        with pytest.raises(ModelNotFound):
            await repository.load("mlp")
        assert repository.models() == []


@pytest.mark.thorough
async def test_an_unloaded_model_whose_directory_was_away_stays_unloaded(files, lines, opened):
    files.put("mlp", 1)
    files.put("other", 1)
    async with opened(poll_s=0.01) as repository:
        await repository.unload("mlp")
        away = files.root / ".away"
        (files.root / "mlp").rename(away)
        for version in (2, 3):  # two passes of polling
            files.put("other", version)
            await lines.next(f"loaded model=other version={version}")
        with pytest.raises(ModelNotFound):
            repository.find("mlp")
        away.rename(files.root / "mlp")
        for version in (4, 5):
            files.put("other", version)
            await lines.next(f"loaded model=other version={version}")
        with pytest.raises(NotReady, match="which was unloaded"):
            repository.routed()
        await repository.load("mlp")
        assert repository.routed() == "1"


async def test_a_model_that_cannot_be_listed_has_failed(files, lines, opened, unlisted):
    files.put("mlp", 1)
    unlisted.add(str(files.root / "mlp"))
    async with opened(poll_s=0.001) as repository:
        for _ in range(3):
            with pytest.raises(PermissionError):
                await repository.load("mlp")
        served = repository.find("mlp")
        assert served.has_failed
        with pytest.raises(NotReady, match="which failed to load; the repository's index"):
            repository.routed()
        (state,) = served.states("'latest:1'")
        assert (state.version, state.state) == ("", "UNAVAILABLE")
        assert "Permission denied" in state.reason
        unlisted.clear()
        await repository.load("mlp")
        assert repository.routed() == "1"
        assert not served.has_failed
        unlisted.add(str(files.root / "mlp"))
        with pytest.raises(PermissionError):
            await repository.load("mlp")
        assert repository.routed() == "1"
    assert len(lines.matching("unreadable model=mlp")) == 2


@pytest.mark.thorough
async def test_a_repository_that_goes_away_during_a_pass_unloads_nothing(files, lines, opened):
    files.put("mlp", 1)
    away = files.root.with_name("away")
    async with opened() as repository:
        files.root.rename(away)
        with pytest.raises(FileNotFoundError):  # the pass begins after the listing of models
            await repository.load("mlp")
        assert lines.matching("WARNING unreadable model=mlp")
        assert repository.routed() == "1"
        away.rename(files.root)
        await repository.load("mlp")
        assert len(lines.matching("loaded model=mlp")) == 1


@pytest.mark.thorough
async def test_polling_during_a_long_load_makes_no_queue_of_passes(files, lines, opened):
    files.put("mlp", 1)
    gate = threading.Event()

    def held(path, loaded):
        assert path.parts[-2:] != ("mlp", "2") or gate.wait(120)
        return load(path)

    async with opened(loads=held, poll_s=0.001) as repository:
        files.put("mlp", 2)
        while "2" not in repository.states():
            await asyncio.sleep(0)
        tasks = len(asyncio.all_tasks())
        for version in (1, 2, 3):  # each takes many intervals
            files.put("other", version)
            await lines.next(f"loaded model=other version={version}")
        # Added are at most the pass over the other model, and the drain of its old version.
        assert len(asyncio.all_tasks()) <= tasks + 2
        loaded = asyncio.create_task(lines.next("loaded model=mlp version=2"))
        await asyncio.sleep(0)
        gate.set()
        await loaded


@pytest.mark.thorough
async def test_polling_goes_on_while_every_thread_loads(files, lines, opened, loads, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    files.put("mlp", 1)
    files.put("other", 1)
    async with opened(loads=loads, poll_s=0.01):
        async with loads.held() as started:
            files.put("mlp", 2)
            await started()
            files.delete("other")
            await lines.next("released model=other version=1")
        await lines.next("loaded model=mlp version=2")


@pytest.mark.thorough
async def test_a_caller_that_goes_away_does_not_stop_or_double_the_load(files, opened, loads):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        files.put("mlp", 2)
        async with loads.held() as started:
            loading = asyncio.create_task(repository.load("mlp"))
            await started()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            again = asyncio.create_task(repository.load("mlp"))
        await again
        assert loads.paths == ["mlp/1", "mlp/2"]
        assert repository.routed() == "2"


@pytest.mark.thorough
async def test_closing_during_a_load_drops_it(files, opened, loads):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        files.put("mlp", 2)
        async with loads.held() as started:
            loading = asyncio.create_task(repository.load("mlp"))
            await started()
            await repository.close(1.0)
            with pytest.raises(NotReady, match="was stopped while it loaded 'mlp'"):
                await loading
        assert repository.find("mlp").ready == {}


async def test_an_empty_repository_is_opened_with_a_warning(files, lines, opened):
    async with opened() as repository:
        assert repository.models() == []
    assert len(lines.matching("WARNING empty repository=")) == 1


async def test_an_option_for_a_model_that_is_missing_is_refused(files, opened):
    files.put("mlp", 1)
    with pytest.raises(ValueError, match="write 'mlp'"):
        async with opened(labels={"mpl": {"stable": 1}}):
            pass


@pytest.mark.thorough
async def test_a_model_that_is_ready_is_served_while_another_one_loads(files, lines, make):
    files.put("mlp", 1)
    files.put("slow", 1)
    gate = threading.Event()

    def held(path, loaded):
        assert path.parent.name == "mlp" or gate.wait(120)
        return load(path)

    repository = make(loads=held)
    assert not repository.accepting
    loaded = asyncio.create_task(lines.next("loaded model=mlp"))
    opening = asyncio.create_task(repository.open())
    await loaded
    assert repository.accepting
    assert repository.routed() == "1"
    for version in (None, "1"):
        with pytest.raises(NotReady, match="which is loading; send the request again later"):
            repository.routed(version, name="slow")
    gate.set()
    await opening
    assert repository.routed(name="slow") == "1"
    await repository.close(1.0)


@pytest.mark.thorough
async def test_closing_answers_the_requests_of_a_version_that_is_being_replaced(
    files, lines, opened, held
):
    files.put("mlp", 1)
    async with opened(loads=held) as repository:
        requests = await held.send(repository.find("mlp").route(None).batcher, 3)
        files.put("mlp", 2)
        await repository.load("mlp")
        closing = asyncio.create_task(repository.close(30.0))
        held.gate.set()
        results = await asyncio.gather(*requests)
        assert [outputs["y"].shape for outputs, _ in results] == [(1, 3)] * 3
        await closing
    assert len(lines.matching("released model=mlp version=1")) == 1


@pytest.mark.thorough
async def test_closing_refuses_the_requests_that_wait_when_the_grace_is_over(files, opened, held):
    files.put("mlp", 1)
    async with opened(loads=held) as repository:
        requests = await held.send(repository.find("mlp").route(None).batcher, 3)
        await repository.close(0.0)
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [NotReady] * 3
        held.gate.set()
        assert repository.find("mlp").ready == {}
