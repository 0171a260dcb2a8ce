# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.grouped.permutation import Permutation, permute, unpermute


def drawn(tokens, k, count, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    experts = np.array([rng.permutation(count)[:k] for _ in range(tokens)]).reshape(tokens, k)
    x, g = rng.standard_normal((2, tokens, 5)).astype(dtype)
    return jnp.asarray(x), experts.astype(np.int32), rng.random((tokens, k), np.float32), g


# Few shapes, each of which is compiled.
SHAPES = st.sampled_from([(0, 2, 3), (9, 4, 4), (8, 3, 7)])
permuted = jax.jit(permute, static_argnames="count")


@pytest.mark.thorough
@given(SHAPES, st.integers(0, 999))
@settings(deadline=None, max_examples=25, derandomize=True)
def test_rows_lie_expert_by_expert_in_the_order_of_tokens(shape, seed):
    tokens, k, count = shape
    x, experts, _, _ = drawn(tokens, k, count, seed)
    rows, sizes, plan = permuted(x, experts, count=count)
    pairs = sorted((e, m, j) for m, chosen in enumerate(experts) for j, e in enumerate(chosen))
    expected = np.array([np.asarray(x)[m] for _, m, _ in pairs], np.float32).reshape(-1, 5)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(sizes, np.bincount(experts.reshape(-1), minlength=count))
    np.testing.assert_array_equal(plan.choices, [m * k + j for _, m, j in pairs])
    places = {(m, j): row for row, (_, m, j) in enumerate(pairs)}
    wanted = [[places[m, j] for j in range(k)] for m in range(tokens)]
    np.testing.assert_array_equal(plan.places, np.array(wanted, int).reshape(tokens, k))
    assert plan.total == tokens * k
    assert (sizes.dtype, plan.choices.dtype, plan.places.dtype) == (jnp.int32,) * 3


def layer(x, w, weights, experts):
    """What an expert does to its row is to multiply it, here by w[e], a vector."""
    rows, sizes, plan = permute(x, experts, count=len(w))
    own = jnp.repeat(w, sizes, axis=0, total_repeat_length=len(rows))
    return unpermute(rows * own, plan, weights)


def dense(x, w, weights, experts, g):
    """The same by a one-hot matrix, float64, with gradients."""
    chosen = np.eye(len(w))[experts]  # [M, k, E]
    mixed = np.einsum("mke,mk,ed->md", chosen, weights, w)
    return {
        "out": x * mixed,
        "x": g * mixed,
        "w": np.einsum("mke,mk,md,md->ed", chosen, weights, x, g),
        "weights": np.einsum("mke,ed,md,md->mk", chosen, w, x, g),
    }


@pytest.mark.thorough
@pytest.mark.capability("routing of a mixture of experts")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_layer_is_the_dense_one(dtype):
    with jax.enable_x64(dtype == "float64"):
        x, experts, weights, g = drawn(11, 3, 6, dtype=jnp.dtype(dtype))
        w = jnp.asarray(np.random.default_rng(1).standard_normal((6, 5)).astype(jnp.dtype(dtype)))
        out, pull = jax.vjp(jax.jit(layer), x, w, jnp.asarray(weights), experts)
        got = dict(zip(("out", "x", "w", "weights"), (out, *pull(jnp.asarray(g))), strict=False))
        wide = [np.asarray(a, np.float64) for a in (x, w, weights)]
        expected = dense(*wide, experts, np.asarray(g, np.float64))
        # Of each dtype: at most 11 roundings of terms of order 1 to 10; weights are float32.
        for name, value in expected.items():
            eps = max(float(jnp.finfo(got[name].dtype).eps), float(jnp.finfo(x.dtype).eps))
            np.testing.assert_allclose(
                np.asarray(got[name], np.float64), value, rtol=0, atol=30 * eps
            )
        assert [str(got[name].dtype) for name in expected] == [dtype, dtype, dtype, "float32"]


def test_neither_way_nor_gradient_scatters():
    x, experts, weights, g = drawn(11, 3, 6)

    def both(x, weights, experts, g):
        def mixed(x, weights):
            rows, _, plan = permute(x, experts, count=6)
            return unpermute(rows, plan, weights)

        out, pull = jax.vjp(mixed, x, weights)
        return out, pull(g)

    text = str(jax.make_jaxpr(both)(x, weights, experts, g))
    assert "gather" in text
    assert "scatter" not in text


@pytest.mark.thorough
def test_sums_go_from_the_first_choice_on():
    rows = jnp.asarray([[1e8], [1.0], [-1e8], [1.0]], jnp.float32)
    plan = Permutation(jnp.arange(4), jnp.arange(4).reshape(1, 4), jnp.int32(4))
    # ((1e8 + 1) - 1e8) + 1 in float32; any other order gives 2 or 0.
    assert unpermute(rows, plan, jnp.ones((1, 4))).item() == 1.0


@pytest.mark.thorough
def test_vmap_and_checkpoint():
    x, experts, weights, _ = drawn(6, 2, 4)
    batches = [jnp.stack([jnp.asarray(a), jnp.asarray(a)[::-1]]) for a in (x, weights, experts)]

    def loss(x, weights, experts):
        rows, _, plan = permute(x, experts, count=4)
        return (unpermute(jnp.tanh(rows), plan, weights) ** 2).sum()

    grads = jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss), (0, 1))))(*batches)
    plain = jax.jit(jax.grad(loss, (0, 1)))
    for i in range(2):
        alone = plain(*(batch[i] for batch in batches))
        for one, other in zip(grads, alone, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-6)


