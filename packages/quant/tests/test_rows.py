# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batch axes, refusals, and eight devices."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_quant.codes.spec import Spec
from dovetail_quant.matmul.choose import PRODUCTS
from dovetail_quant.matmul.rows import check_rows, wide
from dovetail_quant.testing import problem

QUANT = Path(__file__).parents[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "blocked",
        "scaled",
        pytest.param("w8a8", marks=pytest.mark.slow),
        pytest.param("digits", marks=pytest.mark.slow),
        pytest.param("reference", marks=pytest.mark.slow),
    ],
)
def test_eight_devices_give_what_one_gives(name: str) -> None:
    environment = forced_devices.environment(8, cached=True)
    environment["PYTHONPATH"] = f"{QUANT / 'src'}{os.pathsep}{environment['PYTHONPATH']}"
    done = warm_start.run([QUANT / "tests/programs/products_sharded.py", name], env=environment)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("name", ["w8a8", "digits", "blocked", "scaled"])
def test_refusals(name: str) -> None:
    given, matmul = problem(Spec(), rows=2, shape=(6, 5)), PRODUCTS[name]
    prepared, x = matmul.prepare(given.codes), jnp.asarray(given.x)
    with pytest.raises(ValueError, match=r"K=6 .*got x=\(3, 4\); write x.reshape\(-1, 6\)"):
        matmul(x.reshape(3, 4), prepared)
    with pytest.raises(TypeError):  # jaxtyping's words under pytest, ours without it
        matmul(x.astype(jnp.int32), prepared)
    with pytest.raises(TypeError, match=r"floating point, got x of dtype=int32; write x.astype"):
        check_rows(x.astype(jnp.int32), 6)
    stack = jax.tree.map(lambda a: a[None], (given.codes, prepared))
    with pytest.raises(ValueError, match=r"got codes=\(1, 6, 5\); write jax.vmap\(matmul.prepare"):
        matmul.prepare(stack[0])
    with pytest.raises(ValueError, match=r"got values=\(1, 5, 6\); write jax.vmap\(matmul"):
        matmul(x, stack[1])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["w8a8", "digits", "blocked", "scaled"])
def test_no_rows(name: str) -> None:
    given = problem(Spec(), rows=1, shape=(6, 5))
    prepared = PRODUCTS[name].prepare(given.codes)
    y, back = jax.vjp(lambda x: PRODUCTS[name](x, prepared), jnp.zeros((0, 3, 6)))
    assert y.shape == (0, 3, 5)
    assert back(y)[0].shape == (0, 3, 6)


def test_what_products_accumulate_in() -> None:
    assert [wide(d) for d in (jnp.bfloat16, np.float16, np.float32)] == [np.float32] * 3
    assert wide(np.float64) == np.float64
