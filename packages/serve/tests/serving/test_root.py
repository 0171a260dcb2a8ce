# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Listings of a repository, and those that cannot be trusted."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dovetail_serve.serving.root import Root

MLP = {"mlp"}


@pytest.fixture
def root(files):
    with ThreadPoolExecutor(1) as threads:
        yield Root(files.root, threads)


async def test_an_empty_repository_is_refused_while_models_serve(files, root):
    files.put("mlp", 1)
    assert await root.models(MLP) == ("mlp",)
    files.delete("mlp")
    for listing in (root.models(MLP), root.versions("mlp", MLP)):
        with pytest.raises(OSError, match="must have the models that serve") as error:
            await listing
        assert f"got none of 1 in {str(files.root)!r}" in str(error.value)
        assert "mount its file system again, or unload" in str(error.value)
    assert await root.models(set()) == ()
    assert (await root.versions("mlp", set())).fingerprints == {}


async def test_other_models_of_another_file_system_are_refused_while_models_serve(files, root):
    files.put("mlp", 1)
    await root.models(set())
    files.delete("mlp")
    files.put("other", 1)
    assert await root.models(MLP) == ("other",)  # the same one: mlp was deleted
    root._device = -1  # as if the listing before had been of another file system
    with pytest.raises(OSError, match="got none of 1"):
        await root.models(MLP)
    # Back under another number, with a model that serves.
    files.put("mlp", 1)
    assert await root.models(MLP) == ("mlp", "other")
    files.delete("mlp")
    assert await root.models(MLP) == ("other",)


async def test_a_repository_and_a_model_that_cannot_be_listed_are_errors(files, root, unlisted):
    files.put("mlp", 1)
    unlisted.add(str(files.root / "mlp"))
    with pytest.raises(PermissionError):
        await root.versions("mlp", MLP)
    assert await root.models(MLP) == ("mlp",)
    unlisted.add(str(files.root))
    with pytest.raises(PermissionError):
        await root.models(MLP)
