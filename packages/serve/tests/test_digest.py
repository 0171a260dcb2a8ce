# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Digests are those of hashlib, whatever the memory layout of an array."""

import hashlib
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve.bundle.digest import array_digest, digest, file_digest, on_all_cores, raw


@pytest.mark.parametrize("dtype", ["float32", "int4", "bfloat16", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_an_array_is_hashed_in_c_order(dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, size=shape).astype(jnp.dtype(dtype))
    expected = hashlib.sha256(values.tobytes()).hexdigest()
    assert array_digest(values) == expected
    assert array_digest(np.asarray(values, order="F")) == expected


def test_the_bytes_of_a_contiguous_array_are_not_copied():
    values = np.arange(6, dtype="float32")
    assert np.shares_memory(np.asarray(raw(values)), values)


def test_a_file_has_the_digest_of_its_bytes(tmp_path):
    data = np.random.default_rng(1).bytes(300_001)
    (tmp_path / "file").write_bytes(data)
    assert file_digest(tmp_path / "file") == digest(data) == hashlib.sha256(data).hexdigest()


def test_results_come_in_order_and_errors_are_raised():
    assert on_all_cores(lambda i: i * i, range(50)) == [i * i for i in range(50)]
    with pytest.raises(ZeroDivisionError):
        on_all_cores(lambda i: 1 // i, [1, 0])
    assert threading.main_thread().ident not in on_all_cores(lambda _: threading.get_ident(), [0])
