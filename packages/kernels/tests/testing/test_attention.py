# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite judges: its oracle by finite differences, its verdict by functions that are wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention.api import attention
from dovetail_kernels.testing.attention import (
    cases,
    check,
    check_attention,
    features,
    inputs,
    mask,
    oracle,
)

CASES = {case.name: case for case in cases()}
REFERENCE = functools.partial(attention, impl="reference")


@pytest.mark.parametrize(
    "name",
    [
        "everything",
        "everything, bias and mask",
        "segments without partner",
        "gqa, odd",
    ],
)
def test_gradients_of_the_oracle_are_slopes(name):
    case = dataclasses.replace(CASES[name], kv_lengths=False, dtype="float64", batch=1)
    case = dataclasses.replace(case, queries=min(case.queries, 20), keys=min(case.keys, 20))
    arrays, options = inputs(case)
    rng = np.random.default_rng(0)
    rows = (1, case.queries, case.heads)
    cotangents = {"out": rng.standard_normal((*rows, case.value_dim))}
    if case.stats:
        cotangents["lse"] = rng.standard_normal(rows)

    def loss(arrays):
        found = oracle(case, arrays, options, cotangents)
        finite = {n: np.where(np.isfinite(found[n]), found[n], 0) for n in cotangents}
        return sum((finite[n] * c).sum() for n, c in cotangents.items())

    found = oracle(case, arrays, options, cotangents)
    for name, x in arrays.items():
        direction = rng.standard_normal(x.shape)
        up, down = (loss(arrays | {name: x + e * direction}) for e in (1e-5, -1e-5))
        # Central differences: an error of the square of the step, and rounding over the step.
        np.testing.assert_allclose(
            (found[f"d{name}"] * direction).sum(), (up - down) / 2e-5, rtol=1e-6
        )


def test_the_oracle_softmax_by_hand():
    case = dataclasses.replace(CASES["sinks"], batch=1, queries=1, keys=2, heads=1, kv_heads=1)
    arrays = {
        "q": np.full((1, 1, 1, 8), 1.0),
        "k": np.log([1, 3])[None, :, None, None] * np.full((1, 2, 1, 8), 8**-0.5),
        "v": np.array([4.0, 8.0])[None, :, None, None] * np.ones((1, 2, 1, 8)),
        "sinks": np.log([4.0]),
    }
    found = oracle(case, arrays, {}, {"out": np.ones((1, 1, 1, 8))})
    # Powers 1, 3 and the sink's 4: (1 · 4 + 3 · 8) / 8.
    np.testing.assert_allclose(found["out"], np.full((1, 1, 1, 8), 3.5))
    np.testing.assert_allclose(found["lse"], np.log([[[8.0]]]))
    # One product of float64 near 1: a few of its roundings of 1.1e-16.
    np.testing.assert_allclose(found["max"], np.log([[3.0]]), atol=1e-15)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gqa, odd", "window", "kv_lengths, causal"])
def test_the_peer_passes(name):
    """jax.nn on the cases that it can state, NaN replaced, since it multiplies that by 0."""

    def peer(q, k, v, *, causal=False, window=None, kv_lengths=None, scale=None):
        lengths = None if kv_lengths is None else jnp.maximum(jnp.asarray(kv_lengths), 1)
        out = jax.nn.dot_product_attention(
            q,
            jnp.where(jnp.isnan(k), 0, k),
            jnp.where(jnp.isnan(v), 0, v),
            is_causal=causal,
            scale=scale,
            local_window_size=None if window is None else (window - 1, 0),
            key_value_seq_lengths=lengths,
        )
        return out if lengths is None else out * (kv_lengths > 0)[:, None, None, None].astype("f4")

    check(peer, CASES[name])


