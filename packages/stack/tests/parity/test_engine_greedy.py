# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy ids of the engine and of transformers' `generate`, for every family of decoders."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import dovetail_kernels
from dovetail_data import train_bpe
from dovetail_infer import Engine, Sampling
from dovetail_kernels import grouped_matmul
from dovetail_models import init, save
from dovetail_models.fresh.sizes import decoders
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape

pytestmark = pytest.mark.parity

LENGTH, NEW, PAGE = 80, 12, 16
# Around the borders of pages, and up to the last position but one.
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, LENGTH - 1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("words") / "tokenizer.json"
    return train_bpe(
        ["def read_file(path):\n    return open(path).read()\n"] * 20, file, vocab_size=320
    )


def prompts(vocab_size: int) -> list[list[int]]:
    """Ragged prompts; the second half begins like the first, and one occurs twice."""
    rng = np.random.default_rng(0)
    first = [rng.integers(4, vocab_size, n).tolist() for n in LENGTHS]
    common = rng.integers(4, vocab_size, LENGTH).tolist()
    second = [common[:n] for n in (16, 17, 48, 60)]
    return [*first, *second, first[3]]


def randomised(model: nnx.Module) -> nnx.Module:
    """Moves each parameter, so that biases and sinks matter and greedy ids are not all alike."""
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


def theirs(model: Any, ids: list[int]) -> list[int]:
    import torch

    given = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),  # without it, they guess padding from ids
            do_sample=False,
            max_new_tokens=min(NEW, LENGTH - len(ids)),
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("family", decoders())
def test_greedy_ids_are_those_of_generate(family, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM

    config = config_for(Shape(family=family, embed=32, depth=2, heads=4), tokenizer, length=LENGTH)
    model = randomised(init(config, seed=3))
    save(model, tmp_path / "hf")
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="float32").eval()
    peer.generation_config.eos_token_id = None
    given = prompts(config.vocab_size)
    want = [theirs(peer, ids) for ids in given]
    assert len({tuple(ids) for ids in want}) >= len(want) // 2  # no constant
    engine = Engine(
        model.configure(ragged_dot=grouped_matmul),
        operations=dovetail_kernels,
        page_size=PAGE,
        step_tokens=48,
        max_rows=4,
        max_length=LENGTH,
        kv_bytes=2**22,
    )
    with engine:
        completions = engine.generate(given, Sampling(max_tokens=NEW, temperature=0))
        assert engine.stats().cached_tokens > 0
    assert [c.tokens.tolist() for c in completions] == want
