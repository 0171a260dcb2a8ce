# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Placement by the parameters' own shardings; eight devices run in a program of their own."""

import jax
import pytest
from flax import nnx
from jax.sharding import SingleDeviceSharding

from dovetail_infer.step.placement import Placement
from dovetail_infer.testing import TinyDecoder


def test_one_device_has_no_mesh():
    leaves = jax.tree.leaves(nnx.state(TinyDecoder(rngs=nnx.Rngs(0))))
    place = Placement.of(leaves)
    assert place.mesh is None
    assert place.whole == SingleDeviceSharding(jax.devices()[0])


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("tensor parallel decoding")
def test_a_mesh_of_eight_draws_the_tokens_of_one_device(on_eight_devices):
    on_eight_devices("meshes.py")
