# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept, against a sort in float64; what is drawn, against the probabilities."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forced_devices
import warm_start
from dovetail_kernels.sampling.api import sample, warp_logits
from dovetail_kernels.testing import sampling as suite

PROGRAM = Path(__file__).parent.parent / "programs" / "sample_sharded.py"
kept = jax.jit(warp_logits)
drawn = jax.jit(lambda z, keys, t, k, p, m: sample(
    z, keys=keys, temperature=t, top_k=k, top_p=p, min_p=m
))  # fmt: skip


@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p")
@pytest.mark.parametrize("case", suite.cases(), ids=lambda case: case.name)
def test_conformance(case):
    suite.check(sample, case)


V = 37
ROW = st.lists(
    st.floats(-30, 30, width=16) | st.sampled_from([0.0, -0.0, 1.0, -np.inf]),
    min_size=V,
    max_size=V,
)


@pytest.mark.thorough
@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p")
@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    rows=st.lists(ROW, min_size=3, max_size=3),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, V + 3),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_what_is_kept_is_what_a_sort_keeps(rows, temperature, top_k, top_p, min_p):
    """Where a sum is within 1e-5 of p float32 may decide either way: those rows say nothing."""
    z = np.asarray(rows, np.float32)
    z[:, 5] = 2.0  # something is above -inf
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    arrays = {name: np.full(3, value) for name, value in options.items()}
    arrays["top_k"] = arrays["top_k"].astype(np.int32)
    found = np.asarray(
        kept(z, **{n: a.astype("i4" if n == "top_k" else "f4") for n, a in arrays.items()})
    )
    for row, warped in zip(z, found, strict=True):
        p, margin = suite.oracle(row, **options)
        if margin > 1e-5:
            np.testing.assert_array_equal(warped > -np.inf, p > 0)
        left = warped > -np.inf
        scaled = (row[left] - row.max()) / (temperature or 1.0)
        np.testing.assert_allclose(warped[left], scaled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 32000, 151936])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vocabularies_of_models(vocabulary, dtype):
    """bfloat16 has many equal logits; each row its own options.

    With so many tokens a sum is always near p. So: as with a p at most 1e-5 higher or lower.
    """
    rng = np.random.default_rng(vocabulary)
    z = jnp.asarray(rng.standard_normal((3, vocabulary)) * 3, dtype)
    options = {
        "temperature": [0.7, 1.0, 1.5],
        "top_k": [50, 0, 5000],
        "top_p": [0.9, 0.95, 1.0],
        "min_p": [0.0, 0.001, 0.0],
    }
    found = np.asarray(kept(z, **{name: jnp.asarray(value) for name, value in options.items()}))
    for i, row in enumerate(np.asarray(z, np.float32)):
        one = {name: values[i] for name, values in options.items()}
        few, many = (
            suite.oracle(row, **{**one, "top_p": min(one["top_p"] + step, 1.0)})[0] > 0
            for step in (-1e-5, 1e-5)
        )
        if one["top_p"] == 1:
            few = many
        left = found[i] > -np.inf
        assert not np.any(few & ~left)
        assert not np.any(left & ~many)
        assert few.sum() > 0.99 * many.sum()


def test_extreme_logits():
    """Thresholds are found among all float32 numbers, also at either end and around 0."""
    tiny = np.float32(2e-38)
    row = np.asarray([1e38, 1.0, tiny, 0.0, -0.0, -tiny, -1.0, -1e38, -np.inf], np.float32)
    z = np.stack([row] * 9)
    warped = kept(z, temperature=np.float32(1e30), top_k=np.arange(1, 10, dtype=np.int32))
    # 0 and -0 are equal; -inf is never kept.
    assert (np.asarray(warped) > -np.inf).sum(1).tolist() == [1, 2, 3, 5, 5, 6, 7, 8, 8]


def test_a_temperature_near_zero_does_not_overflow():
    found = np.asarray(kept(np.asarray([[3.0, 2.0, -5.0]], "f4"), temperature=np.float32(1e-38)))
    np.testing.assert_array_equal(found, [[0, -np.inf, -np.inf]])


def test_min_p_keeps_what_is_just_as_likely_as_it_asks():
    found = np.asarray(kept(np.asarray([[3.0, 1.0, 3.0]], "f4"), min_p=np.float32(1.0)))
    np.testing.assert_array_equal(found, [[0, -np.inf, 0]])


