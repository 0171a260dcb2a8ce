# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every implementation of ours against the suite, choices among them, and meshes."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.testing.attention import cases, check, features

PROGRAM = Path(__file__).parent.parent / "programs" / "attention.py"


def arrays(rng, *, b=2, t=9, s=9, n=4, k=2, h=8, g=8):
    shapes = (b, t, n, h), (b, s, k, h), (b, s, k, g)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


# Every feature is in one of these; the other cases, which tell them apart, are compiled for rarely.
EVERYDAY = {
    "reference": {
        "plain",
        "everything",
        "everything, bias and mask",
        "two-sided window",
        "NaN in a segment",
        "NaN in masked keys",
    },
    "blocked": {
        "bfloat16",
        "gqa, odd",
        "two-sided window",
        "asymmetric window",
        "bias of all rows",
        "mask of empty rows",
        "everything, bias and mask",
        "NaN in masked keys",
        "packed segments",
        "segments without partner",
        "positions in any order",
        "sinks of empty rows",
        "everything",
        "NaN in a segment",
        "NaN in the last key",
    },
}


def suite():
    for impl, names in EVERYDAY.items():
        for case in cases():
            marks = () if case.name in names else pytest.mark.slow
            yield pytest.param(impl, case, marks=marks, id=f"{impl}-{case.name}")


@pytest.mark.capability("attention, forward and backward")
@pytest.mark.parametrize("impl, case", list(suite()))
def test_suite(impl, case):
    check(functools.partial(attention, impl=impl), case)


