# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics against sums in float64, and what must not change them: order, batches, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_quant.methods import record

_K = 7


def _rows(count, seed=0, width=_K):
    """Correlated rows, one input thirty times the others, one always 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) + 0.3
    x[:, 2] *= 30
    x[:, -2] = 0
    return x.astype(np.float32)


def _expected(x, weight=None):
    x = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64).reshape(-1)
    used = x[weight > 0]
    return record.Statistics(
        gram=np.einsum("r,ri,rj->ij", weight, x, x),
        absmax=np.abs(used).max(0, initial=0),
        absmean=weight @ np.abs(x) / max(weight.sum(), 1e-300),
        count=weight.sum(),
    )


def _assert_near(got, expected, rtol=1e-5):
    """float32 sums of tens of terms: their epsilon 6e-8 times the terms; off the diagonal, relative
    to the diagonal, from which terms cancel."""
    diagonal = np.sqrt(np.diagonal(expected.gram))
    bound = rtol * (np.outer(diagonal, diagonal) + 1e-30)
    np.testing.assert_array_less(np.abs(np.asarray(got.gram) - expected.gram), bound + 1e-30)
    np.testing.assert_allclose(got.absmax, expected.absmax, rtol=1e-7)
    np.testing.assert_allclose(got.absmean, expected.absmean, rtol=rtol)
    np.testing.assert_allclose(got.count, expected.count, rtol=1e-6)


def test_batches_of_any_shape_add_up() -> None:
    x = _rows(53)
    stats = record.empty(_K)
    for part in (x[:20].reshape(4, 5, _K), x[20:21], x[21:]):
        stats = jax.jit(record.update)(stats, jnp.asarray(part))
    _assert_near(stats, _expected(x))
    assert all(leaf.dtype == jnp.float32 for leaf in stats)


@pytest.mark.thorough
def test_a_mask_leaves_out_padding_even_of_nan_and_weighs_the_rest() -> None:
    x = _rows(24).reshape(4, 6, _K)
    mask = np.arange(6) < np.array([6, 2, 0, 5])[:, None]
    padded = np.where(mask[..., None], x, np.nan).astype(np.float32)
    for kind in (jnp.bool_, jnp.int32, jnp.float32):
        stats = record.update(record.empty(_K), jnp.asarray(padded), mask=jnp.asarray(mask, kind))
        _assert_near(stats, _expected(x, mask))
    weight = np.random.default_rng(3).uniform(0.1, 2, (4, 6)).astype(np.float32) * mask
    stats = record.update(record.empty(_K), jnp.asarray(x), mask=jnp.asarray(weight))
    _assert_near(stats, _expected(x, weight))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_other_dtypes_are_summed_in_float32(dtype) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.asarray(_rows(40), dtype)
        stats = record.update(record.empty(_K), x)
        assert all(leaf.dtype == jnp.float32 for leaf in stats)
        _assert_near(stats, _expected(np.asarray(x, np.float64)))


def test_a_million_rows_keep_their_digits() -> None:
    """The bound in the module's text: sqrt(batches) 2^-25 and what a batch of 1000 rounds."""
    block = _rows(1000, width=3)

    def add(stats, i):
        return record.update(stats, jnp.asarray(block) * (1 + i % 7)), None

    steps = jnp.arange(1000, dtype=jnp.float32)
    stats = jax.jit(lambda: jax.lax.scan(add, record.empty(3), steps)[0])()
    squares = sum((1 + i % 7) ** 2 for i in range(1000))
    means = sum(1 + i % 7 for i in range(1000)) / 1000
    expected = _expected(block)
    near = {"rtol": 3e-6}
    np.testing.assert_allclose(np.diag(stats.gram), np.diag(expected.gram) * squares, **near)
    np.testing.assert_allclose(stats.absmean, expected.absmean * means, **near)
    assert stats.count == 1_000_000


