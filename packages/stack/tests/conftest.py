# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A small text, and a small model with a tokenizer of that text, as a Hugging Face directory."""

import json
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from dovetail_checkpoint import inspect
from dovetail_data import pack, records, text, train_bpe
from dovetail_models import init, save
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape
from dovetail_stack.recipes.text import encode, find, split

LENGTH = 24  # of the rows, as in the tests that take them


@pytest.fixture(scope="session")
def leaves():
    """A function of a step of a checkpoint: {item: sorted names of its arrays}."""

    def names(step):
        return {
            tree.item: sorted(leaf.name for leaf in tree.leaves) for tree in inspect(step).trees
        }

    return names


@pytest.fixture(scope="session")
def randomised():
    """A function: the model with each parameter near what it was; norms are then not all ones."""

    def moved(model, seed):
        generator = np.random.default_rng(seed)

        def near(x):
            return x + jax.numpy.asarray(generator.uniform(-0.3, 0.3, x.shape), x.dtype)

        nnx.update(model, jax.tree.map(near, nnx.state(model, nnx.Param)))
        return model

    return moved


@pytest.fixture(scope="session")
def files():
    root = Path(sysconfig.get_paths()["stdlib"]) / "json"
    return root, find(root, pattern="*.py")


@pytest.fixture(scope="session")
def source(tmp_path_factory, files, randomised):
    """A directory with a random Llama of 2 layers, trained on nothing, and 320 ids."""
    folder = tmp_path_factory.mktemp("source")
    texts = (record["text"] for record in records(text(files[1])))
    tokenizer = train_bpe(texts, folder / "tokenizer.json", vocab_size=320)
    shape = Shape(embed=24, depth=2, heads=4, kv_heads=2, mlp=40)
    config = config_for(shape, tokenizer, length=LENGTH)
    save(randomised(init(config, seed=3), 0), folder / "hf", like=folder)
    assert json.loads((folder / "hf" / "config.json").read_text())["vocab_size"] == 320
    return folder / "hf"


@pytest.fixture(scope="session")
def rows(tmp_path_factory, files, source):
    """Packed rows of LENGTH tokens, by the source's tokenizer."""
    from dovetail_data import Pretrained

    parts = split(files[1], root=files[0], held_out=0.2)
    corpora = encode(*parts, tmp_path_factory.mktemp("rows"), tokenizer=Pretrained(source))
    return pack(corpora.train, length=LENGTH, seed=0)