def test_the_suite_asks_for_every_option():
    options = {"segments", "positions", "kv_lengths", "soft_cap", "sinks", "scale", "stats"}
    options |= {"bias", "mask", "asymmetric_window"}
    assert options | {"causal", "window", "two_sided_window", "gqa", "cross"} <= features()


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_what_a_decoder_is_given_today(impl):
    """The semantics of the attention that dovetail-models documents, written out for one row."""
    rng = np.random.default_rng(0)
    q, k, v = arrays(rng, b=1)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1]])
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]])
    call = functools.partial(
        attention,
        causal=True,
        positions=jnp.asarray(positions, jnp.int32),
        segment_ids=jnp.asarray(segments, jnp.int32),
        window=3,
        soft_cap=5.0,
        scale=0.4,
        sinks=jnp.asarray([0.1, -1.0, 2.0, 0.0], jnp.float32),
        impl=impl,
    )
    found = jax.jit(call)(q, k, v)
    sinks = [0.1, -1.0, 2.0, 0.0]
    q, k, v = (np.asarray(x, np.float64)[0] for x in (q, k, v))
    for i in range(9):
        for head in range(4):
            seen = [
                j
                for j in range(9)
                if segments[0, i] == segments[0, j] and 0 <= positions[0, i] - positions[0, j] < 3
            ]
            logits = 5 * np.tanh(0.4 * k[seen, head // 2] @ q[i, head] / 5)
            powers = np.exp(logits)
            expected = powers @ v[seen, head // 2] / (powers.sum() + np.exp(sinks[head]))
            np.testing.assert_allclose(found[0, i, head], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_no_row_depends_on_whether_one_array_or_a_pair_is_given():
    q, k, v = arrays(np.random.default_rng(1))
    ids = np.random.default_rng(2).integers(0, 3, (2, 9)).astype(np.int32)
    call = jax.jit(functools.partial(attention, causal=True))
    one = call(q, k, v, segment_ids=ids, positions=ids)
    pair = (ids, ids.astype(np.int16))
    two = call(q, k, v, segment_ids=pair, positions=pair)
    np.testing.assert_array_equal(one, two)


@pytest.mark.thorough
def test_numpy_arrays_are_taken():
    rng = np.random.default_rng(2)
    q, k, v = (np.asarray(x) for x in arrays(rng, b=1, t=2, s=2))
    out = attention(q, k, v, kv_lengths=np.array([1], np.int32), impl="reference")
    # One visible key: its value, for every query and each of the two heads that share it.
    np.testing.assert_allclose(
        out, np.repeat(np.tile(v[:, :1], (1, 2, 1, 1)), 2, axis=2), rtol=1e-6
    )


@pytest.mark.thorough
def test_stats_name_what_they_hold():
    q, k, v = arrays(np.random.default_rng(3))
    out, stats = jax.jit(functools.partial(attention, stats=True))(q, k, v)
    assert out.shape == (2, 9, 4, 8)
    assert stats.lse.shape == (2, 9, 4)
    assert stats.max.shape == (2, 4)
    assert jnp.isfinite(stats.lse).all()
    assert (stats.max <= stats.lse.max(1)).all()


def test_the_largest_logit_has_no_gradient():
    q, k, v = arrays(np.random.default_rng(4))
    for impl in ("blocked", "reference"):
        call = functools.partial(attention, stats=True, impl=impl)
        gradient = jax.jit(jax.grad(lambda q, call=call: call(q, k, v)[1].max.sum()))(q)
        assert not gradient.any()


@pytest.mark.thorough
def test_partial_results_combine_by_lse():
    """What ring attention does: halves of the keys, weighted by their share of the denominator.

    A sink takes part in one of them; a logit of -inf is none.
    """
    rng = np.random.default_rng(5)
    q, k, v = arrays(rng, s=12)
    sinks = jnp.asarray(rng.standard_normal(4), jnp.float32)
    call = jax.jit(functools.partial(attention, stats=True))
    whole, of_whole = call(q, k, v, sinks=sinks)
    first, of_first = call(q, k[:, :6], v[:, :6], sinks=sinks)
    second, of_second = call(q, k[:, 6:], v[:, 6:], sinks=jnp.full(4, -jnp.inf))
    lse = np.logaddexp(of_first.lse, of_second.lse)
    np.testing.assert_allclose(lse, of_whole.lse, rtol=1e-5)
    parts = (first, of_first.lse), (second, of_second.lse)
    joined = sum(np.asarray(out) * np.exp(part - lse)[..., None] for out, part in parts)
    np.testing.assert_allclose(joined, whole, rtol=1e-4, atol=1e-5)


def test_order_of_choice_on_each_platform():
    shape = jax.ShapeDtypeStruct((1, 8, 2, 64), jnp.bfloat16)
    plan = plan_attention(shape, shape, shape, causal=True)
    names = [choice.name for choice in plan.choices()]
    assert names.index("blocked") < names.index("reference")
    assert plan.choose().name == "blocked"
    devices = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "cuda")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=devices)
    with jax.sharding.use_abstract_mesh(mesh):
        plan = plan_attention(shape, shape, shape, causal=True)
        sinks = plan_attention(shape, shape, shape, sinks=jax.ShapeDtypeStruct((2,), jnp.float32))
    names = [choice.name for choice in plan.choices()]
    assert names.index("cudnn") < names.index("blocked") < names.index("reference")
    assert plan.choose().name == "cudnn"
    assert sinks.choose().name != "cudnn"


def test_an_implementation_that_cannot_is_refused_with_the_reason():
    q, k, v = arrays(np.random.default_rng(6))
    with pytest.raises(ValueError, match=r"impl='cudnn'.*runs on NVIDIA GPUs.*impl='blocked'"):
        attention(q, k, v, impl="cudnn")
    assert plan_attention(q, k, v, impl=("cudnn", "reference")).choose().name == "reference"


@pytest.mark.costly("the capability is a program on eight devices")
@pytest.mark.capability("attention on eight devices")
@pytest.mark.parametrize("mesh", ["auto", "explicit"])
def test_on_eight_devices(mesh):
    done = warm_start.run([PROGRAM, mesh], env=forced_devices.environment(8, cached=True))
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_narrow_positions_and_wide_windows_do_not_wrap(impl):
    rng = np.random.default_rng(5)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 200, 1, 4)), jnp.float32) for _ in range(3))
    run = functools.partial(attention, q, k, v, causal=True, impl=impl)
    expected = run()
    narrow = np.arange(200, dtype=np.int16)[None]
    np.testing.assert_array_equal(run(positions=narrow, window=2**40), expected)
    # 100 - (-100) does not fit in int8.
    shifted = np.arange(-100, 100).astype(np.int8)[None]
    np.testing.assert_array_equal(run(positions=shifted, window=2**31), expected)
    lengths = np.array([100], np.int8)
    np.testing.assert_array_equal(run(kv_lengths=lengths), run(kv_lengths=np.array([100], "i4")))


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_a_symbolic_batch_is_exported(impl):
    """One export serves batches of any size, with gradients."""
    (batch,) = jax.export.symbolic_shape("b")
    shapes = [(batch, 140, n, 8) for n in (4, 2, 2)] + [(1, 4, 140, 140)]
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def loss(q, k, v, bias):
        return jnp.sin(attention(q, k, v, bias=bias, causal=True, impl=impl)).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    exported = jax.export.export(gradient)(*shapes)
    for rows in (1, 3):
        given = [
            *arrays(np.random.default_rng(rows), b=rows, t=140, s=140),
            jnp.ones((1, 4, 140, 140)),
        ]
        for a, b in zip(exported.call(*given), gradient(*given), strict=True):
            # Sums over 140 queries, keys and 3 rows in another order.
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
