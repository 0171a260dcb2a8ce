# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every decoder family in the executor of dovetail-infer, against a float64 forward."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import dovetail_kernels
import dovetail_models as models
import forced_devices
import warm_start
from dovetail_infer import Engine, Sampling, reference
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.layout import discover
from dovetail_infer.testing import drive
from dovetail_kernels import grouped_matmul
from dovetail_models import kv_bytes
from dovetail_models.families import FAMILIES
from dovetail_models.testing import logits
from dovetail_quant import Spec, apply, plan

LIMIT = 40  # of prompt and output
SMALL = {"vocab_size": 53, "embed": 24, "depth": 1, "heads": 4, "mlp": 20}
HEADS = {**SMALL, "kv_heads": 2, "head_dim": 8}
TWO = {**HEADS, "depth": 2}  # where layers take turns
MIXTURE = {"experts": 5, "top_k": 2}
LATENT = models.LatentAttention(
    heads=4, q_rank=8, kv_rank=12, nope_dim=6, rope_dim=4, v_dim=10, rope=models.Rope(theta=1e4)
)
DEEPSEEK = {
    "vocab_size": 53,
    "embed": 24,
    "mlp": 20,
    "depth": 2,
    "dense": 1,
    "attention": LATENT,
    "experts": models.Experts(count=6, top_k=2, hidden=8, shared=8),
}
DECODERS = {
    "llama": models.llama(**TWO),
    "mistral": models.mistral(**HEADS, window=5),
    "qwen2": models.qwen2(**SMALL, kv_heads=2, tie=True),
    "qwen3": models.qwen3(**HEADS),
    "qwen3_moe": models.qwen3_moe(**HEADS, **MIXTURE),
    "gemma": models.gemma(**HEADS),
    "gemma2": models.gemma2(**TWO, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0),
    "gemma3_text": models.gemma3(**TWO, window=20, query_scalar=6.0, pattern=2),
    "gpt2": models.gpt2(**SMALL, max_length=LIMIT),
    "mixtral": models.mixtral(**HEADS, **MIXTURE),
    "gpt_oss": models.gpt_oss(**TWO, window=4, **MIXTURE),
    "deepseek_v2": models.deepseek_v2(**DEEPSEEK),
    "deepseek_v3": models.deepseek_v3(**DEEPSEEK),
}
BITS = ("llama", "mixtral", "deepseek_v3", "gemma2")
OPERATIONS = {"kernels": dovetail_kernels, "reference": reference}
LENGTHS = (15, 16, 17, 31, 32, 33, LIMIT - 1)  # page borders, and one short of the limit


def _random(config):
    """A model without the ones and zeros that hide sinks, biases and scales."""
    model = models.init(config, seed=0)
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


def _executor(model, operations):
    layout = discover(model, max_length=LIMIT)
    pages = 3 * len(LENGTHS)
    limits = Limits(
        page_size=16,
        step_tokens=24,
        max_rows=4,
        max_length=LIMIT,
        groups=tuple(Group(window=window, pages=pages) for window in layout.windows),
    )
    # One size: one program for each kind that a test uses.
    return Executor(model, operations=operations, layout=layout, limits=limits, invariant=True)


def _prompts(seed=3):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 53, n) for n in LENGTHS]
    prompts[4][:16] = prompts[3][:16]  # a shared first page
    return prompts


