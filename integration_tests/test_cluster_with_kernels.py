# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An explained call, compiled for a device by the reader of programs for absent ones."""

import jax
import pytest

from dovetail_cluster import compiled, devices
from dovetail_kernels import attention, explain


@pytest.mark.thorough
def test_an_explained_call_is_compiled_in_another_process():
    q = jax.ShapeDtypeStruct((1, 64, 2, 16), "float32")
    program = compiled(explain(attention, q, q, q, causal=True).lower, target=devices("CPU"))
    assert program.fits, program.reason
    assert program.argument_bytes == 3 * 64 * 2 * 16 * 4
    assert program.output_bytes == 64 * 2 * 16 * 4
