# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters against NumPy in float64, and against the quantized model below them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, calibrate, load, plan, qlora, save
from dovetail_quant.codes.codes import dequantize, quantize
from dovetail_quant.sites.apply import install
from dovetail_quant.sites.kernel import Kernel
from dovetail_quant.sites.sites import sites
from dovetail_quant.training.qlora import Adapter

INT4 = Spec(weight="int4", group=8)


class Experts(nnx.Module):
    """Three experts, of which the second sees nothing."""

    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (3, 16, 5)))
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        sizes = jnp.array([2, 0, 4], jnp.int32)
        return self.ragged_dot(x, self.kernel[...].astype(x.dtype), sizes)


# module, shape of x, y = einsum(x, w), how A and B make w.
SITES = {
    "linear": (
        nnx.Linear(16, 5, use_bias=False, rngs=nnx.Rngs(0)),
        ((2, 3, 16), "btk,kn->btn"),
        ((16, 3), (3, 5), "kr,rn->kn"),
    ),
    "general": (
        nnx.LinearGeneral((3, 8), (2, 5), axis=(1, 3), use_bias=False, rngs=nnx.Rngs(0)),
        ((2, 3, 4, 8), "banc,acde->bnde"),
        ((3, 8, 3), (3, 2, 5), "acr,rde->acde"),
    ),
    "einsum": (
        nnx.Einsum("bnth,dhn->dbt", (5, 8, 2), rngs=nnx.Rngs(0)),
        ((3, 2, 4, 8), "bnth,dhn->dbt"),
        ((8, 2, 3), (3, 5), "hnr,rd->dhn"),
    ),
    "experts": (Experts(nnx.Rngs(1)), ((6, 16), None), ((3, 16, 3), (3, 3, 5), "ekr,ern->ekn")),
}


def quantized(module, spec=INT4, **options):
    return apply(module, plan(module, [("**", spec)]), **options)


def randomized(adapted, seed=1):
    """Adapters as they might be after training."""
    rng = np.random.default_rng(seed)
    state = nnx.state(adapted, nnx.LoRAParam)
    nnx.update(
        adapted, jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), state)
    )
    return adapted


def adapters(model):
    (one,) = [m for _, m in nnx.iter_modules(model) if isinstance(m, Adapter)]
    return [np.asarray(p[...], np.float64) for p in (one.a, one.b)]


def wanted(x, w, equation):
    if equation is not None:
        return np.einsum(equation, x, w)
    return np.concatenate([x[:2] @ w[0], x[2:] @ w[2]])


