# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is trained against what is frozen, Qwix's provider and gradients by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
from flax import nnx

from dovetail_quant import Plan, Spec, apply, load, plan, save
from dovetail_quant.matmul.reference import Reference
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.modules import module_at
from dovetail_quant.sites.sites import sites
from dovetail_quant.training.qat import Product, Table, freeze, nearest, nearest_rows, qat

SPECS = [
    Spec(),
    Spec(weight="int4", group=8),
    Spec(weight="int4", group=4, symmetric=False),
    Spec(weight="nf4", group=8),
    Spec(weight="fp8"),
]
NAMES = ["int8", "int4", "int4 zeros", "nf4", "fp8"]
EACH = [
    pytest.param(spec, marks=pytest.mark.slow if name in ("int4 zeros", "fp8") else (), id=name)
    for spec, name in zip(SPECS, NAMES, strict=True)
]
QWIX = {"int8": jnp.int8, "int4": jnp.int4, "nf4": "nf4", "fp8": jnp.float8_e4m3fn}
TOKENS = jnp.arange(10).reshape(2, 5)


class Layers(nnx.Module):
    """Every kind of site but experts; `embed` both looks up and multiplies."""

    def __init__(self, dtype=None):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 24, dtype=dtype, rngs=rngs)
        self.linear = nnx.Linear(24, 16, dtype=dtype, rngs=rngs)
        self.general = nnx.LinearGeneral(16, (2, 8), dtype=dtype, rngs=rngs)
        self.back = nnx.LinearGeneral((2, 8), 16, axis=(-2, -1), dtype=dtype, rngs=rngs)
        self.einsum = nnx.Einsum("btd,nhd->btnh", (2, 12, 16), (2, 12), dtype=dtype, rngs=rngs)

    def __call__(self, tokens):
        x = nnx.relu(self.linear(self.embed(tokens)))
        x = self.einsum(self.back(self.general(x)))
        return self.embed.attend(x.reshape(*tokens.shape, 24))


class Vectors(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (11, 16)))
        self.lookup = lambda table, index, **_: table[index]
        self.dot_general = jax.lax.dot_general


class Experts(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (3, 16, 16)))
        self.ragged_dot = jax.lax.ragged_dot


class ByAttributes(nnx.Module):
    """An embedding and experts that hold their operations as attributes."""

    def __init__(self, dtype=jnp.float32):
        rngs = nnx.Rngs(0)
        self.embed, self.experts, self.dtype = Vectors(rngs), Experts(rngs), dtype

    def __call__(self, tokens):
        x = self.embed.lookup(self.embed.embedding[...], tokens.reshape(-1), place=None)
        kernel = self.experts.kernel[...].astype(self.dtype)
        sizes = jnp.array([3, 0, len(x) - 3], jnp.int32)
        x = self.experts.ragged_dot(x.astype(self.dtype), kernel, sizes)
        return self.embed.dot_general(x, self.embed.embedding[...], (((1,), (1,)), ((), ())))


def every(model, spec):
    named = ["embed"] if "embed" in sites(model) else []
    return plan(model, [(["**", *named], spec)])


def close(found, wanted, epsilons=100):
    # Sums of up to 24 products in float32, through five layers.
    scale = np.abs(np.asarray(wanted, np.float64)).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=epsilons * 2**-24 * scale)


@pytest.mark.thorough("it trains")
@pytest.mark.capability("training with rounded weights")
@pytest.mark.parametrize("spec", EACH)
def test_what_is_trained_is_what_is_frozen(spec):
    model = Layers()
    trained = qat(model, every(model, spec), TOKENS)
    frozen = freeze(trained, matmul=Reference())
    found, want, before = jax.jit(lambda *all: [m(TOKENS) for m in all])(trained, frozen, model)
    close(found, want)
    assert np.abs(found - before).max() > 1e-3
    rounded = jax.jit(weights)(trained)
    for path, site in sites(model).items():
        kernel = getattr(module_at(frozen, path), site.parameter)[...]
        np.testing.assert_array_equal(rounded[path], kernel.dequantize(), err_msg=path)


def weights(trained):
    """The rounded weights by which each site multiplies."""
    found = {}
    for path, site in sites(trained).items():
        module = module_at(trained, path)
        (how,) = {v.how for v in vars(module).values() if isinstance(v, Product | Table)}
        found[path] = how.weight(getattr(module, site.parameter)[...])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("which", [Layers, ByAttributes])
def test_rounded_activations_are_frozen_too(which):
    model = which()
    trained = qat(model, every(model, Spec(weight="int4", group=8, act="int8")), TOKENS)
    found, want = jax.jit(lambda *all: [m(TOKENS) for m in all])(trained, freeze(trained))
    # A sum that is another in its last bit moves a later row to its next step: 1 in 127.
    scale = np.abs(want).max()
    np.testing.assert_allclose(found, want, rtol=0, atol=scale / 127)
    assert np.mean(np.abs(found - want)) < 1e-4 * scale


