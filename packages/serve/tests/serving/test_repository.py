# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The repository: versions are loaded, replaced, refused and deleted."""

import asyncio
import errno
import gc
import math
import weakref

import pytest
from jax.errors import JaxRuntimeError

from dovetail_serve import BundleError, IntegrityError, ModelNotFound, NotReady, load
from dovetail_serve.serving import deployments
from dovetail_serve.serving.scan import fingerprint
from dovetail_serve.serving.served import Failure


@pytest.mark.thorough
async def test_sixteen_racing_loads_are_one_load(files, lines, opened, loads):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        files.put("mlp", 2, seed=2)
        await asyncio.gather(*(repository.load("mlp") for _ in range(16)))
        assert loads.paths == ["mlp/1", "mlp/2"]
        assert repository.routed() == "2"
    assert len(lines.matching("INFO loaded model=mlp version=2 digest=sha256:")) == 1


@pytest.mark.thorough
async def test_sixteen_racing_loads_of_a_damaged_version_are_one_load(files, opened, loads):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        files.put("mlp", 2, seed=2, damaged=True)
        racing = (repository.load("mlp") for _ in range(16))
        errors = await asyncio.gather(*racing, return_exceptions=True)
        assert [type(error) for error in errors] == [IntegrityError] * 16
        assert loads.paths == ["mlp/1", "mlp/2"]


@pytest.mark.thorough
async def test_the_latest_version_is_loaded_first(files, opened, loads):
    for version in (1, 2, 10):
        files.put("mlp", version)
    async with opened(versions="latest:2", loads=loads):
        assert loads.paths == ["mlp/10", "mlp/2"]


@pytest.mark.thorough
async def test_a_load_that_fails_is_logged_with_its_traceback_and_keeps_no_arrays(
    files, lines, opened
):
    files.put("mlp", 1)
    models = []

    def load_in_vain(path, loaded):
        model = load(path)
        models.append(weakref.ref(model))
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("out of memory")  # noqa: B904, the context is what is tested

    async with opened(loads=load_in_vain) as repository:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                await repository.load("mlp")
        gc.collect()
        assert [model() for model in models] == [None] * len(models)
        (state,) = repository.find("mlp").states("'latest:1'")
        assert (state.state, state.reason) == ("UNAVAILABLE", "out of memory")
    for line in lines.matching("failed model=mlp version=1 seconds="):
        assert "in load_in_vain" in line
        assert line.endswith("RuntimeError: out of memory")


@pytest.mark.thorough
async def test_the_old_version_serves_until_the_new_one_is_warm_and_is_then_released(
    files, lines, opened, loads, freed
):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        old = weakref.ref(repository.find("mlp").route(None).model)
        files.put("mlp", 2, seed=2)
        async with loads.held() as started:
            loading = asyncio.create_task(repository.load("mlp"))
            await started()
            assert repository.states() == {"1": "READY", "2": "LOADING"}
            assert repository.routed() == "1"
            with pytest.raises(NotReady, match="version='2' of 'mlp', which is loading"):
                repository.routed("2")
        await loading
        assert repository.routed() == "2"
        assert repository.states() == {"1": "UNAVAILABLE", "2": "READY"}
        with pytest.raises(ModelNotFound, match="must be one that the server loads"):
            repository.routed("1")
        await freed(old)
    assert len(lines.matching("INFO released model=mlp version=1 digest=sha256:")) == 1
    assert loads.shared[1] == [load(files.path("mlp", 1)).digest]


@pytest.mark.capability("new versions under load")
async def test_a_damaged_version_is_refused_while_the_old_one_serves(files, lines, opened):
    files.put("mlp", 1)
    async with opened() as repository:
        files.put("mlp", 2, seed=2, damaged=True)
        with pytest.raises(IntegrityError) as error:
            await repository.load("mlp")
        assert error.value.file == "weights.safetensors"
        assert repository.routed() == "1"
        _, refused = repository.find("mlp").states("'latest:1'")
        assert refused.state == "UNAVAILABLE"
        assert "weights.safetensors: array 'layers." in refused.reason
        with pytest.raises(NotReady, match="failed to load; the repository's index") as refusal:
            repository.routed("2")
        assert str(files.root) not in str(refusal.value)
    (line,) = lines.matching("ERROR failed model=mlp version=2 seconds=")
    assert "weights.safetensors: array 'layers." in line
    assert "\n" not in line