@pytest.mark.thorough
@pytest.mark.parametrize("name", SITES)
def test_the_sum_of_both_products(name):
    module, (shape, equation), (a_shape, b_shape, product) = SITES[name]
    below = quantized(module)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    adapted = qlora.insert(below, rank=3, alpha=6.0, rngs=nnx.Rngs(7), where="**")
    run = jax.jit(lambda m: m(jnp.asarray(x)))
    np.testing.assert_array_equal(run(adapted), run(below))
    a, b = adapters(randomized(adapted))
    w = np.asarray(below.kernel[...].dequantize(), np.float64)
    w = w + 6.0 / 3 * np.einsum(product, a.reshape(a_shape), b.reshape(b_shape))
    want = wanted(x.astype(np.float64), w, equation)
    # Float32 sums of up to 24 products, and of 3.
    np.testing.assert_allclose(run(adapted), want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.thorough
def test_the_input_of_an_adapter_is_not_divided():
    rng = np.random.default_rng(0)
    below = nnx.Linear(16, 12, rngs=nnx.Rngs(0))
    divides = jnp.asarray(rng.uniform(0.1, 10, 16), jnp.float32)
    codes = quantize(below.kernel[...] * divides[:, None], INT4)
    install(below, sites(below)[""], codes, spec=INT4, scale=divides)
    adapted = randomized(qlora.insert(below, rank=2, alpha=2.0, rngs=nnx.Rngs(0)))
    leaves = zip(*map(jax.tree.leaves, (adapted.kernel[...], below.kernel[...])), strict=True)
    assert all(one is other for one, other in leaves)  # no copy of the codes
    x = rng.normal(size=(3, 16)).astype(np.float32)
    a, b = adapters(adapted)
    w = np.asarray(dequantize(codes), np.float64) / np.asarray(divides, np.float64)[:, None]
    want = x.astype(np.float64) @ (w + a @ b)
    np.testing.assert_allclose(adapted(x), want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.slow
def test_it_keeps_what_calibration_found():
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(64, 16)).astype(np.float32) * np.exp(rng.normal(size=16)).astype("f4")
    model = nnx.Sequential(
        nnx.Linear(16, 12, rngs=nnx.Rngs(0)), nnx.Linear(12, 4, rngs=nnx.Rngs(1))
    )
    rules = [("layers.0", Spec(weight="int4", group=8, method="awq"))]
    rules += [("layers.1", Spec(weight="int4", group=4, method="gptq"))]
    below = apply(model, calibrate(model, plan(model, rules), [batch], run=lambda m, x: m(x)))
    adapted = qlora.insert(below, rank=2, alpha=2.0, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(adapted(batch), below(batch))
    assert adapted.layers[0].kernel[...].scale is not None
    assert not np.array_equal(randomized(adapted)(batch), below(batch))


@pytest.mark.thorough
def test_a_is_drawn_and_b_is_zero():
    model = quantized(nnx.Sequential(*[nnx.Linear(400, 8, rngs=nnx.Rngs(0)) for _ in range(2)]))
    rngs = nnx.Rngs(3)
    adapted = qlora.insert(model, rank=5, alpha=1.0, rngs=rngs)
    first, second = (layer.dot_general for layer in adapted.layers)
    assert not np.array_equal(first.a[...], second.a[...])
    values = np.asarray(first.a[...])
    assert values.shape == (400, 5)
    assert np.abs(values).max() <= 1 / 20
    # The deviation of 2000 uniform draws is known to 1 %.
    assert values.std() == pytest.approx(1 / 20 / np.sqrt(3), rel=0.04)
    assert not np.any(first.b[...])
    again = qlora.insert(model, rank=5, alpha=1.0, rngs=rngs)
    assert not np.array_equal(first.a[...], again.layers[0].dot_general.a[...])


def test_equal_layers_stay_equal():
    model = quantized(nnx.Sequential(*[nnx.Linear(8, 8, rngs=nnx.Rngs(i)) for i in range(2)]))
    adapted = qlora.insert(model, rank=2, alpha=1.0, rngs=nnx.Rngs(0))
    first, second = (nnx.graphdef(layer) for layer in adapted.layers)
    assert first == second


def test_results_keep_their_dtype():
    model = quantized(nnx.Linear(16, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    adapted = qlora.insert(model, rank=2, alpha=1.0, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 16), jnp.bfloat16)
    run = jax.jit(lambda m: m(x))
    np.testing.assert_array_equal(run(adapted), run(model))
    assert run(randomized(adapted)).dtype == jnp.bfloat16


def test_adapters_alone_are_trained():
    model = quantized(nnx.Sequential(nnx.Linear(16, 24, rngs=nnx.Rngs(0)), nnx.tanh))
    x = jax.random.normal(jax.random.key(0), (32, 16))
    want = nnx.Linear(16, 24, rngs=nnx.Rngs(5))(x) / 2
    adapted = qlora.insert(model, rank=4, alpha=8.0, rngs=nnx.Rngs(0))
    before = jax.tree.map(np.array, nnx.state(adapted, nnx.Not(nnx.LoRAParam)))
    optimizer = nnx.Optimizer(adapted, optax.adam(1e-2), wrt=nnx.LoRAParam)

    @nnx.jit
    def step(m, optimizer):
        loss = nnx.value_and_grad(
            lambda m: jnp.mean((m(x) - want) ** 2), argnums=nnx.DiffState(0, nnx.LoRAParam)
        )
        value, grads = loss(m)
        optimizer.update(m, grads)
        return value, grads

    losses, grads = zip(*[step(adapted, optimizer) for _ in range(40)], strict=True)
    assert losses[-1] < 0.5 * losses[0]
    paths = {path[-1] for path, _ in nnx.to_flat_state(grads[0])}
    assert paths == {"a", "b"}
    after = nnx.state(adapted, nnx.Not(nnx.LoRAParam))
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.thorough
@pytest.mark.capability("adapters on quantized weights")
def test_gradients_are_those_of_the_formula():
    rng = np.random.default_rng(0)
    below = quantized(nnx.Linear(16, 5, use_bias=False, rngs=nnx.Rngs(0)))
    adapted = randomized(qlora.insert(below, rank=3, alpha=6.0, rngs=nnx.Rngs(0)))
    x, c = rng.normal(size=(7, 16)).astype("f4"), rng.normal(size=(7, 5)).astype("f4")

    def loss(m, x):
        return jnp.vdot(m(x), c)

    grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(adapted, x)
    a, b = adapters(adapted)
    x, c = x.astype(np.float64), c.astype(np.float64)
    w = np.asarray(below.kernel[...].dequantize(), np.float64) + 2 * a @ b
    dx = jax.grad(lambda x: loss(adapted, x))(jnp.asarray(x, jnp.float32))
    found = grads["dot_general"]["a"][...], grads["dot_general"]["b"][...], dx
    for one, want in zip(found, (2 * x.T @ c @ b.T, 2 * (x @ a).T @ c, c @ w.T), strict=True):
        np.testing.assert_allclose(one, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.capability("adapters on quantized weights")
def test_a_step_holds_no_float_copy_of_a_weight():
    size, rows = 1024, 8
    model = quantized(nnx.Linear(size, size, rngs=nnx.Rngs(0)), Spec(weight="int4", group=128))
    adapted = qlora.insert(model, rank=4, alpha=8.0, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(adapted, optax.adam(1e-3), wrt=nnx.LoRAParam)
    graphdef, state = nnx.split((adapted, optimizer))

    def step(state, x):
        m, optimizer = nnx.merge(graphdef, state)
        loss = nnx.grad(lambda m: jnp.mean(m(x) ** 2), argnums=nnx.DiffState(0, nnx.LoRAParam))
        optimizer.update(m, loss(m))
        return nnx.state((m, optimizer))

    x = jax.ShapeDtypeStruct((rows, size), jnp.float32)
    analysis = jax.jit(step).lower(state, x).compile().memory_analysis()
    assert analysis is not None
    used = analysis.temp_size_in_bytes
    # A block of 2^17 float32 and what is made of it; the weight has 2^20.
    assert used < 4 * size**2 / 2


@pytest.mark.thorough
def test_the_model_stays_and_adapters_are_saved_apart(tmp_path):
    model = nnx.Sequential(
        nnx.Linear(16, 24, rngs=nnx.Rngs(0)), nnx.Linear(24, 4, rngs=nnx.Rngs(1))
    )
    x = jnp.ones((2, 16))
    below = quantized(model)
    save(below, tmp_path)
    adapted = randomized(qlora.insert(below, rank=2, alpha=1.0, rngs=nnx.Rngs(0), where="layers.1"))
    assert isinstance(below.layers[1].kernel[...], Kernel)
    assert below.layers[1].dot_general is not adapted.layers[1].dot_general
    assert adapted.layers[0].dot_general is below.layers[0].dot_general
    trained = nnx.state(adapted, nnx.LoRAParam)
    assert len(jax.tree.leaves(trained)) == 2
    again = qlora.insert(
        load(tmp_path, model), rank=2, alpha=1.0, rngs=nnx.Rngs(9), where="layers.1"
    )
    nnx.update(again, trained)
    np.testing.assert_array_equal(again(x), adapted(x))


class Mixed(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(11, 16, rngs=nnx.Rngs(0))
        self.linear = nnx.Linear(16, 16, rngs=nnx.Rngs(1))
        self.float = nnx.LinearGeneral(16, 16, rngs=nnx.Rngs(2))
        self.experts = Experts(nnx.Rngs(3))
        self.conv = nnx.Conv(16, 16, (1,), rngs=nnx.Rngs(4))

    def __call__(self, tokens):
        return self.experts(self.float(self.linear(self.embed(tokens))))


@pytest.fixture(scope="module")
def mixed():
    model = Mixed()
    return apply(model, plan(model, [("{embed,linear,experts}", INT4)]))


def adapted_paths(model):
    paths = [path for path, m in nnx.iter_modules(model) if isinstance(m, Adapter)]
    return {path[0] for path in paths}


@pytest.mark.thorough
def test_where_chooses(mixed):
    options = {"rank": 2, "alpha": 1.0, "rngs": nnx.Rngs(0)}
    assert adapted_paths(qlora.insert(mixed, **options)) == {"linear"}
    some = qlora.insert(mixed, where="{float,experts}", **options)
    assert adapted_paths(some) == {"float", "experts"}
    tokens = jnp.arange(6)
    np.testing.assert_array_equal(some(tokens), mixed(tokens))
    assert not np.array_equal(randomized(some)(tokens), mixed(tokens))


@pytest.mark.thorough
def test_what_cannot_be_adapted_is_refused(mixed):
    options = {"rank": 2, "alpha": 1.0, "rngs": nnx.Rngs(0)}
    with pytest.raises(ValueError, match=r"got 'embed': it is an embedding; write where="):
        qlora.insert(mixed, where=("embed", "linear"), **options)
    with pytest.raises(ValueError, match=r"got 'conv': a Conv has its product in its own"):
        qlora.insert(mixed, where="conv", **options)
    with pytest.raises(ValueError, match=r"a pattern must match a site, got 'heads', which"):
        qlora.insert(mixed, where="heads", **options)
    with pytest.raises(ValueError, match=r"needs a quantized nnx.Linear.*call apply first"):
        qlora.insert(Mixed(), **options)
    with pytest.raises(
        ValueError, match=r"got 'linear', which has its own; train that one, or write"
    ):
        qlora.insert(qlora.insert(mixed, **options), **options)
    for rank, alpha in (0, 1.0), (2, 0.0), (2, float("nan")):
        with pytest.raises(ValueError, match=rf"got rank={rank}, alpha={alpha}; write rank=8"):
            qlora.insert(mixed, rank=rank, alpha=alpha, rngs=nnx.Rngs(0))


def same_bits(one, other):
    leaves = [
        [np.asarray(x).tobytes() for x in jax.tree.leaves(nnx.state(m))] for m in (one, other)
    ]
    return leaves[0] == leaves[1] and nnx.graphdef(one) == nnx.graphdef(other)


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("weight", ["int4", "nf4", None])
def test_removing_gives_the_bits_back(name, weight):
    module = SITES[name][0]
    below = quantized(module, Spec(weight=weight, group=8)) if weight else module
    adapted = randomized(qlora.insert(below, "**", rank=3, alpha=6.0, rngs=nnx.Rngs(7)))
    assert list(qlora.adapters(adapted)) == [""]
    assert not same_bits(adapted, below)
    assert same_bits(qlora.remove(adapted), below)
    assert isinstance(getattr(adapted, qlora.adapters(adapted)[""].name), Adapter)  # as it was


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("spec", [INT4, Spec(weight="nf4", group=8)], ids=lambda s: s.weight)
def test_a_merged_weight_is_the_sum(name, spec):
    module, (shape, equation), (a_shape, b_shape, product) = SITES[name]
    below = quantized(module, spec)
    adapted = randomized(qlora.insert(below, "**", rank=3, alpha=6.0, rngs=nnx.Rngs(7)))
    merged = qlora.merge(adapted)
    assert nnx.graphdef(merged) == nnx.graphdef(module)
    a, b = adapters(adapted)
    w = np.asarray(below.kernel[...].dequantize(), np.float64)
    w = w + 6.0 / 3 * np.einsum(product, a.reshape(a_shape), b.reshape(b_shape))
    # A product of 3, its scale, and the sum: five roundings of each term.
    np.testing.assert_allclose(merged.kernel[...], w, rtol=0, atol=5 * 2**-24 * np.abs(w).max())
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    want = wanted(x.astype(np.float64), w, equation)
    # Float32 sums of up to 24 products, live and merged.
    for model in (merged, adapted):
        y = model(jnp.asarray(x))
        np.testing.assert_allclose(y, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_a_merged_weight_may_be_codes_again():
    rng = np.random.default_rng(0)
    below = nnx.Linear(16, 12, rngs=nnx.Rngs(0))
    divides = jnp.asarray(rng.uniform(0.1, 10, 16), jnp.float32)
    spec = Spec(weight="int4", group=8, method="awq")
    codes = quantize(below.kernel[...] * divides[:, None], spec)
    install(below, sites(below)[""], codes, spec=spec, scale=divides)
    adapted = randomized(qlora.insert(below, rank=2, alpha=1.0, rngs=nnx.Rngs(0)))
    again, merged = qlora.merge(adapted, codes=True), qlora.merge(adapted)
    assert nnx.graphdef(again) == nnx.graphdef(below)
    kernel = again.kernel[...]
    assert kernel.spec == spec
    np.testing.assert_array_equal(kernel.scale, divides)
    # Half a step of the scaled weights, by each scale; the codes end at 7 of 7.5 levels.
    exact = np.asarray(merged.kernel[...], np.float64) * np.asarray(divides, np.float64)[:, None]
    step = np.repeat(np.abs(exact.reshape(2, 8, 12)).max(1) / 7.5, 8, axis=0)
    found = np.asarray(kernel.dequantize(), np.float64) * np.asarray(divides, np.float64)[:, None]
    assert (np.abs(found - exact) <= 0.5001 * step).all()
    assert not np.array_equal(kernel.codes().qvalue, codes.qvalue)


def test_a_merged_weight_has_the_dtype_asked():
    model = quantized(nnx.Linear(16, 8, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    adapted = randomized(qlora.insert(model, rank=2, alpha=1.0, rngs=nnx.Rngs(0)))
    assert qlora.merge(adapted).kernel[...].dtype == jnp.bfloat16
    wide = qlora.merge(adapted, dtype=jnp.float32).kernel[...]
    assert wide.dtype == jnp.float32
    assert not np.array_equal(wide, wide.astype(jnp.bfloat16))


@pytest.mark.thorough
def test_adapters_of_a_float_site_are_merged_into_it(mixed):
    adapted = randomized(
        qlora.insert(mixed, ("float", "linear"), rank=2, alpha=1.0, rngs=nnx.Rngs(0))
    )
    assert list(qlora.adapters(adapted)) == ["float", "linear"]
    tokens = jnp.arange(6)
    want = adapted(tokens)
    merged = qlora.merge(adapted)
    # Sums of 16 products through three layers.
    np.testing.assert_allclose(merged(tokens), want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert isinstance(merged.embed.embedding[...], Kernel)
    assert isinstance(merged.linear.kernel[...], jax.Array)
    codes = qlora.merge(adapted, codes=True)
    assert isinstance(codes.linear.kernel[...], Kernel)
    np.testing.assert_array_equal(codes.float.kernel[...], merged.float.kernel[...])


@pytest.mark.thorough
def test_a_model_without_adapters(mixed):
    for call in (qlora.remove, qlora.merge):
        with pytest.raises(
            ValueError, match=r"must have adapters, got a Mixed.*qlora\.insert\(mod"
        ):
            call(mixed)