@pytest.mark.thorough
@pytest.mark.parametrize("spec", SPECS[:2], ids=NAMES[:2])
def test_sites_that_take_part_by_attributes(spec):
    model = ByAttributes()
    trained = qat(model, every(model, spec), TOKENS)
    frozen = freeze(trained, matmul=Reference())
    found, want, before = jax.jit(lambda *all: [m(TOKENS) for m in all])(trained, frozen, model)
    close(found, want)
    assert np.abs(found - before).max() > 0.01


@pytest.mark.thorough
def test_in_bfloat16_codes_are_those_of_float32_weights():
    model = Layers(jnp.bfloat16)
    trained = qat(model, every(model, SPECS[1]), TOKENS)
    frozen = freeze(trained, matmul=Reference())
    both = jax.jit(lambda *all: [m(TOKENS) for m in all])(trained, frozen)
    assert both[0].dtype == jnp.bfloat16
    found, want = (np.asarray(y, np.float32) for y in both)
    # Five layers, each rounding weights and results to 8 bits; int4 itself moves 0.2.
    np.testing.assert_allclose(found, want, rtol=0, atol=6 * 2**-8 * np.abs(want).max())


class Narrow(nnx.Module):
    """Where Qwix and a spec agree: one input axis in groups, each with weights of both signs.

    Qwix widens a range of one sign to contain 0.
    """

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(16, 24, rngs=rngs), nnx.Linear(24, 16, rngs=rngs)])
        self.einsum = nnx.Einsum("btd,dnh->btnh", (16, 2, 4), (2, 4), rngs=rngs)
        for module in (*self.layers, self.einsum):
            w = jnp.abs(module.kernel[...])
            module.kernel[...] = w.at[::2].multiply(-1.0)

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.einsum(x)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Qwix's own calls of NNX
@pytest.mark.parametrize("spec", EACH)
def test_its_results_are_those_of_qwix(spec):
    model, x = Narrow(), jax.random.normal(jax.random.key(1), (2, 3, 16))
    rules = [
        qwix.QtRule(
            module_path=re.escape(path.replace(".", "/")),
            weight_qtype=QWIX[spec.weight],
            tile_size=spec.group,
            weight_calibration_method="absmax" if spec.symmetric else "minmax",
        )
        for path in every(model, spec).specs
    ]
    provider = qwix.QtProvider(rules)
    peer = qwix.quantize_model(model, provider, x)
    assert not provider.get_unused_rules()
    trained = qat(model, every(model, spec), x)
    frozen = freeze(trained, matmul=Reference())

    @jax.jit
    def run(*all):
        # The last kernel's gradient does not depend on how those in x are taken.
        loss = nnx.value_and_grad(lambda m: jnp.sum(jnp.sin(m(x))))
        slopes = [loss(m)[1]["einsum"]["kernel"][...] for m in all[:2]]
        return [m(x) for m in all], slopes

    (found, want, same), slopes = run(trained, peer, frozen)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(same, want)
    close(*slopes)


@pytest.mark.thorough
def test_gradients_are_those_of_rounded_weights():
    rng = np.random.default_rng(0)
    model = nnx.Linear(8, 5, use_bias=False, rngs=nnx.Rngs(0))
    x, c = rng.normal(size=(3, 8)).astype(np.float32), rng.normal(size=(3, 5)).astype(np.float32)
    spec = Spec(weight="int4", group=4)
    trained = qat(model, every(model, spec), x)
    w = qwix.quantize(model.kernel[...], jnp.int4, channelwise_axes=[1], tiled_axes={0: 4})
    w = np.asarray(qwix.dequantize(w), np.float64)

    def loss(m, x):
        return jnp.vdot(m(x), c)

    dw = nnx.grad(loss)(trained, x)["kernel"][...]
    close(dw, x.T.astype(np.float64) @ c)
    close(jax.grad(lambda x: loss(trained, x))(x), c.astype(np.float64) @ w.T)
    _, moved = jax.jvp(lambda x: loss(trained, x), (x,), (x,))
    close(moved, np.vdot(x.astype(np.float64) @ w, c))


@pytest.mark.thorough
def test_rows_are_rounded_over_the_axes_that_are_contracted():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, 4, 5)) * 10.0 ** rng.integers(-3, 3, (3, 4, 5))).astype(np.float32)
    x[1] = 0
    step = np.abs(x.astype(np.float64)).max((0, 2), keepdims=True) / 127
    want = np.round(x / step) * step
    found = jax.jit(nearest_rows, static_argnums=(1, 2))(x, (2, 0), Spec(act="int8"))
    # A quotient that float32 takes across a half moves one step: none of these does.
    close(found, want, epsilons=8)
    slopes = jax.vmap(jax.grad(lambda row: nearest_rows(row, (0,), Spec(act="int8")).sum()))(
        x[:, 0]
    )
    np.testing.assert_array_equal(slopes, np.ones((3, 5), np.float32))


