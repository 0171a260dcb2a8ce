# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_data import Bytes
from dovetail_infer import Sampling
from dovetail_models import init, llama
from dovetail_stack.recipes.engine import engine
from dovetail_stack.recipes.sampling import Samples
from dovetail_train import Trainer, lm_loss

SIZES = {"embed": 16, "depth": 1, "heads": 2, "mlp": 24, "max_length": 64}


def _into(texts):
    return lambda *text: texts.append(text)


@pytest.fixture(scope="module")
def model():
    return init(llama(vocab_size=Bytes().vocab_size, **SIZES), seed=0)


@pytest.mark.thorough
def test_it_writes_the_greedy_text_of_the_weights_of_each_step(model):
    tokenizer, texts = Bytes(), []
    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(model)
    rng = np.random.default_rng(0)
    tokens = {name: rng.integers(0, 256, (2, 16), np.int32) for name in ("tokens", "targets")}
    batch = {**tokens, "mask": np.ones((2, 16), np.float32)}
    hook = Samples(_into(texts), tokenizer, prompts=["ab"], every=10, max_tokens=5)
    assert hook.every == 10
    expected = []
    for step in (10, 20):
        assert hook(trainer, state, step) == {}
        with engine(trainer.model(state), tokenizer=tokenizer, max_rows=1) as fresh:
            (completion,) = fresh.generate(["ab"], Sampling(max_tokens=5, temperature=0))
        expected.append((step, "sample 1", f"ab{completion.text}"))
        for _ in range(8):  # each donates the arrays that the hook was shown
            state, _ = trainer.step(state, batch)
    assert texts == expected
    assert len({text for _, _, text in texts}) > 1


@pytest.mark.thorough
def test_one_engine_serves_all_samples_without_a_compilation(model):
    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(model)
    hook = Samples(_into([]), Bytes(), prompts=["ab"], every=1, max_tokens=5)
    compilations = []

    def listen(event, duration_s, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        hook(trainer, state, 1)
        assert compilations  # the event that is counted
        compilations.clear()
        hook(trainer, state, 2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compilations == []


@pytest.mark.thorough
def test_a_continuation_ends_at_an_id_that_the_directory_names(model, tmp_path):
    texts, more = [], []
    hook = Samples(_into(texts), Bytes(), prompts=["ab"], every=1, max_tokens=9)
    hook.write(model, 1)
    with engine(model, tokenizer=Bytes(), max_rows=1) as opened:
        ids = opened.generate(["ab"], Sampling(max_tokens=9, temperature=0))[0].tokens.tolist()
    end = next(i for i in ids[2:] if i not in ids[:2])
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, end]}))
    options = {"prompts": ["ab"], "every": 1, "max_tokens": 9, "directory": tmp_path}
    Samples(_into(texts), Bytes(), **options).write(model, 1)
    ended = [Bytes().decode(ids), Bytes().decode(ids[: ids.index(end)])]
    assert [text for _, _, text in texts] == [f"ab{text}" for text in ended]
    drawn = {"do_sample": True, "temperature": 9, "top_k": 250}
    (tmp_path / "generation_config.json").write_text(json.dumps(drawn))
    Samples(_into(more), Bytes(), directory_sampling=True, **options).write(model, 1)
    with engine(model, tokenizer=Bytes(), max_rows=1) as opened:
        asked = Sampling(max_tokens=9, temperature=9, top_k=250, seed=0)
        (completion,) = opened.generate(["ab"], asked)
    assert more == [(1, "sample 1", f"ab{completion.text}")]
    assert more != texts[:1]


@pytest.mark.thorough
def test_of_a_larger_module_the_decoder_writes(model):
    class Holder(nnx.Module):
        def __init__(self, inner):
            self.inner = inner

    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(Holder(model))
    options = {"prompts": ["a"], "every": 1, "max_tokens": 2, "decoder": lambda held: held.inner}
    texts: list[tuple[int, str, str]] = []
    Samples(_into(texts), Bytes(), wanted=["b"], **options)(trainer, state, 1)
    ((_, _, text),) = texts
    assert text.startswith("a")
    assert text.endswith("--- in the data:\nb")


@pytest.mark.thorough
def test_weights_that_are_not_finite_end_the_run(model):
    trainer = Trainer(optax.sgd(0.1), lm_loss())
    state = trainer.init(model)
    broken = dataclasses.replace(state, params=jax.tree.map(lambda x: x * jnp.nan, state.params))
    with pytest.raises(ValueError, match=r"."):
        Samples(_into([]), Bytes(), prompts=["a"], every=1)(trainer, broken, 1)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 1, "max_tokens": 0}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=r"must be at least 1, got every=.*write for example"):
        Samples(_into([]), Bytes(), prompts=["a"], **options)
    with pytest.raises(ValueError, match=r"needs a directory .* got directory=None: pass dir"):
        Samples(_into([]), Bytes(), prompts=["a"], every=1, directory_sampling=True)