@pytest.mark.thorough
async def test_polling_tries_a_failed_version_again_only_when_its_files_change(
    files, lines, opened, loads
):
    files.put("mlp", 1)
    async with opened(loads=loads, poll_s=0.01) as repository:
        failed = asyncio.create_task(lines.next("failed model=mlp version=2"))
        files.put("other", 1)
        await lines.next("loaded model=other version=1")
        files.put("mlp", 2, seed=2, damaged=True)
        await failed
        # A version of another model that polling loads later proves two passes after the failure.
        for version in (2, 3, 4):
            files.put("other", version)
            await lines.next(f"loaded model=other version={version}")
        swapped = asyncio.create_task(lines.next("loaded model=mlp version=2"))
        assert loads.paths.count("mlp/2") == 2  # the second when its files were quiet
        files.put("mlp", 2, seed=2)
        await swapped
        assert repository.routed() == "2"
        assert repository.find("mlp").failures == {}


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), MemoryError(), JaxRuntimeError("no memory")],
)
async def test_polling_tries_a_version_again_after_an_error_that_may_pass(
    files, lines, opened, monkeypatch, error
):
    monkeypatch.setattr(deployments, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(deployments, "LONGEST_WAIT_S", 0.03)
    files.put("mlp", 1)
    errors = [error] * 4

    def load_at_last(path, loaded):
        if path.name == "2" and errors:
            raise errors.pop()
        return load(path)

    async with opened(loads=load_at_last, poll_s=0.01) as repository:
        files.put("mlp", 2)
        await lines.next("loaded model=mlp version=2")
        assert repository.routed() == "2"
        assert repository.find("mlp").failures == {}
    assert len(lines.matching("failed model=mlp version=2")) == 4


def test_the_wait_after_an_error_that_may_pass_doubles_and_has_a_bound():
    waits, last = [], None
    for _ in range(11):
        wait_s = deployments._wait_s(OSError(), last)
        last = Failure(error=OSError(), fingerprint=(), began=0.0, wait_s=wait_s)
        waits.append(wait_s)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert deployments._wait_s(BundleError(), last) == math.inf
    assert deployments._wait_s(ValueError(), last) == math.inf


@pytest.mark.thorough
async def test_an_order_tries_a_failed_version_again_though_its_files_are_the_same(
    files, opened, loads
):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        files.put("mlp", 2, damaged=True)
        for attempts in (1, 2):
            with pytest.raises(IntegrityError):
                await repository.load("mlp")
            assert loads.paths.count("mlp/2") == attempts
        assert repository.find("mlp").statistics("2").failed_loads == 2


@pytest.mark.thorough
async def test_another_bundle_in_the_same_directory_is_a_swap(files, lines, opened, freed):
    files.put("mlp", 1, seed=1)
    async with opened() as repository:
        old = weakref.ref(repository.find("mlp").route(None).model)
        files.put("mlp", 1, seed=2)
        await repository.load("mlp")
        assert repository.find("mlp").route("1").model.digest == load(files.path("mlp", 1)).digest
        await freed(old)
    assert len(lines.matching("swapped model=mlp version=1 digest=")) == 1


@pytest.mark.thorough
async def test_a_damaged_replacement_in_the_same_directory_is_refused(files, opened):
    files.put("mlp", 1, seed=1)
    async with opened() as repository:
        digest = repository.find("mlp").route(None).model.digest
        files.put("mlp", 1, seed=2, damaged=True)
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        (state,) = repository.find("mlp").states("'latest:1'")
        assert (state.state, state.digest) == ("READY", digest)
        assert "damaged" in state.reason
        files.put("mlp", 1, seed=1)
        await repository.load("mlp")
        (state,) = repository.find("mlp").states("'latest:1'")
        assert (state.state, state.reason) == ("READY", "")


@pytest.mark.thorough
async def test_damage_to_the_files_of_a_version_in_use_is_seen(files, lines, opened):
    path = files.put("mlp", 1) / "weights.safetensors"
    path.chmod(0o644)  # weights are read-only
    whole = path.read_bytes()
    async with opened() as repository:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=r"weights\.safetensors"):
            await repository.load("mlp")
        (state,) = repository.find("mlp").states("'latest:1'")
        assert state.state == "READY"
        assert "weights.safetensors" in state.reason
        assert len(lines.matching("ERROR failed model=mlp version=1")) == 1
        path.write_bytes(whole)
        await repository.load("mlp")
        (state,) = repository.find("mlp").states("'latest:1'")
        assert (state.state, state.reason) == ("READY", "")


@pytest.mark.thorough
async def test_a_bundle_that_was_only_copied_again_is_not_loaded_again(files, opened, loads):
    files.put("mlp", 1)
    async with opened(loads=loads) as repository:
        path = files.put("mlp", 1)
        await repository.load("mlp")
        assert loads.paths == ["mlp/1"]
        # Noted, or every later pass would verify it again.
        assert repository.find("mlp").route(None).fingerprint == fingerprint(path)


@pytest.mark.thorough
async def test_deleted_versions_and_models_are_unloaded(files, opened, freed):
    files.put("mlp", 1)
    files.put("other", 1)
    files.put("mlp", 2, seed=2)
    async with opened(versions="all") as repository:
        old = weakref.ref(repository.find("mlp").route("2").model)
        files.delete("mlp", 2)
        await repository.load("mlp")
        assert repository.states() == {"1": "READY"}
        await freed(old)
        files.delete("mlp")
        with pytest.raises(ModelNotFound, match="name='mlp'"):
            await repository.load("mlp")
        with pytest.raises(ModelNotFound):
            repository.find("mlp")
        assert [served.name for served in repository.models()] == ["other"]


