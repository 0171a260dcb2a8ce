# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of JAX whose calls of cuDNN are known. integration_tests/ compares the calls."""

import jax
import pytest

from dovetail_kernels.attention.cudnn import call as ours


@pytest.mark.parametrize(
    "version, known",
    [((0, 10, 1), False), ((0, 10, 2), True), ((0, 12, 0, 1), True), ((0, 13, 0), False)],
)
def test_other_versions_are_refused(monkeypatch, version, known):
    monkeypatch.setattr(jax, "__version_info__", version)
    text = ".".join(map(str, version))
    reason = f"its calls are known from jax 0.10.2 to before 0.13, not in {text}"
    assert ours.refuse_version() == (None if known else reason)
