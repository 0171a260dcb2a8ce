# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A quantized module against the same module with the float kernels that its codes stand for."""

import copy
import pickle

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Plan, Spec, apply, plan
from dovetail_quant.matmul.blocked import Blocked
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.matmul.w8a8 import W8A8
from dovetail_quant.sites.kernel import Kernel, QuantizedParam
from dovetail_quant.sites.modules import module_at
from dovetail_quant.sites.sites import sites

SPECS = [
    Spec(),
    Spec(weight="int4", group=8),
    Spec(weight="int4", group=4, symmetric=False),
    Spec(weight="nf4", group=8),
    Spec(weight="fp8"),
]


class Experts(nnx.Module):
    """One projection per expert, as layers of experts hold it."""

    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (3, 16, 8)))
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        rows = x.reshape(-1, x.shape[-1])
        sizes = jnp.array([1, 0, len(rows) - 1], jnp.int32)
        return self.ragged_dot(rows, self.kernel[...].astype(x.dtype), sizes).reshape(
            *x.shape[:-1], 8
        )


class Everything(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 24, rngs=rngs)
        self.linear = nnx.Linear(24, 16, rngs=rngs)
        self.general = nnx.LinearGeneral(16, (2, 8), rngs=rngs)
        self.back = nnx.LinearGeneral((2, 8), 16, axis=(-2, -1), rngs=rngs)
        self.experts = Experts(rngs)
        self.einsum = nnx.Einsum("btd,nhd->btnh", (2, 12, 8), (2, 12), rngs=rngs)

    def __call__(self, tokens):
        x = nnx.relu(self.linear(self.embed(tokens)))
        x = self.experts(self.back(self.general(x)))
        return self.embed.attend(self.einsum(x).reshape(*tokens.shape, 24))


TOKENS = jnp.arange(10).reshape(2, 5)
EVERY = ("**", "embed")


def floats(quantized, model):
    """`model` with the kernels that the codes of `quantized` stand for."""
    same = nnx.clone(model)
    for path, site in sites(model).items():
        kernel = getattr(module_at(quantized, path), site.parameter)[...]
        assert isinstance(kernel, Kernel), path
        getattr(module_at(same, path), site.parameter)[...] = kernel.dequantize()
    return same


@pytest.fixture(scope="module")
def model():
    return Everything()


def close(found, wanted):
    # Sums of up to 24 float32 products through six layers.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.thorough
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.weight + ("" if s.symmetric else " zeros"))
def test_it_computes_what_its_codes_stand_for(model, spec):
    quantized = apply(model, plan(model, [(EVERY, spec)]))
    want = floats(quantized, model)(TOKENS)
    close(jax.jit(lambda m: m(TOKENS))(quantized), want)
    assert not np.allclose(want, model(TOKENS), rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("matmul", [Reference(), Blocked()])
def test_another_product_may_be_given(model, matmul):
    quantized = apply(model, plan(model, [(EVERY, SPECS[1])]), matmul=matmul)
    assert quantized.linear.kernel[...].matmul == matmul
    close(quantized(TOKENS), floats(quantized, model)(TOKENS))


@pytest.mark.thorough
def test_rounded_activations_are_near(model):
    quantized = apply(model, plan(model, [(EVERY, Spec(act="int8"))]))
    want = floats(quantized, model)(TOKENS)
    error = np.abs(quantized(TOKENS) - want).max() / np.abs(want).max()
    assert 1e-5 < error < 0.05  # half a step of 1 in 127, six times


@pytest.mark.thorough
def test_the_model_itself_is_as_it_was(model):
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model)))
    quantized = apply(model, plan(model, [(r"linear", Spec())]))
    bias = quantized.linear.bias
    assert bias is not model.linear.bias
    assert bias[...].unsafe_buffer_pointer() == model.linear.bias[...].unsafe_buffer_pointer()
    bias[...] = bias[...] + 1
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(model)))
    assert type(quantized.linear) is nnx.Linear


@pytest.mark.thorough
def test_a_quantized_module_is_split_merged_and_updated(model):
    quantized = apply(model, plan(model, [(EVERY, SPECS[1])]))
    want = quantized(TOKENS)
    graphdef, state = nnx.split(quantized)
    np.testing.assert_array_equal(nnx.merge(graphdef, state)(TOKENS), want)
    nnx.update(quantized, state)
    np.testing.assert_array_equal(quantized(TOKENS), want)
    shapes = nnx.eval_shape(lambda: quantized)
    assert jax.tree.structure(nnx.state(shapes)) == jax.tree.structure(state)


