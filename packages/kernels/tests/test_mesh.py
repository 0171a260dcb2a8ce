# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One program on eight devices, and what needs none."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.mesh import per_shard

PROGRAM = Path(__file__).parent / "programs" / "per_shard.py"


@pytest.mark.thorough
def test_each_shard_of_an_explicit_mesh():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8))
    assert done.stdout == "ok\n", done.stderr


def test_without_a_sharding_nothing_is_mapped():
    calls = []

    def function(x, none):
        calls.append(type(x))
        assert none is None
        return x + 1

    options = {"out": "ab", "may": "a", "instead": "Do not.", "summed": "a"}
    arrays = (np.ones((2, 3), np.float32), None)
    out = per_shard("toy", function, arrays, ("ab", "a"), **options)
    np.testing.assert_array_equal(out, np.full((2, 3), 2.0))
    traced = jax.make_jaxpr(lambda x: per_shard("toy", function, (x, None), ("ab", "a"), **options))
    assert "shard_map" not in str(traced(jnp.ones((2, 3))))
    assert calls[0] is np.ndarray
