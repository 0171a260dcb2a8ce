# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a bundle that are moved or replaced while it is loaded, or afterwards."""

import asyncio
import copy
import os
import pickle
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from dovetail_serve import (
    HostFunction,
    IntegrityError,
    RequestError,
    Server,
    Tensor,
    export,
    load,
    testing,
)


class Replacing(list):
    """No models to share with; another bundle takes the place of `path` as they are looked at."""

    def __init__(self, path, other):
        super().__init__()
        self._path, self._other = path, other

    def __iter__(self):
        if self._other.exists():
            self._path.rename(self._path.with_name("old"))
            self._other.rename(self._path)
        return super().__iter__()


@pytest.mark.thorough
@pytest.mark.parametrize("checks", ["full", "files", "none"])
def test_a_bundle_that_is_replaced_while_it_is_loaded_is_refused(tmp_path, checks):
    for seed, name in ((1, "1"), (2, "other")):
        testing.save_mlp(tmp_path / name, seed=seed, batch_sizes=(4,))
    path = tmp_path / "1"
    with pytest.raises(IntegrityError, match="must stay as it is while it is loaded") as error:
        load(path, verify=checks, share=Replacing(path, tmp_path / "other"))
    assert str(path) in str(error.value)
    assert "manifest.json was replaced meanwhile; load it again" in str(error.value)
    assert error.value.file == "manifest.json"
    load(path, verify=checks)


@pytest.mark.thorough
def test_a_model_of_a_relative_path_survives_another_working_directory(tmp_path, monkeypatch):
    expected = testing.save_mlp(tmp_path / "bundle", batch_sizes=(2, 4))
    monkeypatch.chdir(tmp_path)
    model = load("bundle", verify="none")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    x = np.random.default_rng(3).normal(size=(3, 6)).astype("float32")
    # float32 sums of at most 6 terms of size 3, and tanh.
    np.testing.assert_allclose(model(x=x)["y"], expected(x), rtol=1e-5, atol=2e-6)


X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def save(path, version):
    """Saves x times `version`, where the host function also reads the version from an asset."""
    export(
        lambda p, *, x: {"y": x * p["scale"]},
        {"scale": np.float32(version)},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": X},
        platforms=["cpu"],
        batch_sizes=(1, 2, 4),
        before=HostFunction("read", {"x": Tensor(("batch", 3), "float32")}),
        assets={"version": b"%d" % version},
    ).save(path)


def read(arrays, assets):
    return {"x": arrays["x"] + float(assets["version"].read_text())}


FUNCTIONS = {"read": read}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("repo")
    for version in (1, 2):
        save(root / str(version), version)
    return root


@pytest.fixture
def versions(saved, tmp_path):
    """Versions 1 and 2 of a model, and `current`, a link to version 1."""
    shutil.copytree(saved, tmp_path / "scaled")
    (tmp_path / "scaled/current").symlink_to("1")
    return tmp_path / "scaled"


def move(link, target):
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


@pytest.mark.thorough
def test_a_model_stays_in_its_process(saved):
    model = load(saved / "1", functions=FUNCTIONS)
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"must stay in its process, .* got a call .*; send the"
        ):
            call(model)


def test_a_model_is_not_traced(saved):
    model = load(saved / "1", functions=FUNCTIONS)
    with pytest.raises(RequestError, match="'x' must have values, got a tracer; call the model"):
        jax.jit(lambda x: model(x=x))(X)


@pytest.mark.thorough
def test_a_single_device_is_refused(saved):
    program = (
        "import sys, jax, dovetail_serve\n"
        "dovetail_serve.load(sys.argv[1], devices=jax.devices()[0])"
    )
    run = subprocess.run(  # in this process annotations are checked
        [sys.executable, "-c", program, saved / "1"],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TypeError: devices must be a sequence, got devices=" in run.stderr
    assert run.stderr.endswith("write devices=[device]\n")


@pytest.mark.parametrize("verify", ["full", "none"])
def test_a_moved_link_leaves_a_loaded_model_as_it_is(versions, verify):
    model = load(versions / "current", functions=FUNCTIONS, verify=verify)
    move(versions / "current", "2")
    for count in (1, 2, 4):
        np.testing.assert_array_equal(model(x=X[:count])["y"], X[:count] + 1)
    model.self_test().check()
    assert model.digest == load(versions / "1", functions=FUNCTIONS).digest
    assert load(versions / "current", functions=FUNCTIONS).digest != model.digest


def test_a_link_on_the_way_is_resolved_too(versions, monkeypatch):
    monkeypatch.chdir(versions.parent)
    os.symlink("scaled", "repo")
    model = load("repo/1", functions=FUNCTIONS)
    monkeypatch.chdir("/")
    move(versions.parent / "repo", "nowhere")
    np.testing.assert_array_equal(model(x=X)["y"], X + 1)
    assert model.assets["version"] == versions / "1/assets/version"


@pytest.mark.thorough
@pytest.mark.parametrize("verify", ["full", "none"])
@pytest.mark.parametrize("kind", ["deleted", "replaced"])
def test_programs_and_example_outlive_the_directory(versions, verify, kind):
    model = load(versions / "1", functions=FUNCTIONS, verify=verify)
    (versions / "1").rename(versions / "old")
    if kind == "deleted":
        shutil.rmtree(versions / "old")
    else:
        (versions / "2").rename(versions / "1")
    for count in (1, 2, 4):
        np.testing.assert_array_equal(model.run({"x": X[:count]}, count)["y"], X[:count])
    model.self_test().check()
    assert model.verify() == 1


@pytest.mark.thorough
def test_a_server_answers_by_one_version_when_the_link_to_its_repository_moves(versions, tmp_path):
    for name, version in (("a", "1"), ("b", "2")):
        shutil.copytree(versions / version, tmp_path / name / "scaled/1")
    (tmp_path / "repo").symlink_to("a")

    async def answer():
        async with Server(tmp_path / "repo", functions=FUNCTIONS) as server:
            move(tmp_path / "repo", "b")
            return await server.infer("scaled", {"x": X})

    np.testing.assert_array_equal(asyncio.run(answer()).outputs["y"], X + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["its buffer", "its input"])
def test_results_do_not_change_with_the_arrays_of_a_host_function(tmp_path, kind):
    export(
        lambda p, *, x: {"y": x * p},
        np.float32(2),
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": X},
        platforms=["cpu"],
        batch_sizes=(4,),
        after=HostFunction("after", {"y": Tensor(("batch", 3), "float32")}),
    ).save(tmp_path / "1")
    buffer = np.zeros_like(X)

    def after(arrays, assets):
        if kind == "its input":
            return arrays
        buffer[:] = arrays["y"]
        return {"y": buffer}

    model = load(tmp_path / "1", functions={"after": after})
    first = model(x=X)["y"]
    model(x=-X)
    np.testing.assert_array_equal(first, X * 2)
    assert first.flags.owndata
    assert first.flags.writeable
