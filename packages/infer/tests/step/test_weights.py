# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names and copies of parameters, and refusals that change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_infer.step.weights import dotted_leaves, updated
from dovetail_infer.testing import TinyDecoder

MODEL = TinyDecoder(vocab_size=11, embed=8, depth=1, rngs=nnx.Rngs(0))
STATE = nnx.state(MODEL)
NOW = dotted_leaves(STATE)
NAME = "layers.0.q"
VALUE = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def test_all_forms_have_the_same_names():
    assert NAME in NOW
    pure = nnx.to_pure_dict(STATE)
    for form in (pure, NOW, jax.tree.map(np.asarray, pure)):
        assert dotted_leaves(form).keys() == NOW.keys()
    assert list(dotted_leaves({"layers": [{"q": VALUE}]})) == [NAME]


@pytest.mark.parametrize(
    "form",
    [{NAME: VALUE}, {"layers": {0: {"q": VALUE}}}, {"layers": [{"q": jnp.asarray(VALUE)}]}],
)
def test_a_part_is_enough(form):
    got = updated(NOW, form)
    assert list(got) == [NAME]
    np.testing.assert_array_equal(got[NAME], VALUE)


def test_values_are_copied_and_cast():
    given = jnp.asarray(VALUE)
    got = updated(NOW, {NAME: given})[NAME]
    given.delete()  # as a donation does
    np.testing.assert_array_equal(got, VALUE)
    for start in range(16):  # one of them is aligned, and a CPU could share it
        host = np.zeros(64 + 16, np.float32)[start:][:64].reshape(8, 8)
        host[:] = VALUE
        got = updated(NOW, {NAME: host})[NAME]
        host[:] = 0  # the new array does not share the caller's memory
        np.testing.assert_array_equal(got, VALUE)
    half = updated(NOW, {NAME: jnp.asarray(VALUE, jnp.bfloat16)})[NAME]
    assert half.dtype == jnp.float32


@pytest.mark.parametrize(
    "params, message",
    [
        ({"layers.0.qq": VALUE}, r"those of the engine.*got 'layers.0.qq'. Use .*layers.0.q"),
        ({NAME: VALUE[1:]}, r"Shapes must.*layers.0.q.shape=\(7, 8\) for \(8, 8\).*same model"),
        ({NAME: VALUE.astype(np.int8)}, r"dtype that casts.*int8 for float32. Pass layers.0.q as"),
    ],
)
def test_wrong_values_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        updated(NOW, params)


def test_a_quantized_parameter_is_given_as_its_leaves():
    now = {f"{NAME}.codes": jnp.zeros((8, 8), jnp.int8), f"{NAME}.scales": jnp.ones((8,))}
    with pytest.raises(ValueError, match=r"as its own leaves, got one array 'layers.0.q'.*codes"):
        updated(now, {NAME: VALUE})
    assert list(updated(now, {f"{NAME}.scales": np.zeros(8)})) == [f"{NAME}.scales"]