def _check(results, prompts, whole):
    """Compares with the log-probabilities of `whole(ids)`, float64 logits [T, V]."""
    for prompt, (tokens, logprobs, of_prompt) in zip(prompts, results, strict=True):
        want = whole(np.concatenate([prompt, tokens[:-1]]))
        want = want - np.logaddexp.reduce(want, axis=-1, keepdims=True)
        drawn = want[len(prompt) - 1 :]
        at = np.arange(len(tokens)), tokens
        # float32 against float64: sums of at most 40 products of 6e-8, through two layers.
        np.testing.assert_allclose(logprobs, drawn[at], rtol=0, atol=1e-4)
        np.testing.assert_allclose(drawn[at], drawn.max(axis=-1), rtol=0, atol=1e-4)
        if of_prompt is None:
            continue
        given = want[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(of_prompt, given, rtol=0, atol=1e-4)


def test_no_family_is_forgotten():
    encoders = {"bert", "siglip", "siglip_text_model", "siglip_vision_model", "vit"}
    assert FAMILIES.keys() - DECODERS.keys() == encoders


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("continuous batching of every decoder family")
@pytest.mark.parametrize("operations", OPERATIONS)
@pytest.mark.parametrize("family", DECODERS)
def test_a_family_has_the_log_probabilities_of_whole_rows(family, operations):
    model = _random(DECODERS[family]).configure(ragged_dot=grouped_matmul)
    prompts = _prompts()
    results = drive(_executor(model, OPERATIONS[operations]), prompts, max_tokens=4)
    assert [len(r.tokens) for r in results] == [min(4, LIMIT - n) for n in LENGTHS]
    _check(results, prompts, lambda ids: logits(model, ids[None])[0])


@pytest.mark.thorough
@pytest.mark.parametrize("family", DECODERS)
def test_an_engine_completes_as_the_likeliest_tokens_of_whole_rows(family):
    model = _random(DECODERS[family]).configure(ragged_dot=grouped_matmul)
    sizes = {"page_size": 16, "step_tokens": 24, "max_rows": 4, "max_length": LIMIT}
    prompts = _prompts()
    with Engine(
        model, operations=dovetail_kernels, kv_bytes=2**20, invariant=True, **sizes
    ) as engine:
        given = [prompt.tolist() for prompt in prompts]
        completions = engine.generate(given, Sampling(max_tokens=4, temperature=0))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.finish_reason == "length"
        assert len(completion.tokens) == min(4, LIMIT - len(prompt))
    results = [(c.tokens, c.logprobs, None) for c in completions]
    _check(results, prompts, lambda ids: logits(model, ids[None])[0])


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["llama", "mixtral", "deepseek_v3"])
def test_company_does_not_change_a_bit_in_one_program(family):
    model = _random(DECODERS[family]).configure(ragged_dot=grouped_matmul)
    executor = _executor(model, dovetail_kernels)
    prompts = _prompts()
    together = drive(executor, prompts, max_tokens=6, seed=5)
    for i in (2, 4):
        alone = drive(executor, [prompts[i]], max_tokens=6, seed=i)[0]
        for ours, theirs in zip(alone, together[i], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def _company() -> tuple[list[list[int]], list[Sampling]]:
    """24 requests: prompts of 1 to 32 tokens, two of three with the same first pages.

    Some ask for scores of the prompt or for penalties, which run other kinds of programs.
    """
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 53, 16).tolist()
    own = [rng.integers(0, 53, int(rng.integers(1, 17))).tolist() for _ in range(24)]
    prompts = [(shared if i % 3 else []) + ids for i, ids in enumerate(own)]
    prompts[0] = prompts[0][:1]
    kinds = ({}, {"frequency_penalty": 0.5}, {"prompt_logprobs": 0}, {})
    sampling = [
        Sampling(max_tokens=8, temperature=0.8 * (i % 2), seed=i, **kinds[i // 2 % 4])
        for i in range(24)
    ]
    return prompts, sampling


@pytest.mark.thorough("it compiles an engine for each case")
@pytest.mark.capability("results that do not depend on the batch by a bit")
@pytest.mark.parametrize(
    "family",
    ["llama", *(pytest.param(f, marks=pytest.mark.slow) for f in BITS if f != "llama")],
)
def test_company_preemption_and_cached_prefixes_do_not_change_a_bit(family):
    model = _random(DECODERS[family]).configure(ragged_dot=grouped_matmul)
    prompts, sampling = _company()
    sizes = {"page_size": 4, "step_tokens": 24, "max_rows": 8, "max_length": LIMIT}
    sizes |= {"operations": dovetail_kernels, "invariant": True}
    with Engine(model, kv_bytes=2**20, **sizes) as engine:
        cold, warm = (engine.generate(prompts, sampling) for _ in range(2))
        assert sum(completion.cached_tokens for completion in warm) > 0
        page_bytes = sum(group.page_bytes for group in engine.fit.groups)
    with Engine(model, kv_bytes=14 * page_bytes, prefix_cache=False, **sizes) as engine:
        alone = [engine.generate([p], s)[0] for p, s in zip(prompts, sampling, strict=True)]
        assert engine.stats().preemptions == 0
        preempted = engine.generate(prompts, sampling)
        assert engine.stats().preemptions > 0
    for completions in (cold, warm, preempted):
        for ours, theirs in zip(completions, alone, strict=True):
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            bits = (c.logprobs.view(np.int32) for c in (ours, theirs))
            np.testing.assert_array_equal(*bits)


@pytest.mark.thorough
def test_a_quantized_model_computes_what_its_codes_stand_for():
    model = _random(DECODERS["llama"])
    quantized = apply(model, plan(model, [("**", Spec(weight="int8"))]))
    prompts = _prompts()
    results = drive(_executor(quantized, dovetail_kernels), prompts, max_tokens=4)
    forward = nnx.jit(lambda model, ids: model(ids))

    def whole(ids):
        padded = np.pad(ids, (0, LIMIT - len(ids)))[None]  # later tokens do not count
        return np.asarray(forward(quantized, padded)[0, : len(ids)], np.float64)

    _check(results, prompts, whole)


@pytest.mark.parametrize("family", DECODERS)
def test_the_cache_has_the_bytes_of_the_configuration(family):
    layout = discover(models.init(DECODERS[family], seed=0), max_length=LIMIT)
    groups = range(len(layout.windows))
    assert sum(map(layout.token_bytes, groups)) == kv_bytes(DECODERS[family], dtype=np.float32)


def test_learned_positions_end_at_the_boundary():
    model = models.init(DECODERS["gpt2"], seed=0)
    discover(model, max_length=LIMIT)
    with pytest.raises(ValueError, match=r"max_length=41.* Use a smaller max_length"):
        discover(model, max_length=LIMIT + 1)


@pytest.mark.thorough
def test_an_engine_inside_of_a_mesh_has_the_ids_of_one_outside(tmp_path):
    """Loaded and built under `jax.set_mesh`, of either kind of axes, on eight devices."""
    program = Path(__file__).parent / "programs" / "engine_in_mesh.py"
    done = warm_start.run([program, tmp_path / "model"], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    outside = found.pop("outside")
    assert len(found) == 4
    assert all(ids == outside for ids in found.values()), found