@pytest.mark.thorough
def test_gradients_pass_through_to_what_is_float(model):
    quantized = apply(model, plan(model, [(EVERY, SPECS[1])]))
    same = floats(quantized, model)

    def trained(path, variable):
        return path[-1] == "bias" and not isinstance(variable, QuantizedParam)

    def loss(m):
        return jnp.sum(jnp.sin(m(TOKENS)))

    found, want = (nnx.grad(loss, argnums=nnx.DiffState(0, trained))(m) for m in (quantized, same))
    jax.tree.map(close, nnx.to_pure_dict(found), nnx.to_pure_dict(want))


@pytest.mark.thorough
def test_bytes_are_those_of_the_codes(model):
    kernel = apply(model, plan(model, [(r"linear", SPECS[1])])).linear.kernel[...]
    assert kernel.nbytes == 24 * 16 // 2 + 4 * 3 * 16


@pytest.mark.thorough
def test_rows_that_an_embedding_has_not_are_nan(model):
    embed = apply(model, plan(model, [("embed", Spec())])).embed
    found = embed(jnp.array([0, 11, -1]))
    np.testing.assert_array_equal(np.isnan(found).all(1), [False, True, True])


@pytest.mark.thorough
def test_wrong_plans_are_refused(model):
    other = Plan(specs={"layers.0": Spec()}, left_alone={})
    with pytest.raises(ValueError, match=r"got 'layers.0', one of 1 paths that are no site"):
        apply(model, other)
    with pytest.raises(ValueError, match=r"method='gptq' needs statistics.*for 'linear'; write"):
        apply(model, plan(model, [("linear", Spec(method="gptq"))]))
    quantized = apply(model, plan(model, [("linear", Spec())]))
    with pytest.raises(ValueError, match=r"got rules for 6 sites|linear: is quantized already"):
        plan(quantized, [("linear", Spec())])


def test_a_quantized_kernel_is_no_array(model):
    kernel = apply(model, plan(model, [("linear", Spec())])).linear.kernel[...]
    with pytest.raises(TypeError, match=r"read as a whole, got index 0; write \[...\]"):
        kernel[0]
    what = r"no array, got .*Kernel\(\[24, 16\] as int8 in groups of 24\).*write .dequantize\(\)"
    with pytest.raises(AttributeError, match=r"got .reshape asked.*dequantize\(\)"):
        kernel.reshape(-1)
    with pytest.raises(TypeError, match=what):
        np.asarray(kernel)
    with pytest.raises(TypeError, match=what):
        jnp.asarray(kernel)
    with pytest.raises(TypeError, match=r"'Kernel'"):
        jnp.zeros((24, 16)) + kernel


def test_a_product_that_rounds_otherwise_than_the_spec_is_refused(model, monkeypatch):
    with pytest.raises(ValueError, match=r"act=None of Blocked and act='int8' of 'linear'; write"):
        apply(model, plan(model, [("linear", Spec(act="int8"))]), matmul=Blocked())
    with pytest.raises(ValueError, match=r"act='int8' of W8A8 and act=None of 'linear'"):
        apply(model, plan(model, [("linear", Spec())]), matmul=W8A8())
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse before
    with pytest.raises(
        TypeError, match=r"has prepare, codes, act and a call, got function; write matmul='auto'"
    ):
        apply(model, plan(model, [("linear", Spec())]), matmul=jnp.matmul.__wrapped__)
    with pytest.raises(ValueError, match=r"'auto', 'own' or a product, got matmul='fast'; write"):
        apply(model, plan(model, [("linear", Spec())]), matmul="fast")


@pytest.mark.thorough
@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_codes_are_copied_and_pickled(model, way):
    kernel = apply(model, plan(model, [("linear", SPECS[1])])).linear.kernel[...]
    again = way(kernel)
    assert (again.spec, again.axes, again.matmul) == (kernel.spec, kernel.axes, kernel.matmul)
    np.testing.assert_array_equal(again.dequantize(), kernel.dequantize())
