# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of JAX that may move are there, and platforms have the names of `jax.export`."""

import types

import jax
import pytest

from dovetail_serve import _compat


def test_every_name_is_there():
    for name in _compat.__all__:
        assert callable(getattr(_compat, name))


def test_the_cpu_is_named_like_its_platform():
    assert _compat.platform_of(jax.devices("cpu")[0]) == "cpu"


@pytest.mark.parametrize(
    ("text", "name"), [("PJRT C API\ncuda 12090", "cuda"), ("PJRT C API\nrocm 60000", "rocm")]
)
def test_gpus_are_told_apart(text, name):
    # Devices that this machine lacks, as jax 0.10.2 shows them.
    client = types.SimpleNamespace(platform_version=text)
    assert _compat.platform_of(types.SimpleNamespace(platform="gpu", client=client)) == name
