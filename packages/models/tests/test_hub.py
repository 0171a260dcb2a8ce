# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hub ids, from a cache in the layout of huggingface_hub. No test has a network."""

import pytest

constants = pytest.importorskip("huggingface_hub.constants")

from dovetail_models import abstract, init, llama, load, save  # noqa: E402
from dovetail_models.hf.hub import is_id, resolve  # noqa: E402

CONFIG = llama(vocab_size=32, embed=8, depth=1, heads=2, mlp=16)
SHA, OLD = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of models--org--tiny in an empty cache of a machine that is offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub" / "models--org--tiny"


def fill(cache, sha, *, ref, seed):
    (cache / "refs").mkdir(parents=True, exist_ok=True)
    (cache / "refs" / ref).write_text(sha)
    save(init(CONFIG, seed=seed), cache / "snapshots" / sha)


def test_an_id_is_read_from_the_cache(cache, leaves):
    fill(cache, SHA, ref="main", seed=1)
    fill(cache, OLD, ref="v1", seed=2)
    assert resolve("org/tiny") == cache / "snapshots" / SHA
    assert resolve(f"org/tiny@{OLD}") == cache / "snapshots" / OLD
    assert abstract("org/tiny").config.vocab_size == 32
    for name, seed in {"org/tiny": 1, "org/tiny@v1": 2}.items():
        want, got = leaves(init(CONFIG, seed=seed)), leaves(load(name))
        assert all((want[leaf] == got[leaf]).all() for leaf in want)


def test_offline_without_a_whole_copy_says_what_to_download(cache):
    with pytest.raises(FileNotFoundError, match="with no copy in the cache") as error:
        load("org/tiny@v1")
    assert "got path='org/tiny@v1'" in str(error.value)
    assert str(error.value).endswith("hf download org/tiny --revision v1")
    fill(cache, SHA, ref="main", seed=1)
    (cache / "snapshots" / SHA / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="with a part of it in") as error:
        load("org/tiny")
    assert str(error.value).endswith("hf download org/tiny")


def test_paths_are_no_ids(cache, tmp_path):
    fill(cache, SHA, ref="main", seed=1)
    (tmp_path / "org").mkdir()
    assert not is_id("org/tiny")  # a folder of that name is here
    with pytest.raises(FileNotFoundError, match=r"directory with config\.json"):
        load("org/tiny")
    for path in ("tiny", "./org2/tiny", "/org2/tiny", "a/b/c", "org2/", "org2/tiny@"):
        assert not is_id(path)
        assert str(resolve(path)) == path.removesuffix("/").removeprefix("./")
