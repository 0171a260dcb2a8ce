# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Functions whose rows depend on each other are refused, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.exporting.rows import check_rows
from dovetail_serve.exporting.runner import UnfinishedError

ROWS, WIDTH = 5, 3


def normal(seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype("float32")


EXAMPLE = {
    "x": normal(),
    "ids": np.random.default_rng(1).integers(2, 7, (ROWS, WIDTH), dtype="int32"),
    "mask": np.random.default_rng(2).random((ROWS, WIDTH)) < 0.5,
}
KERNEL = np.random.default_rng(3).normal(size=(WIDTH, 4)).astype("float32")
TABLE = np.random.default_rng(4).normal(size=(7, 4)).astype("float32")


def checked(fn, names, batch_sizes=(1, 2, 7), example=EXAMPLE):
    """Checks a function of the named inputs of the example, compiled by JAX."""
    compiled = jax.jit(fn)

    def run(arrays):
        return {"y": np.asarray(compiled(*(arrays[name] for name in names)))}

    check_rows(run, {name: example[name] for name in names}, batch_sizes=batch_sizes)


def batch_norm(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)


def int8_per_tensor(x):
    scale = jnp.abs(x).max() / 127
    return jnp.round(x / scale) * scale


def experts_with_capacity(x):
    """Each expert keeps the first rows that choose it."""
    choice = jax.nn.one_hot((x @ KERNEL).argmax(-1), 4, dtype=jnp.int32)
    place = (choice.cumsum(0) * choice).sum(-1)
    return jnp.where(place <= max(1, len(x) // 4), x[:, 0], 0.0)


DEPENDENT = {
    "batch statistics": (batch_norm, ["x"]),
    "mean over the batch": (lambda x: x - x.mean(0), ["x"]),
    "one int8 scale": (int8_per_tensor, ["x"]),
    "softmax over the batch": (lambda x: jax.nn.softmax(x, axis=0), ["x"]),
    "experts with a capacity": (experts_with_capacity, ["x"]),
    "zero times NaN": (lambda x: x + 0 * x.sum(0), ["x"]),
    "a clipped sum of large values": (lambda x: x + (jnp.abs(x).sum() > 1e3), ["x"]),
    "the row before": (lambda x: x + jnp.roll(x, 1, 0), ["x"]),
    "the row after": (lambda x: x + jnp.roll(x, -1, 0), ["x"]),
    "counted ids": (lambda ids: jnp.bincount(ids.reshape(-1), length=7)[ids], ["ids"]),
    "any mask": (lambda mask: mask | mask.any(0), ["mask"]),
    "a sum of masks beside floats": (lambda x, mask: x + mask.sum(), ["x", "mask"]),
}

INDEPENDENT = {
    "multilayer perceptron": (lambda x: jnp.tanh(x @ KERNEL) @ KERNEL.T, ["x"]),
    "attention": (
        lambda x: jax.nn.softmax(x[:, :, None] * x[:, None, :], axis=-1) @ x[..., None],
        ["x"],
    ),
    "masked pooling": (
        lambda ids, mask: (jnp.asarray(TABLE)[ids] * mask[..., None]).sum(1),
        ["ids", "mask"],
    ),
    "int8 with a scale for each row": (jax.vmap(int8_per_tensor), ["x"]),
    "not-a-number of its own": (jnp.log, ["x"]),
    "infinite": (lambda x: x / 0.0, ["x"]),
}


@pytest.mark.parametrize("cause", DEPENDENT)
@pytest.mark.capability("rows that depend on other rows are refused")
def test_dependent_rows_are_refused(cause):
    with pytest.raises(ValueError, match="must not depend on the other rows"):
        checked(*DEPENDENT[cause])


@pytest.mark.parametrize("kind", INDEPENDENT)
def test_independent_rows_are_accepted(kind):
    checked(*INDEPENDENT[kind])


@pytest.mark.parametrize(
    ("cause", "neighbours"),
    [
        ("mean over the batch", "copies of the row"),
        ("zero times NaN", "rows of NaN"),
        ("a clipped sum of large values", "rows of large values"),
    ],
)
def test_message_names_the_neighbours(cause, neighbours):
    with pytest.raises(ValueError, match=f"in a batch of 2 beside {neighbours};"):
        checked(*DEPENDENT[cause])


def test_message_names_output_size_and_difference():
    # A padding of zeros counts no row; three copies of a row of ones count three more.
    example = {"x": np.ones((2, 1), "float32")}
    with pytest.raises(
        ValueError,
        match=r"difference of 3 in the output 'y' in a batch of 4 .*batch_sizes=\(1,\).*statistics",
    ):
        checked(lambda x: x + x.sum(), ["x"], batch_sizes=(4,), example=example)


def test_not_a_number_beside_a_number_differs_infinitely():
    with pytest.raises(ValueError, match="difference of inf"):
        checked(lambda x: x + 0 * x.sum(0), ["x"])


def test_large_integers_that_are_equal_as_floats_differ():
    offset = np.uint64(1 << 60)

    def run(arrays):
        return {"y": offset + arrays["ids"].sum(dtype="uint64") * np.ones(2, "uint64")}

    with pytest.raises(ValueError, match="difference of 1 "):
        check_rows(run, {"ids": np.ones((2, 1), "int32")}, batch_sizes=(2,))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "complex64"])
def test_other_floating_point_inputs(dtype):
    example = {"x": np.asarray(jnp.asarray(normal(), dtype))}
    checked(lambda x: x * 2, ["x"], batch_sizes=(3,), example=example)
    with pytest.raises(ValueError, match="must not depend"):
        checked(lambda x: x + x.sum(0).astype(x.dtype), ["x"], batch_sizes=(3,), example=example)


def test_integers_stay_among_those_of_the_example():
    seen = set()

    def run(arrays):
        seen.update(arrays["ids"].reshape(-1).tolist())
        return {"y": arrays["ids"]}

    check_rows(run, {"ids": EXAMPLE["ids"]}, batch_sizes=(8,))
    assert seen - {0} == set(EXAMPLE["ids"].reshape(-1).tolist())


def test_booleans_that_the_example_lacks_are_tried():
    example = {"mask": np.zeros((2, 3), bool)}
    with pytest.raises(ValueError, match="beside rows of exchanged values"):
        checked(lambda mask: mask | mask.any(0), ["mask"], example=example)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fn",
    [
        lambda ids: ids - ids.max(0),
        lambda ids: ids - ids.min(0),
        lambda ids: ids == ids[:1],
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int4"])
def test_equal_integers_of_the_example_hide_nothing(fn, dtype):
    example = {"ids": np.ones((3, 2), jnp.dtype(dtype))}
    with pytest.raises(ValueError, match="must not depend on the other rows"):
        checked(fn, ["ids"], example=example)
    checked(lambda ids: ids - ids.max(1, keepdims=True), ["ids"], example=example)


@pytest.mark.parametrize("fn", [jnp.any, jnp.all])
@pytest.mark.parametrize("value", [False, True])
def test_equal_booleans_of_the_example_hide_nothing(fn, value):
    example = {"mask": np.full((3, 2), value)}
    with pytest.raises(ValueError, match="must not depend on the other rows"):
        checked(lambda mask: mask ^ fn(mask, axis=0), ["mask"], example=example)


def test_masks_of_ones_are_no_cause_for_a_warning():
    ones = np.ones((ROWS, WIDTH), "int32")
    checked(
        lambda ids, mask: (ids * mask).sum(1),
        ["ids", "mask"],
        example={"ids": EXAMPLE["ids"], "mask": ones},
    )


def test_zeros_alone_are_warned_of():
    example = {"ids": EXAMPLE["ids"], "types": np.zeros((ROWS, WIDTH), "int32")}
    with pytest.warns(UserWarning, match="each input of integers, got 0 alone for 'types', so"):
        checked(lambda ids, types: ids + types, ["ids", "types"], example=example)


def test_rows_that_wait_for_their_neighbours_are_refused():
    def run(arrays):
        if np.isnan(arrays["x"]).any():
            raise UnfinishedError(rows=len(arrays["x"]), waited_s=61.2)
        return {"y": arrays["x"]}

    with pytest.raises(
        ValueError,
        match=r"must not wait .* within 61 s in a batch of 3 beside rows of NaN; end the loops",
    ):
        check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(3,))


def test_number_of_runs_is_linear_in_the_batch_sizes():
    sizes = []

    def run(arrays):
        sizes.append(len(arrays["x"]))
        return {"y": arrays["x"]}

    check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(1, 2, 8))
    assert sizes.count(1) == 0
    # Two runs of equal inputs show that bits can be compared; each placement then has one run
    # beside padding and five beside neighbours.
    assert sizes.count(2) == 1 + 2 * 6
    assert sizes.count(8) == 1 + 3 * 6