IGNORED = {
    "causal": "causal",
    "window": "window",
    "two-sided window": "window",
    "packed segments": "segment_ids",
    "positions with gaps": "positions",
    "kv_lengths": "kv_lengths",
    "soft cap": "soft_cap",
    "sinks": "sinks",
    "scale": "scale",
    "bias": "bias",
    "mask": "mask",
    "asymmetric window": "window",
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_ignored_option_is_caught(name):
    def ignores(q, k, v, **options):
        options.pop(IGNORED[name])
        return REFERENCE(q, k, v, **options)

    with pytest.raises(AssertionError, match=name):
        check(ignores, CASES[name], grad=False)


@pytest.mark.thorough
def test_a_wrong_gradient_is_caught():
    @jax.custom_vjp
    def halves(x):
        return x

    halves.defvjp(lambda x: (x, None), lambda _, g: (g * 0.5,))
    with pytest.raises(AssertionError, match=r"plain: error .* of dk exceeds"):
        check(lambda q, k, v: REFERENCE(q, halves(k), v), CASES["plain"])
    check(lambda q, k, v: REFERENCE(q, halves(k), v), CASES["plain"], grad=False)


@pytest.mark.thorough
def test_wrong_stats_are_caught():
    def without_scale(q, k, v, **options):
        out, stats = REFERENCE(q, k, v, **options)
        return out, stats._replace(max=stats.max * 8**0.5)

    with pytest.raises(AssertionError, match=r"stats: error .* of max exceeds"):
        check(without_scale, CASES["stats"], grad=False)


@pytest.mark.thorough
def test_nan_where_none_is_expected_is_caught():
    with pytest.raises(AssertionError, match=r"plain: 4 values of out are wrongly NaN"):
        check(
            lambda q, k, v: REFERENCE(q, k, v).at[0, 0, 0, :4].set(jnp.nan),
            CASES["plain"],
            grad=False,
        )


def test_a_wrong_shape_is_caught_and_not_taken_for_a_refusal():
    def narrow(q, k, v, **options):
        return REFERENCE(q, k, v[..., :7], **options)

    with pytest.raises(AssertionError, match=r"plain: out has shape \(2, 24, 2, 7\), expected"):
        check_attention(narrow, supports=set(), grad=False)


@pytest.mark.thorough
def test_right_or_refused():
    def plain_only(q, k, v, **options):
        if options or q.dtype != jnp.float32 or k.shape[2] != q.shape[2]:
            raise NotImplementedError("plain alone")
        return REFERENCE(q, k, v)

    check_attention(plain_only, supports={"float32", "cross"}, grad=False)
    with pytest.raises(AssertionError, match=r"scale: needs .* refused: .*plain alone"):
        check_attention(
            plain_only, supports={"float32", "cross", "value_width", "scale"}, grad=False
        )

    def forgets(q, k, v, **options):
        options.pop("soft_cap", None)
        return plain_only(q, k, v, **options)

    with pytest.raises(AssertionError, match="soft cap: error"):
        check_attention(forgets, supports={"float32"}, grad=False)


def test_an_unknown_feature_is_refused():
    with pytest.raises(ValueError, match=r"got \['dropout'\]. Omit them"):
        check_attention(REFERENCE, supports={"causal", "dropout"})
    assert "dropout" not in features()


def test_padding_is_nan_and_poison_is_where_it_is_said():
    arrays, options = inputs(CASES["kv_lengths"])
    lengths = options["kv_lengths"]
    assert (lengths.min(), lengths.max()) == (0, 160)
    for row, length in enumerate(lengths):
        assert np.isnan(arrays["k"][row, length:]).all()
        assert np.isfinite(arrays["v"][row, :length]).all()
    arrays, options = inputs(CASES["NaN in a segment"])
    assert np.isnan(arrays["q"][options["segment_ids"] == 2]).all()
    assert np.isfinite(arrays["q"][options["segment_ids"] != 2]).all()


def test_every_case_asks_something():
    """Each has a mask that hides and shows, or none; segments without partner leave empty rows."""
    for case in cases():
        see = mask(case, inputs(case)[1])
        assert see.any()
        masked = case.causal or case.window or case.segments or case.kv_lengths or case.mask
        assert bool(masked) == (not see.all()), case.name
    assert (
        not mask(CASES["segments without partner"], inputs(CASES["segments without partner"])[1])
        .any(3)
        .all()
    )
