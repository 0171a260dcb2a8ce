# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_data import Bytes
from dovetail_models import init
from dovetail_stack.recipes import language_model as recipe
from dovetail_stack.recipes.options import Shape, Training

STEPS = 200
TRAINING = Training(length=16, global_batch=2)


@pytest.fixture(scope="module")
def model():
    shape = Shape(embed=32, depth=2, heads=4, kv_heads=2, mlp=48)
    return init(recipe.llama_config(shape, Bytes(), length=16), seed=0)


def test_the_schedule_warms_up_linearly_and_decays_along_a_cosine():
    rate = recipe.schedule(0.5, steps=STEPS)
    assert float(rate(0)) == 0.0
    assert float(rate(5)) == pytest.approx(0.25)
    assert float(rate(10)) == pytest.approx(0.5)
    half = 0.025 + (0.5 - 0.025) * 0.5 * (1 + np.cos(np.pi * 95 / 190))
    assert float(rate(105)) == pytest.approx(half, rel=1e-5)
    assert float(rate(STEPS)) == pytest.approx(0.025)
    assert np.isfinite(float(recipe.schedule(0.5, steps=1)(1)))


def test_muon_turns_the_kernels_of_the_layers_and_adam_the_rest(model):
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    generator = np.random.default_rng(0)

    def gradient(x):  # no element so small that Adam's epsilon matters
        return (generator.choice([-1, 1], x.shape) * generator.uniform(1, 2, x.shape)).astype("f4")

    grads = jax.tree.map(gradient, params)
    tx = recipe.optimizer(TRAINING, steps=STEPS)
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(11):  # past the warm-up: rates at their peaks
        updates, state = update(grads, state, params)
    kernel = np.asarray(updates["layers"][0]["attn"]["q"]["kernel"]) / TRAINING.matrix_learning_rate
    # Five Newton-Schulz steps bring singular values near 1 (Jordan et al. 2024: 0.7 to 1.2).
    singular = np.linalg.svd(kernel, compute_uv=False)
    assert 0.5 < singular.min() < singular.max() < 1.3
    # Adam with one gradient again and again steps by the learning rate in each element.
    for leaf in (updates["embed"]["embedding"], updates["layers"][0]["attn_norm"]["scale"]):
        np.testing.assert_allclose(np.abs(leaf), TRAINING.learning_rate, rtol=1e-4)


def test_the_config_says_when_a_text_ends():
    config = recipe.llama_config(Shape(), Bytes(), length=32)
    assert dict(config.extra) == {"bos_token_id": "256", "eos_token_id": "257"}
    assert (config.max_length, config.vocab_size) == (32, 258)


@pytest.mark.capability("the pretraining step of the recipes", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_lowers_for_accelerators(model, platform):
    trainer = recipe.trainer(model.config, TRAINING, steps=STEPS)
    names = ("tokens", "targets", "segment_ids", "positions")
    batch = {name: np.zeros((2, 16), np.int32) for name in names}
    program = trainer.program(model, {**batch, "mask": np.ones((2, 16), np.float32)})
    with jax.set_mesh(trainer.mesh):
        lowered = jax.jit(program.fn).trace(*program.args).lower(lowering_platforms=(platform,))
    assert "stablehlo.dot_general" in lowered.as_text()


@pytest.mark.capability("the pretraining step of the recipes")
def test_clipping_bounds_the_gradient_that_the_optimizer_sees():
    params = {"embed": np.ones((3, 2), np.float32), "layers": {"kernel": np.ones((3, 2), "f4")}}
    tx = recipe.optimizer(TRAINING, steps=STEPS)

    def filled(size):
        return jax.tree.map(lambda p: np.full(p.shape, size, np.float32), params)

    small, large = filled(1e3), filled(1e6)
    first, _ = tx.update(small, tx.init(params), params)
    second, _ = tx.update(large, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert isinstance(tx, optax.GradientTransformation)
