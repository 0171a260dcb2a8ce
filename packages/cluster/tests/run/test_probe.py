# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The health probe, and the watch for notices."""

import jax
import numpy as np
import pytest

from dovetail_cluster.run import probe


def test_healthy_devices_pass():
    probe.probe_devices()


@pytest.mark.capability("a health probe of each device and link")
def test_a_device_that_loses_a_bit_is_named(monkeypatch):
    put = jax.device_put

    def corrupt(values, device):
        damaged = np.array(values)
        damaged[17] += 1
        return put(damaged, device)

    monkeypatch.setattr(jax, "device_put", corrupt)
    with pytest.raises(RuntimeError, match=r"must return exact products, got 1 wrong numbers"):
        probe.probe_devices()


def test_nan_is_wrong_too():
    with pytest.raises(RuntimeError, match=r"TPU_3 must return .* got 2 wrong .* of 3; take"):
        probe.check("TPU_3", np.array([1.0, np.nan, 2.0]), np.array([1.0, 1.0, 1.0]))


def test_the_watch_returns_at_the_first_yes():
    answers = iter([False, False, True, False])
    probe.watch(lambda: next(answers), every_s=0.0)
    assert next(answers) is False