@pytest.mark.thorough
def test_no_rows_change_nothing() -> None:
    stats = record.update(record.empty(_K), jnp.asarray(_rows(9)))
    none = jnp.zeros((0, _K))
    for same in (
        record.update(stats, none),
        record.update(stats, jnp.ones((4, _K)), mask=jnp.zeros(4)),
        jax.tree.map(
            lambda a: a[0],
            record.update_sorted(
                jax.tree.map(lambda a: a[None], stats), none, sizes=jnp.zeros(1, jnp.int32)
            ),
        ),
    ):
        for a, b in zip(same, stats, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_merge_is_the_statistics_of_both_and_of_none() -> None:
    x = _rows(31)
    a, b = (record.update(record.empty(_K), jnp.asarray(p)) for p in (x[:11], x[11:]))
    _assert_near(record.merge(a, b), _expected(x))
    _assert_near(record.merge(record.empty(_K), b), _expected(x[11:]))
    _assert_near(record.merge(a, record.empty(_K)), _expected(x[:11]))
    none = record.merge(record.empty(_K), record.empty(_K))
    assert not any(np.any(leaf) for leaf in jax.tree.map(np.asarray, none))


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [[5, 0, 40, 3], [0, 0, 0, 0], [0, 61, 0, 0], [1, 1, 1, 50]])
def test_sorted_rows_go_to_their_experts(sizes) -> None:
    x = _rows(61)
    stats = jax.jit(record.update_sorted)(
        record.empty(_K, experts=4), jnp.asarray(x), sizes=jnp.array(sizes)
    )
    ends = np.cumsum(sizes)
    for e, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        one = jax.tree.map(lambda a, e=e: a[e], stats)
        _assert_near(one, _expected(x[end - size : end]))
    np.testing.assert_array_equal(record.starved(stats, 5), np.array(sizes) < 5)


@pytest.mark.thorough
def test_blocks_shorter_than_the_rows_of_an_expert() -> None:
    """300 rows of two experts take blocks of 150; 700 of them the largest block, 256."""
    for rows, sizes in ((300, [130, 160]), (700, [513, 180])):
        x = _rows(rows, width=3)
        stats = record.update_sorted(
            record.empty(3, experts=2), jnp.asarray(x), sizes=jnp.array(sizes)
        )
        for e, part in enumerate(np.split(x[: sum(sizes)], [sizes[0]])):
            _assert_near(jax.tree.map(lambda a, e=e: a[e], stats), _expected(part))


def test_assigned_rows_go_to_each_of_their_experts() -> None:
    x = _rows(18).reshape(3, 6, _K)
    assigned = np.random.default_rng(1).random((3, 6, 4)) < 0.4
    assigned[..., 3] = False
    stats = record.update_assigned(
        record.empty(_K, experts=4), jnp.asarray(x), assigned=jnp.asarray(assigned)
    )
    for e in range(4):
        _assert_near(jax.tree.map(lambda a, e=e: a[e], stats), _expected(x, assigned[..., e]))


@pytest.mark.thorough
def test_experts_that_hold_their_rows_are_mapped() -> None:
    x, mask = _rows(3 * 9).reshape(3, 9, _K), np.arange(9) < np.array([[9], [1], [4]])
    stats = jax.vmap(lambda s, x, m: record.update(s, x, mask=m))(
        record.empty(_K, experts=3), jnp.asarray(x), jnp.asarray(mask)
    )
    for e in range(3):
        _assert_near(jax.tree.map(lambda a, e=e: a[e], stats), _expected(x[e], mask[e]))


@pytest.mark.thorough
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
def test_what_is_not_finite_is_found_with_its_site_and_inputs(value) -> None:
    x = _rows(12)
    x[7, 3] = value
    bad = record.update(record.empty(_K), jnp.asarray(x))
    bad = record.update(bad, jnp.asarray(_rows(5)))  # finite rows do not heal it
    good = record.update(record.empty(_K), jnp.asarray(_rows(12)))
    record.check({"a": good})
    with pytest.raises(ValueError, match=r"must be finite .* got .*site='mlp.up' with 1 of 7: 3; "):
        record.check({"a": good, "mlp.up": bad})
    experts = jax.tree.map(lambda a, b: jnp.stack([a, b]), good, bad)
    with pytest.raises(ValueError, match=r"site='moe' .* pass mask= .* or leave the site out"):
        record.check({"moe": experts})


def test_widths_and_experts_must_agree() -> None:
    x = jnp.asarray(_rows(4))
    with pytest.raises(ValueError, match=r"as many inputs .* shape=\(4, 7\).* write empty\(7\)"):
        record.update(record.empty(6), x)
    with pytest.raises(ValueError, match=r"for each expert.* experts=3 .*empty\(7, experts=3\)"):
        record.update_sorted(record.empty(_K, experts=2), x, sizes=jnp.array([1, 1, 2]))
    with pytest.raises(ValueError, match=r"got assigned for experts=2"):
        record.update_assigned(record.empty(_K), x, assigned=jnp.ones((4, 2), bool))