@pytest.mark.thorough
def test_a_softmax_of_warped_logits_is_the_distribution():
    z = np.log(np.asarray([[0.5, 0.25, 0.15, 0.1]], "f4"))
    found = jax.nn.softmax(kept(z, top_p=0.8), axis=1)
    np.testing.assert_allclose(found, [[0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p")
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.6}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.05, "temperature": 1.5}],
)
def test_draws_have_the_probabilities(options):
    """60,000 draws with fixed keys, their chi-square within 4 standard deviations (p > 3e-5)."""
    row = np.random.default_rng(7).standard_normal(60).astype(np.float32) * 2
    count = 60_000
    keys = jax.random.split(jax.random.key(5), count)
    tokens = jax.jit(lambda z: sample(z, keys=keys, **options))(np.tile(row, (count, 1)))
    p, _ = suite.oracle(row, **options)
    counts = np.bincount(tokens, minlength=len(p))
    assert counts[p == 0].sum() == 0
    assert abs(suite.chi_square(counts, p * count)) < 4


@pytest.mark.thorough
def test_draws_of_unlikely_tokens():
    """151,936 equal logits but one, which has half: the noise has no end that would favour it."""
    vocabulary, count = 151_936, 400
    row = np.zeros((1, vocabulary), np.float32)
    row[0, 77] = np.log(vocabulary - 1)
    keys = jax.random.split(jax.random.key(11), count)
    draw = jax.jit(lambda key: sample(row, keys=key[None])[0])
    tokens = np.asarray(jax.lax.map(draw, keys))
    hits = (tokens == 77).sum()
    assert abs(hits - count / 2) < 4 * np.sqrt(count) / 2
    others = tokens[tokens != 77]
    assert len(np.unique(others)) > 0.99 * len(others)
    assert abs(others.mean() / vocabulary - 0.5) < 4 / np.sqrt(12 * len(others))


@pytest.mark.thorough
@pytest.mark.parametrize("vocabulary", [50, 4099])
def test_a_row_alone_and_in_a_batch_is_the_same(vocabulary):
    rng = np.random.default_rng(1)
    z = rng.standard_normal((7, vocabulary)).astype(np.float32) * 3
    keys = jax.random.split(jax.random.key(2), 7)
    options = [
        rng.uniform(0.2, 2, 7).astype("f4"),
        rng.integers(0, 40, 7).astype("i4"),
        rng.uniform(0.3, 1, 7).astype("f4"),
        rng.uniform(0, 0.1, 7).astype("f4"),
    ]
    together = np.asarray(drawn(z, keys, *options))
    for i in range(7):
        alone = drawn(z[i : i + 1], keys[i : i + 1], *(o[i : i + 1] for o in options))
        assert alone[0] == together[i]
    order = rng.permutation(7)
    np.testing.assert_array_equal(
        drawn(z[order], keys[order], *(o[order] for o in options)), together[order]
    )
    np.testing.assert_array_equal(drawn(z, keys, *options), together)


@pytest.mark.thorough
def test_temperature_zero_is_the_first_of_the_largest():
    z = np.asarray([[1, 5, 5, 0], [9, 1, 2, 3], [0, 1, 2, 3]], "f4")
    keys = jax.random.split(jax.random.key(0), 3)
    found = sample(z, keys=keys, temperature=np.asarray([0.0, 0.0, 1.0], "f4"))
    assert found[:2].tolist() == [1, 0]
    warped = np.asarray(kept(z, temperature=0.0))
    np.testing.assert_array_equal(np.argwhere(warped > -np.inf), [[0, 1], [1, 0], [2, 3]])
    np.testing.assert_array_equal(warped[warped > -np.inf], [0, 0, 0])


@pytest.mark.thorough
def test_rows_that_have_no_distribution():
    """-1 and NaN; the other rows are not touched."""
    z = np.zeros((5, 3), np.float32)
    z[0, 1], z[1, 2], z[2], z[3, 0] = np.nan, np.inf, -np.inf, -np.inf
    keys = jax.random.split(jax.random.key(0), 5)
    tokens = np.asarray(sample(z, keys=keys, top_k=2, top_p=0.9, min_p=0.1))
    assert tokens[:3].tolist() == [-1, -1, -1]
    assert np.isin(tokens[3], [1, 2])
    assert tokens[4] >= 0
    np.testing.assert_array_equal(np.isnan(kept(z)).all(1), [True] * 3 + [False] * 2)


