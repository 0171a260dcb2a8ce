# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Each message of a wrong call, and what may be checked when."""

import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss.plan import plan_linear_cross_entropy

X, W, LABELS = jnp.ones((3, 4)), jnp.ones((4, 7)), jnp.arange(3)


@pytest.fixture
def unchecked(monkeypatch):
    """Our own messages, where jaxtyping would be first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


WRONG = [
    ({"x": X[None]}, "x [M, D] and w of two axes, got x.shape=(1, 3, 4)", "Use x.reshape(-1"),
    ({"w": W.T}, "the last axis of x [M, D] must be D of w [D, V]", "Use vocab_axis=0"),
    ({"w": jnp.ones((4, 0))}, "a vocabulary and a width, got w.shape=(4, 0)", "V >= 1"),
    ({"labels": LABELS[:2]}, "labels must be [M] = [3], got labels.shape=(2,)", "labels.reshape"),
    ({"where": jnp.ones(2)}, "where must be [M] = [3], got where.shape=(2,)", "where.reshape(-1)"),
    ({"bias": jnp.ones(3)}, "bias must be [V] = [7], got bias.shape=(3,)", "bias.reshape(-1)"),
    ({"vocab_axis": 2}, "1 for w [D, V] or 0 for w [V, D], got vocab_axis=2", "Use 0 for tied"),
    ({"soft_cap": 0.0}, "must be positive and finite, got soft_cap=0.0", "Use None"),
    ({"smoothing": 1.0}, "smoothing must be in [0, 1), got smoothing=1.0", "Use 0.0"),
    ({"z_loss": -1.0}, "z_loss must be 0 or positive and finite, got z_loss=-1.0", "Use 0.0"),
    ({"budget": 0}, "budget must be a positive number of bytes, got budget=0", "Leave it out"),
    ({"budget": 99}, "smallest tile, ", "Use budget="),
    ({"labels": LABELS + 5}, "labels must be in [0, V) = [0, 7) where they count, got labels[2]=7",
     "Use where=(labels != 7)"),
    ({"labels": LABELS - 1}, "got labels[0]=-1", "Use where=(labels != -1)"),
    ({"impl": "cuda"}, "impl must name implementations of linear_cross_entropy", "Use one of"),
]  # fmt: skip


@pytest.mark.parametrize("change, what, instead", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_value_is_refused(change, what, instead):
    arguments = {"x": X, "w": W, "labels": LABELS, **change}
    with pytest.raises(ValueError, match=re.escape(what)) as error:
        linear_cross_entropy(
            arguments.pop("x"), arguments.pop("w"), arguments.pop("labels"), **arguments
        )
    assert instead in str(error.value)


@pytest.mark.parametrize(
    "change, what, instead",
    [
        ({"x": X.astype("bfloat16")}, "x.dtype=bfloat16 and w.dtype=float32", "Use .astype on one"),
        ({"x": X.astype("f2"), "w": W.astype("f2")}, "one dtype of bfloat16, float32", "float16 "),
        (
            {"labels": LABELS * 1.0},
            "labels must be integers, got labels.dtype=float32",
            "Use .asty",
        ),
        ({"where": LABELS}, "where must be bool or floating weights, got where.dtype=int32", "Use"),
        ({"bias": jnp.ones(7, int)}, "bias must be floating, got bias.dtype=int32", "Use .astype"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_dtype_is_refused(change, what, instead):
    arguments = {"x": X, "w": W, "labels": LABELS, **change}
    with pytest.raises(TypeError, match=re.escape(what)) as error:
        linear_cross_entropy(
            arguments.pop("x"), arguments.pop("w"), arguments.pop("labels"), **arguments
        )
    assert instead in str(error.value)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"finite, got temperature=0\.0\. Use 1\.0 for the model"):
        linear_logprobs(X, W, LABELS, temperature=0.0)


def test_labels_that_do_not_count_may_be_anything():
    where = np.array([True, True, False])
    labels = np.array([0, 1, -100], np.int32)
    found = linear_cross_entropy(X, W, labels, where=where)
    np.testing.assert_allclose(found.sum, 2 * np.log(7), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 7, 100])
def test_a_traced_label_out_of_range_gives_nan(label):
    labels = LABELS.at[1].set(label)
    found = jax.jit(linear_cross_entropy)(X, W, labels)
    assert np.isnan(found.sum)
    assert found.count == 3
    gradient = jax.jit(jax.grad(lambda x: linear_cross_entropy(x, W, labels_in(x)).sum))
    labels_in = lambda x: jnp.where(jnp.isnan(x[0, 0]), 0, labels)  # noqa: E731  # traced
    assert np.isnan(gradient(X)[1]).all()
    logprob, entropy = jax.jit(linear_logprobs)(X, W, labels)
    np.testing.assert_array_equal(np.isnan(logprob), [False, True, False])
    np.testing.assert_array_equal(np.isnan(entropy), [False, True, False])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_labels_of_few_bits(dtype):
    """Their dtype need not hold V: 300 is 44 as an int8, and 100 is in range."""
    w = jnp.linspace(-1, 1, 4 * 300).reshape(4, 300)
    labels = jnp.asarray([0, 100, 2])
    found = jax.jit(linear_cross_entropy)(X, w, labels.astype(dtype))
    expected = jax.jit(linear_cross_entropy)(X, w, labels)
    assert np.isfinite(found.sum)
    np.testing.assert_array_equal(found.sum, expected.sum)


def test_a_plan_needs_no_arrays():
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W, LABELS)]
    call = plan_linear_cross_entropy(*shapes, smoothing=0.1).call
    assert (call.tokens, call.width, call.vocabulary, call.smoothing) == (3, 4, 7, 0.1)
    assert call.dtype == jnp.float32
    assert call.device.platform == "cpu"
