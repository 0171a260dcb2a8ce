# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import abstract, llama
from dovetail_models.surgery.merge import _check_options, merge

# Few shapes: one program is compiled for each.
CONFIG = llama(vocab_size=31, embed=12, depth=2, heads=2, mlp=12)
METHODS = {
    "linear": {},
    "slerp": {},
    "task_arithmetic": {},
    "ties": {"density": 0.4},
    "dare_linear": {"density": 0.4, "seed": 5},
    "dare_ties": {"density": 0.4, "seed": 5},
}


@pytest.fixture(scope="module")
def models(random_model):
    return [random_model(CONFIG, seed=seed) for seed in (1, 2, 3)]


def options(method, base):
    return METHODS[method] | ({} if method in ("linear", "slerp") else {"base": base})


@pytest.mark.parametrize("method", METHODS)
def test_equal_models_merge_to_themselves(models, leaves, method):
    model = models[0]
    result = merge([model, model], method=method, weights=[0.3, 0.7], **options(method, model))
    assert nnx.graphdef(result) == nnx.graphdef(model)
    want, got = leaves(model), leaves(result)
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    # Variables of its own.
    result.norm.scale[...] = 0 * result.norm.scale[...]
    assert jnp.abs(model.norm.scale[...]).min() > 0


@pytest.mark.thorough
def test_each_parameter_is_merged(models, leaves):
    result = leaves(merge(models, method="linear", weights=[1, 2, 1]))
    a, b, c = (leaves(model) for model in models)
    for name, got in result.items():
        want = (a[name].astype(np.float64) + 2.0 * b[name] + c[name]) / 4
        # Three roundings of numbers up to 2.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    added = leaves(merge(models[:2], method="task_arithmetic", weights=[1, -2], base=models[2]))
    for name, got in added.items():
        want = c[name] + 1.0 * (a[name] - c[name].astype(np.float64))
        want -= 2.0 * (b[name] - c[name].astype(np.float64))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


@pytest.mark.thorough
def test_draws_follow_the_seed_and_differ_by_parameter(models, leaves):
    a, base = models[0], models[1]
    draw = {"method": "dare_linear", "weights": [1, 0], "base": base, "density": 0.5}
    first, again, other = (leaves(merge([a, a], seed=s, **draw)) for s in (1, 1, 2))
    start = leaves(base)
    name, next_name = "layers.0.mlp.up.kernel", "layers.1.mlp.up.kernel"
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first[name] == start[name], first[next_name] == start[next_name])


@pytest.mark.thorough
def test_the_first_or_the_base_decides_the_dtype(random_model, models):
    half = random_model(CONFIG, seed=4, dtype=jnp.bfloat16)
    first = merge([half, models[0]], method="slerp", weights=[1, 1])
    assert first.norm.scale.dtype == jnp.bfloat16
    over = merge([half, half], method="task_arithmetic", weights=[1, 1], base=models[0])
    assert over.norm.scale.dtype == jnp.float32


def test_outlines_merge_to_one():
    outline = abstract(CONFIG)
    result = merge([outline, outline], method="ties", weights=[1, 1], base=outline, density=0.5)
    assert isinstance(result.norm.scale.get_value(), jax.ShapeDtypeStruct)


@pytest.mark.thorough
def test_keys_that_alter_nothing_may_differ(models):
    model = models[0]
    other = nnx.clone(model)
    other.config = dataclasses.replace(CONFIG, extra=(("bos_token_id", "1"),))
    assert merge([model, other], method="linear", weights=[1, 1]).config == CONFIG


def test_models_of_other_architectures_are_refused(models):
    layer = CONFIG.layers[1]
    attention = dataclasses.replace(layer.attention, window=5)
    layers = (CONFIG.layers[0], dataclasses.replace(layer, attention=attention))
    other = abstract(dataclasses.replace(CONFIG, layers=layers, vocab_size=29))
    with pytest.raises(ValueError, match="of one architecture, got model 1") as error:
        merge([models[0], other], method="linear", weights=[1, 1])
    for part in (
        "config.vocab_size: 31 and 29",
        "config.layers[1].attention.window: None and 5",
        "embed.embedding: (31, 12) and (29, 12)",
        "trained from one base",
    ):
        assert part in str(error.value)
    assert "layers[0]" not in str(error.value)


def test_adapters_are_refused(models, adapt):
    with pytest.raises(ValueError, match="adapters folded in") as error:
        merge([models[0], adapt(models[1], "lm_head")], method="linear", weights=[1, 1])
    assert "got adapters at lm_head" in str(error.value)
    assert "lora.merge(model)" in str(error.value)


@pytest.mark.parametrize(
    "change, parts",
    [
        (
            {"weights": [1]},
            ["a weight for each", "2 models, method='linear', weights=[1]", "weights=[1, 1]"],
        ),
        (
            {"weights": [1, -1]},
            ["at least 0 with a sum above 0", "weights=[1, -1]", "Use weights"],
        ),
        (
            {"weights": [1, float("nan")]},
            ["must be finite", "weights=[1, nan]", "Use weights"],
        ),
        (
            {"density": 0.5},
            ["method='linear' does not use density", "got a density", "Leave density out"],
        ),
        (
            {"method": "ties", "density": 0.5},
            ["method='ties' needs base", "got base=None", "Pass base=, the model"],
        ),
        (
            {"method": "dare_ties", "density": 0.5, "base": abstract(CONFIG)},
            ["method='dare_ties' needs seed", "got seed=None", "Pass seed=0"],
        ),
        (
            {"method": "ties", "density": 20, "base": abstract(CONFIG)},
            ["above 0 and at most 1", "density=20", "Use density=0.2"],
        ),
    ],
)
def test_wrong_options_are_refused(change, parts):
    outline = abstract(CONFIG)
    with pytest.raises(ValueError, match="got") as error:
        merge([outline, outline], **({"method": "linear", "weights": [1, 1]} | change))
    for part in parts:
        assert part in str(error.value)


def test_an_unknown_method_is_refused():
    # Past the check of types that the tests switch on.
    with pytest.raises(ValueError, match="method must be one of") as error:
        _check_options(2, "tie", [1, 1], has_base=False, density=None, seed=None)
    assert "method='tie' (near: ties)" in str(error.value)
    assert "Use method='linear'" in str(error.value)


def test_slerp_takes_two():
    with pytest.raises(ValueError, match="for slerp just two") as error:
        merge([abstract(CONFIG)] * 3, method="slerp", weights=[1, 1, 1])
    assert "3 models, method='slerp'" in str(error.value)