@pytest.mark.thorough
def test_weights_keep_their_dtype_and_slope():
    w = jax.random.normal(jax.random.key(0), (2, 8, 3), jnp.bfloat16)
    found, pull = jax.vjp(lambda w: nearest(w, SPECS[1]), w)
    assert found.dtype == jnp.bfloat16
    assert pull(w)[0] is w or bool((pull(w)[0] == w).all())


@pytest.mark.thorough
def test_the_model_and_what_is_not_planned_stay(tmp_path):
    model = Layers()
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(model)))
    trained = qat(model, plan(model, [("{linear,einsum}", SPECS[1])]), TOKENS)
    assert jax.tree.structure(nnx.state(trained)) == jax.tree.structure(nnx.state(model))
    assert trained.general.dot_general is model.general.dot_general
    assert trained.embed.promote_dtype is model.embed.promote_dtype
    assert model.linear.dot_general is jax.lax.dot_general
    trained.linear.kernel[...] += 1
    frozen = freeze(trained)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(model)))
    assert type(frozen.linear) is nnx.Linear
    assert frozen.linear.promote_dtype.before is model.linear.promote_dtype
    assert isinstance(frozen.linear.kernel[...], Kernel)
    assert not isinstance(frozen.general.kernel[...], Kernel)
    assert not isinstance(trained.linear.kernel[...], Kernel)
    save(frozen, tmp_path)
    np.testing.assert_array_equal(load(tmp_path, Layers())(TOKENS), frozen(TOKENS))


def test_equal_layers_stay_equal():
    model = nnx.List([nnx.Linear(8, 8, rngs=nnx.Rngs(i)) for i in range(2)])
    holder = nnx.Sequential(*model)
    trained = qat(holder, every(holder, SPECS[1]), jnp.ones((1, 8)))
    first, second = (nnx.graphdef(layer) for layer in trained.layers)
    assert first == second


@pytest.mark.thorough
@pytest.mark.capability("training with rounded weights")
def test_training_beats_rounding():
    rngs = nnx.Rngs(1)
    teacher = nnx.Sequential(nnx.Linear(16, 32, rngs=rngs), nnx.tanh, nnx.Linear(32, 8, rngs=rngs))
    hidden = jax.random.normal(jax.random.key(2), (256, 4))
    x = jnp.tanh(hidden @ jax.random.normal(jax.random.key(3), (4, 16)))
    want, chosen = teacher(x), every(teacher, Spec(weight="int4", group=8))
    trained = qat(teacher, chosen, jax.ShapeDtypeStruct(x.shape, x.dtype))
    rate = optax.cosine_decay_schedule(1e-3, 100)
    optimizer = nnx.Optimizer(trained, optax.adam(rate), wrt=nnx.Param)

    def loss(m):
        return jnp.mean((m(x) - want) ** 2)

    @nnx.jit
    def step(m, optimizer):
        optimizer.update(m, nnx.grad(loss)(m))

    for _ in range(100):
        step(trained, optimizer)
    # It ends at 0.11 after 200 steps: inputs of 4 dimensions leave 12 to round in.
    assert loss(freeze(trained)) < 0.3 * loss(apply(teacher, chosen))


class Flagged(nnx.Module):
    def __init__(self):
        self.a, self.b = (nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(2))

    def __call__(self, x, *, both=False):
        return self.b(self.a(x)) if both else self.a(x)


@pytest.mark.thorough
def test_a_site_that_the_example_misses_is_refused():
    model, x = Flagged(), jnp.ones((2, 4))
    with pytest.raises(ValueError, match=r"misses 'b' and so 1 of 2; give one.*\('b', None\)"):
        qat(model, every(model, Spec()), x)
    trained = qat(model, every(model, Spec()), x, both=True)
    np.testing.assert_array_equal(trained(x), freeze(trained, matmul=Reference())(x))


def test_what_cannot_be_trained_is_refused():
    model, x = Flagged(), jnp.ones((2, 4))
    with pytest.raises(ValueError, match=r"method='gptq' for 'a'; write method='absmax'"):
        qat(model, plan(model, [("a", Spec(method="gptq"))]), x)
    with pytest.raises(ValueError, match=r"got 'other', which is no float site of this one; call"):
        qat(model, Plan(specs={"other": Spec()}, left_alone={}), x)
    with pytest.raises(ValueError, match=r"got none; write freeze\(qat\(model, plan, x\)\), or"):
        freeze(model)
    some = plan(model, [("a", Spec())])
    with pytest.raises(ValueError, match=r"got 'a', which rounds already; write freeze"):
        qat(qat(model, some, x), some, x)
    cast = ByAttributes(jnp.bfloat16)
    with pytest.raises(ValueError, match=r"got bfloat16 of one that is float32.*keep it in bf"):
        qat(cast, plan(cast, [("experts", Spec())]), TOKENS)
