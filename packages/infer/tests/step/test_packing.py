# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The vector of a step has every array of a batch, bit for bit, and harmless padding."""

import jax
import numpy as np
import pytest

from dovetail_infer.step.batch import Batch, RowOptions
from dovetail_infer.step.packing import Packing


def _batch(tokens, rows, columns):
    rng = np.random.default_rng(0)

    def integers(*shape):
        return rng.integers(-5, 2**31 - 1, shape, dtype=np.int32)

    def floats():
        return rng.standard_normal(rows).astype(np.float32)

    options = RowOptions(
        temperature=floats(),
        top_k=integers(rows),
        top_p=floats(),
        min_p=floats(),
        repetition_penalty=floats(),
        frequency_penalty=floats(),
        presence_penalty=floats(),
        bans=rng.random(rows) < 0.5,
        ruled=rng.random(rows) < 0.5,
        keys=rng.integers(0, 2**32, (rows, 2), dtype=np.uint32),
    )
    return Batch(
        tokens=integers(tokens),
        counts=integers(rows),
        lengths=integers(rows),
        slots=integers(rows),
        samples=rng.random(rows) < 0.5,
        tables=integers(2, rows, columns),
        options=options,
        adapters=integers(rows),
        targets=integers(tokens),
    )


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("tokens, rows", [(7, 3), (5, 2)])
def test_arrays_come_back_with_padding(tokens, rows, targets):
    packing = Packing(tokens=7, rows=3, groups=2, columns=4, max_rows=9, targets=targets)
    batch = _batch(tokens, rows, 4)
    vector = packing.pack(batch)
    assert vector.shape == (packing.size,)
    got = jax.device_get(jax.jit(packing.unpack)(vector))
    padding = got.options._asdict() | got._asdict()
    for name, value in {**batch._asdict(), **batch.options._asdict()}.items():
        if name == "options" or (name == "targets" and not targets):
            continue
        real = padding[name]
        assert real.dtype == value.dtype, name
        where = tuple(map(slice, value.shape))
        np.testing.assert_array_equal(real[where], value, err_msg=name)
        padding[name] = np.delete(real.ravel(), np.arange(real.size).reshape(real.shape)[where])
    assert got.targets.size == 7 * targets or targets
    for name in ("counts", "lengths", "samples", "temperature", "tables"):
        assert not padding[name].any(), name
    assert (padding["slots"] == 9).all()
    assert not padding["ruled"].any()


def test_columns_that_the_batch_lacks_are_zero():
    packing = Packing(tokens=7, rows=3, groups=2, columns=6, max_rows=9, targets=False)
    batch = _batch(7, 3, 4)
    got = packing.unpack(jax.numpy.asarray(packing.pack(batch))).tables
    np.testing.assert_array_equal(got[:, :, :4], batch.tables)
    assert not np.asarray(got[:, :, 4:]).any()