def test_spread_of_equal_runs_is_allowed_and_told():
    calls = iter(range(10_000))

    def run(arrays):
        return {"y": arrays["x"] + 1e-3 * (next(calls) % 2)}

    with pytest.warns(UserWarning, match=r"equal inputs give different results, by up to 0\.001"):
        check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(3,))


def test_function_that_fails_now_and_then_is_refused():
    calls = iter(range(10_000))

    def run(arrays):
        return {"y": arrays["x"] * (np.nan if next(calls) % 2 else 1.0)}

    with (
        pytest.warns(UserWarning, match="by up to inf"),
        pytest.raises(ValueError, match="difference of inf"),
    ):
        check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(3,))


def test_not_a_number_has_no_sign():
    calls = iter(range(10_000))

    def run(arrays):
        y = arrays["x"].copy()
        y[:, 0] = np.copysign(np.nan, next(calls) % 2 - 0.5)
        return {"y": y}

    check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(3,))


def test_differences_above_the_spread_are_refused():
    calls = iter(range(10_000))

    def run(arrays):
        return {"y": arrays["x"].sum(0) + arrays["x"] + 1e-3 * (next(calls) % 2)}

    with (
        pytest.warns(UserWarning, match="equal inputs"),
        pytest.raises(ValueError, match="must not depend"),
    ):
        check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(3,))


@pytest.mark.thorough
@given(data=st.data(), size=st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_one_row_that_reads_another_is_found_at_the_positions_that_are_tried(data, size):
    reader = data.draw(st.sampled_from([0, size - 1]))
    source = data.draw(st.integers(0, size - 1).filter(lambda i: i != reader))

    def run(arrays):
        y = arrays["x"].copy()
        y[reader] += y[source]
        return {"y": y}

    with pytest.raises(ValueError, match="must not depend"):
        check_rows(run, {"x": EXAMPLE["x"]}, batch_sizes=(size,))
