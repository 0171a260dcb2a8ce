# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_train import Precision

PARAMS = {
    "layers": {0: {"norm": {"scale": jnp.ones(3)}, "up": {"kernel": jnp.full((2, 3), 1.0001)}}},
    "ids": jnp.arange(2),
}


def test_float_leaves_are_cast_but_those_that_keep_names():
    cast = Precision(compute="bfloat16", keep="**.norm.*").cast(PARAMS)
    assert cast["layers"][0]["norm"]["scale"].dtype == jnp.float32
    assert cast["layers"][0]["up"]["kernel"].dtype == jnp.bfloat16
    assert cast["ids"].dtype == jnp.int32
    # 1.0001 is nearer to 1 than to the next bfloat16, 1.0078125.
    np.testing.assert_array_equal(np.asarray(cast["layers"][0]["up"]["kernel"], np.float32), 1.0)


def test_float32_leaves_everything_as_it_came():
    assert Precision(compute="float32").cast(PARAMS) is PARAMS


@pytest.mark.usefixtures("unchecked")
def test_float16_is_refused():
    with pytest.raises(ValueError, match=r"must be .* got compute='float16'.*write Precision"):
        Precision(compute="float16")  # pyright: ignore[reportArgumentType] - the point of the test


def test_a_pattern_that_matches_nothing_is_refused():
    Precision(compute="bfloat16", keep=("**.norm.*", "other")).check(PARAMS, {"other": 1})
    with pytest.raises(ValueError, match=r"must match a parameter, got '\*\*.nrom.\*', which"):
        Precision(compute="bfloat16", keep=("**.norm.*", "**.nrom.*")).check(PARAMS)
    with pytest.raises(ValueError, match=r"a glob, not a regular expression, got .* write '\*\*'"):
        Precision(compute="bfloat16", keep=".*")
