# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results are compared within tolerances that follow from their dtype and from both platforms."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve.bundle.golden import Comparison, compare, tolerance
from dovetail_serve.bundle.manifest import GOLDEN
from dovetail_serve.errors import IntegrityError

TOLERANCES = {
    # dtype: on the platform of the stored values, elsewhere
    "float64": (1e-9, 1e-9),
    "float32": (1e-4, 2e-2),
    "complex64": (1e-4, 2e-2),
    "bfloat16": (3e-2, 3e-2),
    "float16": (3e-2, 3e-2),
    "float8_e4m3fn": (0.25, 0.25),
    "int32": (0.0, 0.01),
    "bool": (0.0, 0.01),
    "int4": (0.0, 0.01),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tolerances(dtype):
    same, other = TOLERANCES[dtype]
    assert tolerance(np.dtype(jnp.dtype(dtype)), same_platform=True) == same
    assert tolerance(np.dtype(jnp.dtype(dtype)), same_platform=False) == other


@pytest.mark.parametrize(
    ("dtype", "weights", "limit"),
    [
        ("float32", "bfloat16", 3e-2),
        ("float64", "float32", 1e-4),
        ("float32", "float64", 1e-4),
        ("bfloat16", "float32", 3e-2),
        ("int32", "bfloat16", 0.01),
    ],
)
def test_converted_weights_count_with_their_rounding(dtype, weights, limit):
    kind = np.dtype(jnp.dtype(dtype))
    assert tolerance(kind, same_platform=True, rounding=weights) == limit


def run(computed, stored, *, platform="cpu"):
    return compare({"y": computed}, {"y": stored}, platform=platform, stored_platform="cpu")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_differences_count_relative_to_the_largest_value(dtype, factor):
    random = np.random.default_rng(0)
    stored = (random.normal(size=(3, 5)) * 40).astype(dtype)
    stored[1, 2] = -700
    limit = tolerance(stored.dtype, same_platform=True)
    computed = stored.copy()
    computed[0, 0] += factor * limit * 700
    comparison = run(computed, stored).outputs["y"]
    # The sum is rounded to the dtype, at 1e-7 of the value, which is 1e-3 of the difference.
    assert comparison.difference == pytest.approx(factor * limit, rel=1e-2)
    assert comparison.passed == (factor < 1)


@pytest.mark.parametrize(
    ("computed", "stored", "difference"),
    [
        ([np.nan, 1, np.inf, -np.inf], [np.nan, 1, np.inf, -np.inf], 0.0),
        ([np.nan, 1], [0.0, 1], np.inf),
        ([0.0, 1], [np.nan, 1], np.inf),
        ([np.inf, 1], [-np.inf, 1], np.inf),
        ([1e30, 1], [np.inf, 1], np.inf),
        ([0.25, 0], [0.0, 0], 0.25),
        ([], [], 0.0),
    ],
)
def test_special_values(computed, stored, difference):
    computed, stored = np.array(computed, "float32"), np.array(stored, "float32")
    assert run(computed, stored).outputs["y"].difference == difference


def test_integers_are_exact_at_home_and_one_percent_may_move_elsewhere():
    stored = np.random.default_rng(1).integers(-5, 5, size=(20, 20)).astype("int32")
    moved = stored.copy()
    moved.flat[[3, 77, 200, 399]] += 1
    assert run(moved, stored).outputs["y"] == Comparison(difference=0.01, tolerance=0.0)
    assert not run(moved, stored).outputs["y"].passed
    assert run(moved, stored, platform="cuda").outputs["y"].passed
    moved[0, 0] += 1
    assert not run(moved, stored, platform="cuda").outputs["y"].passed


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "bool"])
def test_narrow_dtypes_are_compared(dtype):
    stored = np.asarray(np.random.default_rng(2).normal(size=(3, 5)) * 3).astype(jnp.dtype(dtype))
    assert run(stored.copy(), stored).outputs["y"].difference == 0
    assert not run(np.zeros_like(stored), stored).outputs["y"].passed


