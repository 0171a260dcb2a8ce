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
from dovetail_data import hold_out_files, pack, records, select_text, text, train_bpe
from dovetail_models import init, save
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape
from dovetail_stack.recipes.text import encode

LENGTH = 24  # of the rows, as in the tests that take them


@pytest.fixture(autouse=True, scope="session")
def lower_optimization(request):
    """Lets XLA optimize less, as the fast tier does. Sessions of marks compile as users do.

    Programs as users compile them are the subject of the suites of models, kernels and train.
    """
    if "not parity" in request.config.option.markexpr:
        jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def leaves():
    """A function of a step of a checkpoint: {item: sorted names of its arrays}."""

    def names(step):
        return {
            tree.item: sorted(leaf.name for leaf in tree.leaves) for tree in inspect(step).trees
        }

    return names


@pytest.fixture(scope="session")
def forward():
    """A function: the result of a model, by one program. A call by itself compiles a hundred."""
    return nnx.jit(lambda model, *arrays, **options: model(*arrays, **options))


@pytest.fixture(scope="session")
def randomised():
    """A function: the model with each parameter near what it was; norms are then not all ones."""

    def moved(model, seed):
        generator = np.random.default_rng(seed)

        def near(x):  # by NumPy, which compiles nothing
            moved = np.asarray(x, np.float32) + generator.uniform(-0.3, 0.3, x.shape)
            return jax.numpy.asarray(moved, x.dtype)

        nnx.update(model, jax.tree.map(near, nnx.state(model, nnx.Param)))
        return model

    return moved


@pytest.fixture(scope="session")
def files():
    root = Path(sysconfig.get_paths()["stdlib"]) / "json"
    return root, select_text(root, pattern="*.py").files


@pytest.fixture(scope="session")
def source(tmp_path_factory, files, randomised):
    """A directory with a random Llama of one layer, trained on nothing, and 320 ids."""
    folder = tmp_path_factory.mktemp("source")
    texts = (record["text"] for record in records(text(files[1])))
    tokenizer = train_bpe(texts, folder / "tokenizer.json", vocab_size=320)
    shape = Shape(embed=24, depth=1, heads=4, kv_heads=2, mlp=40)
    config = config_for(shape, tokenizer, length=LENGTH)
    save(randomised(init(config, seed=3), 0), folder / "hf", like=folder)
    assert json.loads((folder / "hf" / "config.json").read_text())["vocab_size"] == 320
    return folder / "hf"


@pytest.fixture(scope="session")
def rows(tmp_path_factory, files, source):
    """Packed rows of LENGTH tokens, by the source's tokenizer."""
    from dovetail_data import Pretrained

    parts = hold_out_files(files[1], root=files[0], share=0.2)
    corpora = encode(*parts, tmp_path_factory.mktemp("rows"), tokenizer=Pretrained(source))
    return pack(corpora.train, length=LENGTH, seed=0)


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ("red", "green", "blue", "one", "two")


@pytest.fixture(scope="session")
def talker(tmp_path_factory, randomised):
    """A directory with a random Llama of one layer, 288 ids and a chat template."""
    folder = tmp_path_factory.mktemp("talker")
    texts = [f"[user]say {a} {b}[assistant]{b} {a}!" for a in WORDS for b in WORDS]
    tokenizer = train_bpe(texts * 3, folder / "tokenizer.json", vocab_size=288)
    shape = Shape(embed=32, depth=1, heads=2, kv_heads=1, mlp=48)
    save(
        randomised(init(config_for(shape, tokenizer, length=64), seed=3), 0),
        folder / "hf",
        like=folder,
    )
    (folder / "hf" / "chat_template.jinja").write_text(TEMPLATE)
    return folder / "hf"


def _lines(file, records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.fixture(scope="session")
def chats(tmp_path_factory):
    """A file of 25 conversations: the answer has the two words of the question, swapped."""
    said = [
        {
            "messages": [
                {"role": "user", "content": f"say {a} {b}"},
                {"role": "assistant", "content": f"{b} {a}!"},
            ]
        }
        for a in WORDS
        for b in WORDS
    ]
    return _lines(tmp_path_factory.mktemp("chats") / "chats.jsonl", said)


@pytest.fixture(scope="session")
def preferred(tmp_path_factory):
    """A file of 25 pairs of texts."""
    pairs = [
        {"prompt": f"say {a} {b}", "chosen": f"{b} {a}!", "rejected": f"{a} no {b} {b}"}
        for a in WORDS
        for b in WORDS
    ]
    return _lines(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", pairs)
