# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rates of a device: given, measured, saved and loaded."""

import json
import os
import time
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from dovetail_profile import peaks
from dovetail_profile.peaks import Peaks, kind_of, measure_peaks

H200 = Peaks(device_kind="NVIDIA H200", flops_per_s={"bfloat16": 989e12}, bytes_per_s=4.8e12)


def test_a_file_of_another_kind_of_device_is_refused(tmp_path):
    path, own = tmp_path / "peaks.json", kind_of(jax.local_devices()[0])
    mine = replace(H200, device_kind=own, spreads={"bytes": 0.1}, measured="2026-01-02")
    mine.save(path)
    assert Peaks.load(path) == mine
    H200.save(path)
    with pytest.raises(ValueError, match=r"got those of 'NVIDIA H200'.*device_kind='NVIDIA H200'"):
        Peaks.load(path)
    assert Peaks.load(path, device_kind="NVIDIA H200") == H200


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps(asdict(H200) | {"bytes_per_s": 0.0})])
def test_a_file_without_peaks_is_refused(tmp_path, text):
    path = tmp_path / "peaks.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"must be what Peaks.save wrote.*measure_peaks\(\).save"):
        Peaks.load(path)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_positive_and_finite(rate):
    with pytest.raises(ValueError, match="a positive number per second, got bytes_per_s="):
        replace(H200, bytes_per_s=rate)
    with pytest.raises(ValueError, match="got float32="):
        replace(H200, flops_per_s={"float32": rate})


@pytest.mark.parametrize("dtypes", [(), "int32", ("float32", "int8")])
def test_dtypes_are_of_floats(dtypes):
    with pytest.raises(ValueError, match="dtypes must name floating-point dtypes, got"):
        measure_peaks(dtypes=dtypes)


def test_the_best_rate_of_growing_sizes_counts(monkeypatch):
    times = {1: [0.2, 0.1, 0.2], 2: [0.1, 0.1, 0.1], 3: [9.0, 9.0, 9.0]}
    monkeypatch.setattr(peaks, "_times", lambda run, value: times[run(value)])
    monkeypatch.setattr(peaks, "_LONG_S", 0.15)
    cases = [(10.0, abs, 1), (30.0, abs, 2), (40.0, abs, 3), (99.0, abs, 0)]  # the last never runs
    assert peaks._largest(iter(cases)) == (30.0 / 0.1, 0.0)
    assert peaks._largest(iter(cases[:1])) == (10.0 / 0.1, pytest.approx(0.5))  # 0.1 beside 0.2


def test_streams_write_what_they_say(monkeypatch):
    monkeypatch.setattr(peaks, "_STREAM_BYTES", (64,))
    (size, scale, x), (triad_size, triad, y) = peaks._streams()
    assert (size, triad_size) == (2 * 64, 3 * 64)  # arrays of 16 floats
    np.testing.assert_array_equal(scale(x), np.full(16, 0.5))  # of ones
    np.testing.assert_array_equal(triad(y), np.full(16, 2.0))  # ones and half of twos


def test_products_are_what_they_say(monkeypatch):
    monkeypatch.setattr(peaks, "_SIDES", (8,))
    ((work, product, x),) = peaks._products(np.dtype("float32"))
    assert work == 8 * 8 * (8 + 8)  # as many products and sums for each of 64 numbers
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(product(x), exact @ exact, atol=1e-5)  # 8 terms in float32


def test_small_sizes_are_measured(monkeypatch):
    monkeypatch.setattr(peaks, "_SIDES", (8, 16))
    monkeypatch.setattr(peaks, "_STREAM_BYTES", (1024,))
    monkeypatch.setattr(peaks, "_BATCH_S", 1e-4)
    result = measure_peaks(dtypes=["float32"])
    assert result.device_kind == kind_of(jax.local_devices()[0]) != ""
    assert set(result.flops_per_s) == {"float32"}
    assert set(result.spreads) == {"float32", "bytes"}
    assert all(0 <= spread < 1 for spread in result.spreads.values())
    assert result.devices == len(jax.local_devices())
    assert result.measured.endswith("+00:00")


@pytest.mark.thorough
def test_this_machine_is_measured_in_ten_seconds():
    begun = time.process_time()
    result = measure_peaks()
    # CPU time, since the machine may be busy: two cores for ten seconds.
    assert time.process_time() - begun < 20
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    y, rates = np.empty_like(x), []
    for _ in range(5):
        start = time.perf_counter()
        np.matmul(x, x, out=y)
        rates.append(2 * 1024**3 / (time.perf_counter() - start))
    # As fast as NumPy's BLAS within a factor of five, since either may have met other work; and no
    # faster than two units of 512 bits in each core, 64 FLOPs a cycle at 6 GHz.
    assert max(rates) / 5 < result.flops_per_s["float32"] < 64 * 6e9 * (os.cpu_count() or 1)
    assert 1e9 < result.bytes_per_s < 1e13  # slower than any DDR4 channel, faster than any HBM
