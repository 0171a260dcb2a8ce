# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the losses over tiles compute when, and what their gradients refuse."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels.loss import blocked
from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss.implementations import tiles_of
from dovetail_kernels.loss.operands import RowStats
from dovetail_kernels.loss.tiles import tile_bytes

M, D, V = 37, 8, 300
rng = np.random.default_rng(1)
X, W = rng.standard_normal((M, D)).astype("f4"), rng.standard_normal((D, V)).astype("f4")
BIAS, LABELS = rng.standard_normal(V).astype("f4"), rng.integers(0, V, M).astype("i4")
# Traced beside it, an operation takes a GPU's plan.
GPU = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda"))


def total(x, w, bias, **options):
    return linear_cross_entropy(x, w, LABELS, bias=bias, **options).sum


def products(function):
    """How many matrix products are in the program; a loop's body counts once."""
    return len(re.findall(r"dot_general\b", jax.jit(function).lower(X, W, BIAS).as_text()))


@pytest.mark.parametrize(
    "by, budget, count",
    [
        (None, None, 1),
        ((0,), None, 2),
        ((1,), None, 2),
        ((2,), None, 1),
        ((0, 1), None, 3),
        ((0, 1, 2), 45_000, 4),  # nothing kept: the logits are formed twice
    ],
)
def test_products_are_those_of_the_gradients_asked_for(by, budget, count):
    function = functools.partial(total, budget=budget)
    assert products(jax.grad(function, by) if by else function) == count


@pytest.mark.parametrize("budget, loops, count", [(None, 1, 3), (45_000, 3, 4)])
def test_a_gpu_loops_over_tokens_alone(budget, loops, count):
    """And a tile's logits are kept for its gradients, unless the budget is small."""
    gradient = jax.grad(functools.partial(total, budget=budget), (0, 1))
    with use_abstract_mesh(GPU):
        program = jax.jit(gradient).lower(X, W, BIAS).as_text()
    assert len(re.findall(r"stablehlo\.while\b", program)) == loops
    assert len(re.findall(r"dot_general\b", program)) == count
    slices = re.findall(rf"dynamic(?:_update)?_slice .*tensor<(?:{D}x{V}|{M}x{V})xf32>", program)
    assert bool(slices) == (loops > 1)  # of the head, its gradient or logits


@pytest.mark.thorough
@pytest.mark.parametrize("names", ["m", "m, v"])
def test_an_export_with_symbolic_sizes_as_on_a_gpu(names):
    """Tiles of 2048 tokens, as the plan for tokens of any number."""
    symbols = dict(zip(names.split(", "), jax.export.symbolic_shape(names), strict=True))
    m, v = symbols["m"], symbols.get("v", V)

    def gradients(x, w, labels):
        def loss(x, w):
            return linear_cross_entropy(x, w, labels).sum

        return jax.value_and_grad(loss, (0, 1))(x, w)

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((m, D), (D, v))]
    with use_abstract_mesh(GPU):
        labels = jax.ShapeDtypeStruct((m,), "int32")
        exported = jax.export.export(jax.jit(gradients), platforms=["cpu"])(*shapes, labels)
    for tokens in (M, 2049):
        x, labels = np.resize(X, (tokens, D)), np.resize(LABELS, tokens)
        value, (dx, dw) = exported.call(x, W, labels)
        z = x.astype("f8") @ W.astype("f8")
        lse = np.log(np.exp(z).sum(1))
        g = np.exp(z - lse[:, None])
        g[np.arange(tokens), labels] -= 1
        loss = (lse - z[np.arange(tokens), labels]).sum()
        # Float32 sums over at most 2,049 tokens, whose terms do not cancel.
        np.testing.assert_allclose(value, loss, rtol=1e-5)
        np.testing.assert_allclose(dx, g @ W.T.astype("f8"), atol=1e-4)
        np.testing.assert_allclose(dw, x.T.astype("f8") @ g, atol=1e-6 * tokens)


def test_log_probabilities_form_the_logits_again():
    def loss(x, w, bias):
        return linear_logprobs(x, w, LABELS, bias=bias).logprob.sum()

    assert [products(loss), products(jax.grad(loss, (0, 1)))] == [1, 4]


@pytest.mark.thorough
def test_temporary_memory_is_within_the_budget():
    """In XLA's count, with the float32 sum of the gradient by w, which has its dtype here.

    Beyond it are the tokens' own numbers, and what XLA aligns.
    """
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2048, 64), (64, 8192), (8192,))]
    labels = jnp.zeros(2048, jnp.int32)
    for budget in (2**26, 2**21):

        def loss(x, w, bias, budget=budget):
            return linear_cross_entropy(x, w, labels, bias=bias, budget=budget).sum

        compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*shapes).compile()
        temp = compiled.memory_analysis().temp_size_in_bytes
        assert temp <= budget + 2**18
    assert temp < 2048 * 8192 * 4 / 20  # what the logits alone would take


@pytest.mark.thorough
def test_the_gradient_of_z_sum_is_refused():
    for impl in ("blocked", "reference"):

        def both(x, impl=impl):
            found = linear_cross_entropy(x, W, LABELS, impl=impl)
            return found.sum + 1e-4 * found.z_sum

        assert np.all(np.isnan(jax.grad(both)(X))), impl

        def reported(x, impl=impl):
            found = linear_cross_entropy(x, W, LABELS, impl=impl)
            return found.sum + jax.lax.stop_gradient(1e-4 * found.z_sum) + 0.0 * found.correct

        assert np.all(np.isfinite(jax.grad(reported)(X))), impl


@pytest.mark.thorough
def test_gradients_scale_with_the_cotangent():
    plain = jax.grad(total, (0, 1))(X, W, BIAS)
    scaled = jax.grad(lambda x, w: total(x, w, BIAS) ** 2, (0, 1))(X, W)
    factor = 2 * float(total(X, W, BIAS))
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(factor * a, b, rtol=1e-6)


@pytest.mark.thorough
def test_a_gradient_in_bfloat16_is_summed_in_float32():
    """4096 equal tokens in eight tiles: each adds less than half of the sum's last bit would be."""
    x = jnp.ones((4096, 1), jnp.bfloat16)
    w = jnp.zeros((1, 2), jnp.bfloat16)
    labels = jnp.zeros(4096, jnp.int32)

    def loss(w):
        return linear_cross_entropy(x, w, labels, budget=30_000).sum

    plan_tiles = tiles_of_call(x, w, labels, 30_000)
    assert plan_tiles.rows < 2048
    np.testing.assert_array_equal(jax.grad(loss)(w).astype(jnp.float32), [[-2048, 2048]])


def tiles_of_call(x, w, labels, budget):
    from dovetail_kernels.loss.plan import plan_linear_cross_entropy

    call = plan_linear_cross_entropy(x, w, labels, budget=budget).call
    tiles = tiles_of(call, call.tokens)
    assert tile_bytes(tiles, call.width, call.vocabulary, 4, 2) <= budget
    return tiles


@pytest.mark.thorough
def test_the_formula():
    stats = RowStats(*(jnp.asarray([v]) for v in (3.0, 1.0, 8.0)), None)
    formula = blocked.Formula(smoothing=0.2, z_loss=0.1, vocabulary=4)
    # 0.8 (3 - 1) + 0.2 (3 - 8/4) + 0.1 * 9, times 2
    np.testing.assert_allclose(formula(stats, jnp.asarray([2.0])), [5.4], rtol=1e-6)
    infinite = stats._replace(lse=jnp.asarray([jnp.inf]))
    np.testing.assert_array_equal(formula(infinite, jnp.asarray([0.0])), [0.0])
