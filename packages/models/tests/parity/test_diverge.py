# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from flax import nnx

from dovetail_models import diverge, gpt2, llama, save

pytestmark = pytest.mark.parity
CONFIG = llama(vocab_size=40, embed=12, depth=3, heads=6, kv_heads=2, head_dim=4, mlp=20)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("diverge") / "model"
    save(model, path)
    return path


def test_the_same_model_does_not_depart(model, directory):
    found = diverge(model, directory)
    assert [step.path for step in found.steps] == ["layers.0", "layers.1", "norm", "lm_head"]
    assert found.first is None
    # float32 through three layers, in other orders of summation.
    assert max(step.apart for step in found.steps) < 1e-5
    assert str(found).endswith("first beyond 1e-04: none")


@pytest.mark.parametrize(
    "where, first",
    [
        (lambda m: m.layers[0].attn.k.kernel, "layers.0"),
        (lambda m: m.layers[1].mlp.up.kernel, "layers.1"),
        (lambda m: m.layers[2].attn_norm.scale, "norm"),
        (lambda m: m.norm.scale, "norm"),
        (lambda m: m.lm_head.kernel, "lm_head"),
    ],
)
def test_the_first_that_departs(model, directory, where, first):
    other = nnx.clone(model)
    where(other).set_value(where(other)[...] * 1.1)
    found = diverge(other, directory, tokens=np.array([[3, 1, 4, 1, 5]], np.int32))
    assert found.first == first
    assert f"first beyond 1e-04: {first}" in str(found)


def test_what_is_no_number_departs(model, directory):
    other = nnx.clone(model)
    kernel = np.array(other.layers[1].mlp.up.kernel[...])
    kernel[0, 0] = np.nan
    other.layers[1].mlp.up.kernel.set_value(kernel)
    assert diverge(other, directory).first == "layers.1"


def test_one_layer_with_learned_positions(random_model, tmp_path):
    model = random_model(gpt2(vocab_size=40, embed=12, depth=1, heads=3, max_length=32))
    save(model, tmp_path / "model")
    assert diverge(model, tmp_path / "model").first is None
