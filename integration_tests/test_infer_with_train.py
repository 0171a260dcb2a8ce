# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The seams of reinforcement learning: an engine samples from weights that a trainer changes."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import dovetail_kernels
from dovetail_infer import Engine, Sampling
from dovetail_models import gemma3, init, llama, lora, mixtral
from dovetail_quant import Spec, apply, plan, requantize
from dovetail_train import Trainer, lm_loss, loglikelihood

pytestmark = pytest.mark.thorough

LENGTH = 32
SIZES = {"vocab_size": 61, "embed": 32, "heads": 4, "kv_heads": 2, "head_dim": 8}
CONFIGS = {
    "llama": llama(**SIZES, depth=1, mlp=48, max_length=LENGTH),
    "gemma3": gemma3(**SIZES, depth=2, mlp=48, max_length=LENGTH, window=5, pattern=2),
    "mixtral": mixtral(**SIZES, depth=1, mlp=24, experts=4, top_k=2, max_length=LENGTH),
}
# A float32 log-probability is a sum over at most 61 exponentials of logits of two layers.
CLOSE = {"rtol": 0, "atol": 1e-4}
PROMPTS = [[3, 14, 15, 9, 26, 5, 35, 8, 9], [3, 14, 15, 9, 26, 5, 35, 8, 58], [27, 18]]


@pytest.fixture(params=CONFIGS)
def model(request):
    """A decoder whose logits differ from token to token."""
    model = init(CONFIGS[request.param], seed=1)
    rng = np.random.default_rng(0)

    def moved(x):
        return x + jax.numpy.asarray(rng.normal(0, 0.25, x.shape), x.dtype)

    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.Param)))
    return model


def open_engine(model):
    return Engine(
        model,
        operations=dovetail_kernels,
        page_size=4,
        max_length=LENGTH,
        max_rows=4,
        step_tokens=16,
        kv_bytes=1 << 20,
    )


def draw(engine, *, seed, max_tokens=8):
    """Samples two completions for each prompt, flat, beside their prompts."""
    groups = engine.sample(PROMPTS, n=2, max_tokens=max_tokens, temperature=1.0, seed=seed)
    assert [len(group) for group in groups] == [2, 2, 2]
    return [
        (prompt, sample) for prompt, group in zip(PROMPTS, groups, strict=True) for sample in group
    ]


def logps_of(model, draws):
    """Log-probability of each token of each completion, by the trainer's evaluation."""
    requests = []
    for prompt, sample in draws:
        ids = [*prompt, *sample.tokens.tolist()]
        requests += [(ids[:i], [ids[i]]) for i in range(len(prompt), len(ids))]
    flat = loglikelihood(model, requests, length=LENGTH, rows=16).logps
    return np.split(flat, np.cumsum([len(sample.tokens) for _, sample in draws])[:-1])


def copied(model):
    """The model with arrays of its own."""
    graph, state = nnx.split(model)
    return nnx.merge(graph, jax.tree.map(jax.numpy.copy, state))


def batch_of(draws):
    """Rows for `lm_loss`: the tokens of completions, weighed by an advantage of 0.5 or 1."""
    rows = len(draws)
    batch = {name: np.zeros((rows, LENGTH), np.int32) for name in ("tokens", "targets")}
    batch["mask"] = np.zeros((rows, LENGTH), np.float32)
    for i, (prompt, sample) in enumerate(draws):
        ids = [*prompt, *sample.tokens.tolist()]
        batch["tokens"][i, : len(ids) - 1] = ids[:-1]
        batch["targets"][i, : len(ids) - 1] = ids[1:]
        batch["mask"][i, len(prompt) - 1 : len(ids) - 1] = 0.5 + 0.5 * (i % 2)
    return batch


def check(draws, model, *, version):
    for (_, sample), expected in zip(draws, logps_of(model, draws), strict=True):
        np.testing.assert_allclose(sample.logprobs, expected, **CLOSE)
        # At temperature 1 and without filters this is the distribution of the draw.
        np.testing.assert_allclose(sample.sampled_logprobs, expected, **CLOSE)
        assert sample.versions.tolist() == [version] * len(sample.tokens)


def test_an_engine_follows_the_trainer(model):
    trainer = Trainer(optax.adam(3e-2), lm_loss())
    state = trainer.init(model)
    with open_engine(model) as engine:
        check(draw(engine, seed=0), model, version=0)
        for version in (1, 2):
            draws = draw(engine, seed=version)
            state, _ = trainer.step(state, batch_of(draws))
            engine.update_weights(nnx.state(trainer.model(state)), version=version)
            draws = draw(engine, seed=10 + version)
            assert draws[0][1].cached_tokens == 0  # the pages of the old weights are stale
            check(draws, trainer.model(state), version=version)
            again = draw(engine, seed=10 + version)
            assert again[0][1].cached_tokens == 8  # two pages of four
            assert [s.tokens.tolist() for _, s in again] == [s.tokens.tolist() for _, s in draws]
        # The next step donates the state whose arrays the engine was given: it has copies.
        before = copied(trainer.model(state))
        moved = logps_of(before, draws[:1])[0] - logps_of(model, draws[:1])[0]
        assert np.abs(moved).max() > 1e-2
        state, _ = trainer.step(state, batch_of(draws))
        check(draw(engine, seed=20), before, version=2)


def test_only_adapters_are_updated(model):
    adapted = lora.insert(model, "layers.*.attn.{q,v}", rank=2, alpha=4, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.adam(3e-2), lm_loss(), trainable="**.lora_{a,b}")
    state = trainer.init(adapted)
    with open_engine(adapted) as engine:
        draws = draw(engine, seed=0)
        check(draws, model, version=0)  # fresh adapters change nothing
        for _ in range(3):
            state, _ = trainer.step(state, batch_of(draws))
        trained = trainer.model(state)
        engine.update_weights(nnx.state(trained, nnx.LoRAParam), version=1)
        draws = draw(engine, seed=0)
        check(draws, trained, version=1)
    moved = draws[0][1].logprobs - logps_of(model, draws[:1])[0]
    assert np.abs(moved).max() > 1e-2


def test_a_quantized_sampler_is_requantized(model):
    trainer = Trainer(optax.adam(3e-2), lm_loss())
    state = trainer.init(model)
    rules = plan(model, [("**", Spec(weight="int8"))])
    small = apply(model, rules)
    with open_engine(small) as engine:
        draws = draw(engine, seed=0)
        check(draws, small, version=0)
        for _ in range(3):
            state, _ = trainer.step(state, batch_of(draws))
        trained = trainer.model(state)
        engine.update_weights(requantize(nnx.state(small), nnx.state(trained)), version=1)
        check(draw(engine, seed=0), apply(trained, rules), version=1)
        check(draw(engine, seed=1), apply(trained, rules), version=1)


def test_weights_change_between_the_steps_of_a_request(model):
    """A request that is running goes on with the new weights, and says so for each token."""
    trainer = Trainer(optax.adam(3e-2), lm_loss())
    state = trainer.init(model)
    options = Sampling(max_tokens=20, temperature=1.0, seed=0, ignore_eos=True)
    with open_engine(model) as engine:
        with engine.stream(PROMPTS[0], options) as stream:
            next(iter(stream))
            state, _ = trainer.step(state, batch_of(draw(engine, seed=0)))
            engine.update_weights(nnx.state(trainer.model(state)), version=1)
            for _ in stream:
                pass
        versions = stream.completion.versions
        assert versions[0] == 0
        assert (np.diff(versions) >= 0).all()
        assert stream.completion.version == 0
