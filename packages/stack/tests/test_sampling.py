# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import optax
import pytest
from flax import nnx

from dovetail_data import Bytes
from dovetail_models import init, llama
from dovetail_stack.recipes.generation import generate
from dovetail_stack.recipes.sampling import Samples
from dovetail_train import Trainer, lm_loss

SIZES = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "max_length": 64}


@pytest.fixture(scope="module")
def model():
    return init(llama(vocab_size=Bytes().vocab_size, **SIZES), seed=0)


def test_it_writes_what_generation_gives(model, tmp_path):
    tokenizer, file = Bytes(), tmp_path / "samples.jsonl"
    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(model)
    hook = Samples(file, tokenizer, prompt="ab", every=10, max_tokens=5)
    assert hook.every == 10
    assert hook(trainer, state, 10) == {}
    hook(trainer, state, 20)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    text = "".join(generate(model, tokenizer, "ab", max_tokens=5))
    assert lines == [{"step": step, "prompt": "ab", "text": text} for step in (10, 20)]


def test_of_a_larger_module_the_decoder_writes(model, tmp_path):
    class Holder(nnx.Module):
        def __init__(self, inner):
            self.inner = inner

    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(Holder(model))
    options = {"prompt": "a", "every": 1, "max_tokens": 2, "decoder": lambda held: held.inner}
    Samples(tmp_path / "s", Bytes(), **options)(trainer, state, 1)
    assert json.loads((tmp_path / "s").read_text(encoding="utf-8"))["prompt"] == "a"


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 1, "max_tokens": 0}])
def test_options_that_mean_nothing_are_refused(options, tmp_path):
    with pytest.raises(ValueError, match=r"must be at least 1, got every=.*write for example"):
        Samples(tmp_path / "s", Bytes(), prompt="a", **options)