@pytest.mark.thorough
async def test_a_deleted_version_that_is_named_is_unloaded_and_missed(files, opened):
    files.put("mlp", 1)
    files.put("mlp", 2)
    async with opened(versions={"mlp": (1, 2)}) as repository:
        files.delete("mlp", 1)
        with pytest.raises(FileNotFoundError, match=r"must have a manifest\.json"):
            await repository.load("mlp")
        assert repository.states() == {"1": "UNAVAILABLE", "2": "READY"}
        files.put("mlp", 1)
        await repository.load("mlp")
        assert repository.states() == {"1": "READY", "2": "READY"}


@pytest.mark.thorough
async def test_as_many_old_versions_stay_as_wanted_ones_fail(files, opened):
    for version in (1, 2, 3):
        files.put("mlp", version)
    async with opened(versions="latest:2") as repository:
        assert repository.states() == {"1": "UNAVAILABLE", "2": "READY", "3": "READY"}
        files.put("mlp", 4)
        files.put("mlp", 5, damaged=True)
        with pytest.raises(IntegrityError):
            await repository.load("mlp")
        assert [v for v, s in repository.states().items() if s == "READY"] == ["3", "4"]
        assert repository.routed() == "4"


@pytest.mark.thorough
@pytest.mark.parametrize("versions", ["latest:2", "all", {"mlp": (1, 2, 3)}])
async def test_the_newest_versions_that_load_take_the_places_of_damaged_ones(
    files, lines, opened, loads, versions
):
    """Only "latest:N" has others to take."""
    for version in (1, 2, 3):
        files.put("mlp", version, damaged=version == 3)
    async with opened(versions=versions, loads=loads) as repository:
        assert loads.paths == ["mlp/3", "mlp/2", "mlp/1"]
        assert repository.states() == {"1": "READY", "2": "READY", "3": "UNAVAILABLE"}
        assert repository.routed() == "2"
        (*_, refused) = repository.find("mlp").states("'latest:2'")
        assert "weights.safetensors: array" in refused.reason
        if versions == "latest:2":
            assert lines.matching("WARNING substitute model=mlp version=1 failed=3")
            files.put("mlp", 3)
            await repository.load("mlp")
            assert repository.states() == {"1": "UNAVAILABLE", "2": "READY", "3": "READY"}


async def test_no_more_substitutes_are_loaded_than_needed_and_failed_ones_are_kept_in_mind(
    files, opened, loads
):
    for version in (1, 2, 3, 4):
        files.put("mlp", version, damaged=version in (3, 4))
    async with opened(loads=loads, poll_s=0.01) as repository:
        assert loads.paths == ["mlp/4", "mlp/3", "mlp/2"]
        files.put("other", 1)
        while "other" not in [served.name for served in repository.models()]:
            await asyncio.sleep(0)
        # A version of another model that polling loads later proves two passes.
        for version in (2, 3):
            files.put("other", version)
            while f"other/{version}" not in loads.paths:
                await asyncio.sleep(0)
        # Failed ones are tried twice: once more when their files were quiet.
        tried = [path for path in loads.paths if "mlp" in path]
        assert tried == ["mlp/4", "mlp/3", "mlp/2", "mlp/4", "mlp/3"]
        reasons = [state.reason for state in repository.find("mlp").states("'latest:1'")]
        assert [("array" in reason, "choose" in reason) for reason in reasons] == [
            (False, True),
            (False, False),
            (True, False),
            (True, False),
        ]


async def test_a_named_version_that_fails_has_no_substitute(files, opened, loads):
    files.put("mlp", 1)
    files.put("mlp", 2, damaged=True)
    async with opened(versions={"mlp": (2,)}, loads=loads) as repository:
        assert loads.paths == ["mlp/2"]
        assert repository.find("mlp").has_failed


async def test_a_version_that_cannot_be_read_fails_with_its_reason(files, opened):
    files.put("mlp", 1)
    files.path("mlp", 7).symlink_to("7")
    async with opened() as repository:
        assert repository.states() == {"1": "READY", "7": "UNAVAILABLE"}
        (_, refused) = repository.find("mlp").states("'latest:1'")
        assert "Too many levels of symbolic links" in refused.reason


@pytest.mark.thorough
async def test_a_version_in_use_that_cannot_be_read_any_more_goes_on(files, opened):
    files.put("mlp", 1)
    async with opened() as repository:
        files.delete("mlp", 1)
        files.path("mlp", 1).symlink_to("1")
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            await repository.load("mlp")
        assert repository.routed() == "1"
