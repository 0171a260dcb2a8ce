# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's count of operations, for every family of decoders, against two that share no code.

XLA's, of the same gradient with every layer written out: it counts elementwise work too, and a
mixture of experts as if every token met every expert. And dovetail-models' formula, which goes by
the configuration.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import dovetail_models as models
from dovetail_models import Experts, Groups, LatentAttention, Remat, Rope
from dovetail_train import count_flops, lm_loss

ROWS, LENGTH = 2, 64
SIZES = {"vocab_size": 512, "embed": 256, "depth": 2, "heads": 4, "mlp": 512}
HEADS = {**SIZES, "kv_heads": 2, "head_dim": 64}
MIXTURE = {"experts": 4, "top_k": 2}
LATENT = LatentAttention(
    heads=4, q_rank=96, kv_rank=64, nope_dim=32, rope_dim=16, v_dim=48, rope=Rope(theta=1e4)
)
EXPERTS = Experts(
    count=6, top_k=2, hidden=96, shared=96, groups=Groups(count=3, top_k=2, score="max")
)
DEEPSEEK = {"vocab_size": 512, "embed": 256, "mlp": 512, "depth": 2, "dense": 1}
DENSE = {
    "llama": models.llama(**HEADS),
    "mistral": models.mistral(**HEADS, window=LENGTH),
    "qwen2": models.qwen2(**SIZES, kv_heads=2, tie=True),
    "qwen3": models.qwen3(**HEADS),
    "gemma": models.gemma(**HEADS),
    "gemma2": models.gemma2(
        **HEADS, window=LENGTH, query_scalar=64.0, score_cap=50.0, logit_cap=30.0
    ),
    "gemma3_text": models.gemma3(**HEADS, window=LENGTH, query_scalar=64.0, pattern=2),
    "gpt2": models.gpt2(**SIZES, max_length=LENGTH),
}
MIXTURES = {
    "mixtral": models.mixtral(**HEADS, **MIXTURE),
    "qwen3_moe": models.qwen3_moe(**HEADS, **MIXTURE),
    "gpt_oss": models.gpt_oss(**HEADS, **MIXTURE, window=LENGTH),
    "deepseek_v2": models.deepseek_v2(**DEEPSEEK, attention=LATENT, experts=EXPERTS),
    "deepseek_v3": models.deepseek_v3(
        **DEEPSEEK,
        attention=LATENT,
        experts=dataclasses.replace(
            EXPERTS,
            score="sigmoid",
            selection_bias=True,
            groups=Groups(count=3, top_k=2, score="top2"),
        ),
    ),
}


def _gradient(config, **options):
    """The gradient of the loss, its arguments by shape, nothing allocated."""
    model = nnx.eval_shape(lambda: models.init(config, seed=0)).configure(**options)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    mask = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.float32)

    def loss(params, rest, tokens, mask):
        batch = {"tokens": tokens, "targets": tokens, "mask": mask}
        total, count = lm_loss()(nnx.merge(graphdef, params, rest), batch, key=None)
        return total / count

    return jax.grad(loss), (params, rest, tokens, mask)


def _by_formula(config):
    """dovetail-models' count, and what it leaves out: the masked half of the scores, and the sum of
    what a token's experts gave."""
    whole = models.flops(config, tokens=ROWS * LENGTH, length=LENGTH)
    single = models.flops(config, tokens=ROWS * LENGTH, length=1)
    scores = (whole - single) / (LENGTH**2 - LENGTH)  # of one query and one key
    chosen = sum(la.mlp.top_k for la in config.layers if isinstance(la.mlp, Experts))
    return whole + scores * LENGTH**2 + 3 * 2 * ROWS * LENGTH * chosen * config.embed


@pytest.mark.parametrize("family", DENSE)
def test_dense_families_count_what_xla_counts(family):
    grad, args = _gradient(DENSE[family])
    counted = count_flops(grad, *args)
    assert not counted.opaque
    assert counted.recomputed == 0
    xla = jax.jit(grad).lower(*args).cost_analysis()["flops"]
    # XLA adds norms, softmax and activations: 1 in 100 at this width.
    assert 0.985 < counted.model / xla < 1


@pytest.mark.parametrize("family", DENSE | MIXTURES)
def test_every_family_counts_what_its_configuration_says(family):
    config = (DENSE | MIXTURES)[family]
    grad, args = _gradient(config)
    assert count_flops(grad, *args).model == pytest.approx(_by_formula(config), rel=1e-12)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_scanning_and_recomputing_change_nothing_but_what_is_told_apart(family):
    config = (DENSE | MIXTURES)[family]
    grad, args = _gradient(config, scan=True, remat=Remat(save=()))
    counted = count_flops(grad, *args)
    assert counted.model == pytest.approx(_by_formula(config), rel=1e-12)
    head = 2 * 3 * ROWS * LENGTH * config.vocab_size * config.embed
    assert 0 < counted.recomputed <= (counted.model - head) / 3  # at most the layers once more