def test_a_failure_names_output_difference_and_both_platforms():
    result = run(np.array([1.5], "float32"), np.array([1.0], "float32"), platform="cuda")
    with pytest.raises(IntegrityError) as caught:
        result.check()
    assert (caught.value.file, caught.value.array) == (GOLDEN, "outputs.y")
    for part in ("'y'", "2.0e-02", "5.000e-01", "'cuda'", "'cpu'", "verify='files'"):
        assert part in str(caught.value)
    run(np.array([1.0], "float32"), np.array([1.0], "float32")).check()


def logits(seed):
    """Logits of random weights for 4 rows and 9 classes."""
    random = np.random.default_rng(3)
    x = random.normal(size=(4, 16))
    return x @ np.random.default_rng(seed).normal(size=(16, 9))


def masked(values, fill, dtype):
    """Rows in which the last class, and one more of the first row, are masked."""
    values = np.array(values)
    values[:, -1] = fill
    values[0, 3] = fill
    return values.astype(jnp.dtype(dtype))


FILLS = [
    ("float32", float(np.finfo("float32").min)),
    ("float32", -1e9),
    ("float32", 1e6),
    ("float32", -1e4),
    ("float64", -1e300),
    ("bfloat16", float(jnp.finfo("bfloat16").min)),
    ("bfloat16", -1e9),
    ("bfloat16", -1e4),
    ("float16", -65504.0),
    ("complex64", -1e9),
]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(("dtype", "fill"), FILLS)
def test_other_weights_are_refused_beside_masked_logits(dtype, fill, platform):
    stored = masked(logits(seed=0), fill, dtype)
    other = masked(logits(seed=1), fill, dtype)
    assert not run(other, stored, platform=platform).outputs["y"].passed
    # Half a tolerance of the largest logit. The dtype rounds by at most an eighth of one.
    limit = tolerance(stored.dtype, same_platform=platform == "cpu")
    scale = np.abs(np.delete(logits(seed=0)[:, :-1], 3)).max()
    honest = masked(logits(seed=0) + limit / 2 * scale, fill, dtype)
    assert run(honest, stored, platform=platform).outputs["y"].passed


def test_fill_values_are_compared_with_themselves():
    stored = masked(logits(seed=0), -1e9, "float32")
    for value, passed in ((-1e9 * (1 + 5e-5), True), (-1e9 * (1 + 2e-4), False), (3.0, False)):
        moved = stored.copy()
        moved[2, -1] = value
        assert run(moved, stored).outputs["y"].passed == passed


def test_fill_values_of_several_sizes_are_known():
    fills = masked(logits(seed=0), -1e9, "float32"), masked(logits(seed=1), -1e9, "float32")
    for values in fills:
        values[1, 2] = np.finfo("float32").min
        values[3, 4] = 1e5 + 3
        values[2, 4] = 1e5 - 3  # a fill value plus a logit
    stored, other = fills
    assert not run(other, stored).outputs["y"].passed
    assert run(stored.copy(), stored).outputs["y"].difference == 0


RESULTS = {
    # Nearly sure of one class: small probabilities move by the error of the logits.
    "probabilities": ([[0.9999, 1e-6, 9.9e-5], [0.9998, 2e-4, 1e-7]], 1e-5),
    # Squared distances, and what is left of the distance of a point to itself.
    "distances": ([[0.002, 8100.0, 6400.0], [8100.0, 0.001, 9700.0]], 0.01),
    # Only the large value is no 0: a rounding of its terms, not of the 0.
    "one value": ([[0.0, 0.0, 5e6], [0.0, 0.0, 5e6]], 10.0),
    "alike": ([[5e6, 5.01e6, 5.02e6], [5e6, 5e6, 5.03e6]], 10.0),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_a_wide_range_are_no_fill_values(name):
    values, rounding = RESULTS[name]
    stored = np.array(values, "float32")
    computed = stored + np.float32(rounding)
    comparison = run(computed, stored).outputs["y"]
    assert comparison.difference == pytest.approx(rounding / stored.max(), rel=0.1)
    assert comparison.passed