def test_an_expert_out_of_range_makes_its_token_nan_under_a_trace():
    x, experts, weights, _ = drawn(6, 2, 4)
    experts[1, 0], experts[4, 1] = -1, 4

    @jax.jit
    def run(x, experts, weights):
        rows, sizes, plan = permute(x, experts, count=4)
        return sizes, plan, unpermute(rows, plan, weights)

    sizes, plan, out = run(x, experts, weights)
    known = experts[(experts >= 0) & (experts < 4)]
    np.testing.assert_array_equal(sizes, np.bincount(known, minlength=4))
    assert plan.total == 10
    np.testing.assert_array_equal(np.sort(plan.choices[10:]), [2, 9])
    assert np.isnan(out).all(-1).tolist() == [False, True, False, False, True, False]
    assert np.isfinite(np.delete(np.asarray(out), [1, 4], 0)).all()


@pytest.mark.parametrize("expert, found", [(-1, "-1 to "), (4, " to 4")])
def test_an_expert_out_of_range_is_refused_where_it_is_known(expert, found):
    x, experts, _, _ = drawn(6, 2, 4)
    experts[3, 1] = expert
    for given_ in (experts, jnp.asarray(experts)):
        with pytest.raises(ValueError, match="experts from 0 to count - 1 = 3") as error:
            permute(x, given_, count=4)
        assert found in str(error.value)
        assert "Use the count of experts" in str(error.value)


@pytest.mark.parametrize("shapes", [((6, 2, 3), (6, 2)), ((6, 3), (5, 2)), ((6, 3), (6,))])
def test_shapes_that_do_not_fit(shapes, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, experts = jnp.zeros(shapes[0]), jnp.zeros(shapes[1], jnp.int32)
    words = f"x.shape={shapes[0]}, experts.shape={shapes[1]}"
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        permute(x, experts, count=4)
    assert "x [M, D] and experts [M, k]" in str(error.value)
    assert "Reshape token axes to one" in str(error.value)


@pytest.mark.parametrize("rows, weights", [((11, 5), (6, 2)), ((12, 5), (6, 3)), ((12,), (6, 2))])
def test_what_does_not_fit_the_plan(rows, weights, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, experts, _, _ = drawn(6, 2, 4)
    plan = permute(x, experts, count=4)[2]
    with pytest.raises(ValueError, match=r"rows \[M k, D\] and weights \[M, k\]") as error:
        unpermute(jnp.zeros(rows), plan, jnp.zeros(weights))
    assert f"rows.shape={rows}, weights.shape={weights}, M=6, k=2" in str(error.value)
    assert "Use the plan that permute gave" in str(error.value)


def test_experts_captured_by_jit_are_checked_and_used():
    x, experts = jnp.ones((2, 3)), jnp.array([[2, 0], [0, 1]])
    sizes = jax.jit(lambda x: permute(x, experts, count=3)[1])(x)
    assert sizes.tolist() == [2, 1, 1]
    with pytest.raises(ValueError, match="permute needs experts from 0 to count - 1 = 1, got 0 to"):
        jax.jit(lambda x: permute(x, experts, count=2)[1])(x)
