# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_models import abstract, llama
from dovetail_models.surgery.replace import replace

CONFIG = llama(vocab_size=31, embed=12, depth=3, heads=2, kv_heads=1, mlp=20, tie=True)


class Scaled(nnx.Module):
    def __init__(self, inner, factor):
        self.inner = inner
        self.factor = factor

    def __call__(self, *args, **options):
        return self.factor * self.inner(*args, **options)


@pytest.mark.thorough
def test_matched_modules_become_others(random_model, leaves, jitted):
    model = random_model(CONFIG)
    before = leaves(model)
    tokens = jnp.asarray([[3, 1, 30, 7, 7]])
    seen = []

    def quiet(path, module):
        seen.append(path)
        return Scaled(module, 0.0)

    without = replace(model, "layers.*.{attn.o,mlp.down}", quiet)
    assert seen == [f"layers.{i}.{name}" for i in range(3) for name in ("attn.o", "mlp.down")]
    # Blocks that add nothing leave the embedding, normalised, times the embedding.
    x = before["embed.embedding"].astype(np.float64)[np.asarray(tokens)]
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG.norm.eps)
    want = (x * before["norm.scale"]) @ before["embed.embedding"].T
    np.testing.assert_allclose(
        jitted(without, tokens), want, rtol=0, atol=1e-5 * np.abs(want).max()
    )
    after = leaves(model)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert type(model.layers[0].attn.o) is nnx.Linear


def test_the_new_model_has_variables_of_its_own(random_model):
    model = random_model(CONFIG)
    other = replace(model, "layers.1.attn.q", lambda path, module: module)
    assert other.embed.embedding[...] is model.embed.embedding[...]
    other.embed.embedding[...] = jnp.zeros((31, 12))
    assert jnp.abs(model.embed.embedding[...]).sum() > 0


def test_fn_may_alter_what_it_gets(random_model):
    model = random_model(CONFIG)

    def double(path, module):
        module.kernel[...] = 2 * module.kernel[...]
        return module

    other = replace(model, "layers.1.attn.q", double)
    want = 2 * np.asarray(model.layers[1].attn.q.kernel[...])
    np.testing.assert_array_equal(other.layers[1].attn.q.kernel[...], want)


def test_inner_modules_come_first():
    seen = []

    def keep(path, module):
        seen.append(path)
        return module

    replace(abstract(CONFIG), ("layers.1", "layers.1.attn.*"), keep)
    assert seen == [*(f"layers.1.attn.{name}" for name in "koqv"), "layers.1"]


def test_a_shared_variable_stays_shared(random_model):
    class Tied(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0))
            self.second = nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(1))
            self.second.kernel = self.first.kernel

    other = replace(Tied(), "second", lambda path, module: nnx.Sequential(module))
    assert other.second.layers[0].kernel is other.first.kernel


def test_an_outline_stays_one():
    model = replace(abstract(CONFIG), "layers.*.mlp", lambda path, module: Scaled(module, 2.0))
    kernel = model.layers[2].mlp.inner.up.kernel.get_value()
    assert isinstance(kernel, jax.ShapeDtypeStruct)
    assert kernel.shape == (12, 20)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(TypeError, match=r"must return a flax\.nnx\.Module") as error:
        # beartype would object first to a function that is annotated otherwise; this one is not.
        replace(abstract(CONFIG), "layers.0.mlp", lambda path, module: None)
    assert "got NoneType for path='layers.0.mlp'" in str(error.value)
    assert "Return the module itself" in str(error.value)
