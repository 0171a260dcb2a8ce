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
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.options import Shape, Training

STEPS = 200
TRAINING = Training(length=16, global_batch=2)


@pytest.fixture(scope="module")
def model():
    shape = Shape(embed=32, depth=2, heads=4, kv_heads=2, mlp=48)
    return init(config_for(shape, Bytes(), length=16), seed=0)


@pytest.mark.thorough
def test_the_schedule_warms_up_linearly_and_decays_along_a_cosine():
    rate = recipe.schedule(0.5, steps=STEPS)
    assert float(rate(0)) == 0.0
    assert float(rate(5)) == pytest.approx(0.25)
    assert float(rate(10)) == pytest.approx(0.5)
    half = 0.025 + (0.5 - 0.025) * 0.5 * (1 + np.cos(np.pi * 95 / 190))
    assert float(rate(105)) == pytest.approx(half, rel=1e-5)
    assert float(rate(STEPS)) == pytest.approx(0.025)
    assert np.isfinite(float(recipe.schedule(0.5, steps=1)(1)))


@pytest.mark.thorough
def test_muon_turns_the_kernels_of_the_layers_and_adam_the_rest(model):
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    generator = np.random.default_rng(0)

    def gradient(x):  # no element so small that Adam's epsilon matters
        return (generator.choice([-1, 1], x.shape) * generator.uniform(1, 2, x.shape)).astype("f4")

    grads = jax.tree.map(gradient, params)
    tx = recipe.optimizer(recipe.rules(TRAINING, steps=STEPS))
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
    config = config_for(Shape(), Bytes(), length=32)
    assert dict(config.extra) == {"bos_token_id": "256", "eos_token_id": "257"}
    assert (config.max_length, config.vocab_size) == (32, 258)


@pytest.mark.capability("the pretraining step of the recipes", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_lowers_for_accelerators(model, platform):
    trainer = recipe.pretraining(model.config, TRAINING).trainer(STEPS)
    names = ("tokens", "targets", "segment_ids", "positions")
    batch = {name: np.zeros((2, 16), np.int32) for name in names}
    program = trainer.program(model, {**batch, "mask": np.ones((2, 16), np.float32)})
    with jax.set_mesh(trainer.mesh):
        lowered = jax.jit(program.fn).trace(*program.args).lower(lowering_platforms=(platform,))
    assert "stablehlo.dot_general" in lowered.as_text()


@pytest.mark.thorough
@pytest.mark.capability("the pretraining step of the recipes")
def test_clipping_bounds_the_gradient_that_the_optimizer_sees():
    params = {"embed": np.ones((3, 2), np.float32), "layers": {"kernel": np.ones((3, 2), "f4")}}
    tx = recipe.optimizer(recipe.rules(TRAINING, steps=STEPS))

    def filled(size):
        return jax.tree.map(lambda p: np.full(p.shape, size, np.float32), params)

    small, large = filled(1e3), filled(1e6)
    first, _ = tx.update(small, tx.init(params), params)
    second, _ = tx.update(large, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert isinstance(tx, optax.GradientTransformation)


def _orthogonal(gradient):
    """Five Newton-Schulz steps with Jordan's coefficients, in float64, and Muon's factor."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.astype(np.float64)
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x * max(1.0, gradient.shape[1] / gradient.shape[0]) ** 0.5


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("Muon for each expert of a mixture")
@pytest.mark.parametrize("size", [(5, 6, 9), (3, 9, 6)])
def test_each_expert_is_a_matrix_of_its_own(size):
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=size).astype("f4")
    router = generator.choice([-1.0, 1.0], size=(size[1], size[0])).astype("f4")
    grads = {
        "layers": [
            {
                "mlp": {"experts": {"up": {"kernel": kernel}}, "router": {"kernel": router}},
                "attn": {"q": {"kernel": kernel[0]}},
                "norm": {"scale": np.ones(3, "f4")},
            }
        ]
    }
    tx = recipe.optimizer(recipe.rules(TRAINING, steps=STEPS, mixture=True))
    state, update = jax.jit(tx.init)(grads), jax.jit(tx.update)
    for _ in range(2):  # the rate of the first step is 0
        updates, state = update(grads, state, grads)
    rate = TRAINING.matrix_learning_rate / 10  # of ten steps of warm-up
    layer = updates["layers"][0]
    experts = np.asarray(layer["mlp"]["experts"]["up"]["kernel"])
    alone = np.asarray(layer["attn"]["q"]["kernel"])
    # Clipping changes the norm of all gradients alike, which the first division takes out. Rounding
    # grows at most as the smallest singular value: 3.4445 ** 5 = 485 times eps = 6e-8 each.
    for update, gradient in zip([*experts, alone], [*kernel, kernel[0]], strict=True):
        np.testing.assert_allclose(-update / rate, _orthogonal(gradient), rtol=0, atol=1e-4)
    # Adam moves each element of the router by its rate.
    moved = np.abs(np.asarray(layer["mlp"]["router"]["kernel"]))
    np.testing.assert_allclose(moved, TRAINING.learning_rate / 10, rtol=1e-4)


def test_a_mixture_has_the_balance_loss_and_others_refuse_it():
    sizes = {"embed": 16, "depth": 1, "heads": 2}
    mixture = config_for(Shape(family="mixtral", **sizes), Bytes(), length=16)
    dense = config_for(Shape(**sizes), Bytes(), length=16)
    assert recipe.balance_weights(mixture, Training()) == {"balance": 0.01}
    assert recipe.balance_weights(mixture, Training(balance=0.0)) == {"balance": 0.0}
    assert recipe.balance_weights(dense, Training()) == {}
    with pytest.raises(ValueError, match=r"balance=0\.1 and family=llama, .*: leave it out"):
        recipe.pretraining(dense, Training(balance=0.1))
    with pytest.raises(ValueError, match=r"balance must be at least 0, got balance=-1: leave"):
        Training(balance=-1)
