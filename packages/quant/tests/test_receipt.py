# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import jax
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, plan, receipt, report


@pytest.fixture(scope="module")
def rounded():
    """A model, the model with one of two matrices in int8, and the plan."""
    model = nnx.Sequential(*(nnx.Linear(n, 16, rngs=nnx.Rngs(n)) for n in (8, 16)))
    chosen = plan(model, [("layers.1", None), ("**", Spec())])
    return model, apply(model, chosen), chosen


BEFORE = 4 * (8 * 16 + 16 * 16 + 2 * 16)
AFTER = BEFORE - 4 * 8 * 16 + 8 * 16 + 4 * 16  # a byte for each code, a float32 for each output


def test_without_batches_it_has_the_plan_and_the_bytes(rounded):
    made = receipt(*rounded)
    assert (made.bytes_before, made.bytes_after) == (BEFORE, AFTER)
    assert made.report is None
    assert str(made) == f"{rounded[2]}\n\nbytes   {BEFORE} to {AFTER} ({AFTER / BEFORE:.3f})\n"


@pytest.mark.thorough
def test_with_batches_it_has_the_report_and_what_was_left_alone(rounded):
    def run(model, x):
        return model(x)

    batches = [jax.numpy.asarray(np.random.default_rng(0).normal(size=(5, 8)), "float32")]
    made = receipt(*rounded, batches, starved={"layers.0": 3}, bits_per_byte=(2.0, 2.5), run=run)
    alone = report(*rounded[:2], batches, run=run)
    assert made.report == alone
    assert str(made) == (
        f"{alone}\nbits    2.0000 to 2.5000 a byte of text (+25.00%)\n"
        "left alone: layers.1  as its rule says\nrounded to nearest, of 3 rows: layers.0\n"
    )
    assert "a byte of text" not in str(receipt(*rounded, batches, run=run))
    values = json.loads(json.dumps(made.to_json()))
    assert values["starved"] == {"layers.0": 3}
    assert values["bits_per_byte"] == [2.0, 2.5]
    assert values["report"]["rows"] == 5