@pytest.mark.parametrize(
    "name, wrong", [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("min_p", 1.5),
                    ("temperature", np.nan), ("top_p", np.nan), ("temperature", np.inf)]
)  # fmt: skip
def test_a_traced_option_out_of_range_gives_no_token(name, wrong):
    right = {"temperature": 1.0, "top_k": 2, "top_p": 0.9, "min_p": 0.1}[name]
    keys = jax.random.split(jax.random.key(0), 2)
    run = jax.jit(lambda value: sample(jnp.zeros((2, 3)), keys=keys, **{name: value}))
    tokens = run(jnp.asarray([wrong, right]))
    assert tokens[0] == -1
    assert tokens[1] >= 0


Z, KEYS = jnp.zeros((2, 3)), jax.random.split(jax.random.key(0), 2)
WRONG = [
    ({"logits": Z[0], "keys": KEYS[:1]}, "logits must be [B, V] with V >= 1, got logits.shape=(3,)",
     "Use logits.reshape"),
    ({"logits": jnp.zeros((2, 0))}, "logits must be [B, V] with V >= 1", "Use logits"),
    ({"keys": KEYS[:1]}, "keys must be [B] for logits [B, V], got keys.shape=(1,)",
     "Use jax.random.split(key, 2)"),
    ({"keys": jax.random.split(jax.random.key(0, impl="rbg"), 2)}, "keys must be threefry, got "
     "keys of 'rbg'", "Use jax.random.key(seed, impl='threefry2x32')"),
    ({"temperature": -0.5}, "temperature must be finite and >= 0, got temperature=-0.5", "Use 0 "),
    ({"temperature": np.nan}, "temperature must be finite and >= 0, got temperature=nan", "Use"),
    ({"top_k": np.array([3, -1])}, "top_k must be an integer >= 0, got top_k=-1", "Use 0 for all"),
    ({"top_p": 0.0}, "top_p must be in (0, 1], got top_p=0.0", "Use 1.0 for all"),
    ({"top_p": jnp.array([0.5, 1.5])}, "top_p must be in (0, 1], got top_p=1.5", "Use 1.0"),
    ({"min_p": -0.1}, "min_p must be in [0, 1], got min_p=-0.1", "Use 0.0 for all"),
    ({"min_p": np.zeros(3)}, "min_p must be a number or [B] = [2], got min_p.shape=(3,)", "Use"),
]  # fmt: skip
WRONG_DTYPE = [
    ({"logits": Z.astype(int)}, "logits must be float32, bfloat16 or float16, got logits.dtype=int",
     "Use .astype"),
    ({"keys": jax.random.key_data(KEYS)}, "keys must be typed keys, got keys.dtype=uint32",
     "Use jax.random.key and"),
    ({"top_k": 2.0}, "top_k must be integers, got top_k=2.0", "Use an int, 0 for all"),
]  # fmt: skip


@pytest.mark.parametrize("kind, table", [(ValueError, WRONG), (TypeError, WRONG_DTYPE)])
def test_a_wrong_call_is_refused(kind, table, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for change, what, instead in table:
        options = {"logits": Z, "keys": KEYS, **change}
        with pytest.raises(kind, match=re.escape(what)) as error:
            sample(options.pop("logits"), **options)
        assert instead in str(error.value), what


@pytest.mark.thorough
def test_vmap():
    z = np.random.default_rng(3).standard_normal((2, 3, 20)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    one = jax.jit(lambda z, keys: sample(z, keys=keys, top_p=0.7, top_k=5))
    many = jax.jit(jax.vmap(one))(z, keys)
    np.testing.assert_array_equal(many, np.stack([one(z[i], keys[i]) for i in range(2)]))


@pytest.mark.thorough
def test_under_x64():
    with jax.enable_x64(True):
        found = sample(Z, keys=KEYS, temperature=0.5, top_k=2, top_p=0.9, min_p=0.1)
        assert found.dtype == jnp.int32
        assert kept(Z, top_p=0.9).dtype == jnp.float32


@pytest.mark.thorough
def test_eight_devices():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8, cached=True))
    assert done.stdout == "ok\n", done.stderr
