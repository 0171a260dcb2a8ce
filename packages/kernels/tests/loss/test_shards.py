# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary over mesh axes: eight devices give the answer of one."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_kernels.loss.shards import ColumnSums, alike, combine, first_column

PROGRAM = Path(__file__).parents[1] / "programs" / "vocab_sharded.py"


@pytest.mark.thorough
@pytest.mark.capability("cross-entropy of a head without its logits in memory")
@pytest.mark.parametrize(
    "sections",
    [
        "explicit",
        "gathered_tokens mapped_over_one_axis",
        "shard_mapped",
        "exchanged memory refusals",
        "conformance whole_tiles",
        pytest.param("every_case", marks=pytest.mark.slow),
    ],
)
def test_eight_devices(sections):
    done = warm_start.run(
        [PROGRAM, *sections.split()], env=forced_devices.environment(8, cached=True)
    )
    assert done.stdout == "ok\n", done.stderr


def columns(z, label, first):
    """The sums over columns z [rows, columns] of one device, in float64."""
    top = z.max(1)
    e = np.exp(z - top[:, None])
    hit = np.arange(first, first + z.shape[1]) == label[:, None]
    return ColumnSums(
        *(jnp.asarray(a, jnp.float32) for a in (top, e.sum(1), (e * z).sum(1), (z * hit).sum(1))),
        total=jnp.asarray(z.sum(1), jnp.float32),
        best=jnp.asarray(z.argmax(1), jnp.int32),
    )


@pytest.mark.thorough
def test_sums_are_those_of_the_whole_vocabulary():
    """Devices are the axis of a vmap. A tie over two of them belongs to the first column."""
    rng = np.random.default_rng(0)
    z, label = rng.integers(-3, 4, (5, 21)).astype(float), rng.integers(0, 21, 5)
    assert any(np.sum(row == row.max()) > 1 for row in z)
    shards = [columns(z[:, i : i + 7], label, i) for i in (0, 7, 14)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *shards)
    got = jax.vmap(lambda sums: combine(("v",), sums, columns=7), axis_name="v")(stacked)
    expected = columns(z, label, 0)
    for name, a, b in zip(ColumnSums._fields, got, expected, strict=True):
        np.testing.assert_allclose(a, np.stack([b] * 3), rtol=1e-6, err_msg=name)


@pytest.mark.thorough
def test_a_shard_of_columns_that_are_taken_out():
    """Padding: its bias is -inf, so is its largest logit, and it adds nothing."""
    z, label = np.random.default_rng(1).standard_normal((5, 7)), np.arange(5)
    zeros = jnp.zeros(5)
    padding = ColumnSums(zeros - jnp.inf, zeros, zeros, zeros, zeros, zeros.astype(jnp.int32))
    stacked = jax.tree.map(lambda *a: jnp.stack(a), columns(z, label, 0), padding)
    got = jax.vmap(lambda sums: combine(("v",), sums, columns=7), axis_name="v")(stacked)
    for name, a, b in zip(ColumnSums._fields, got, columns(z, label, 0), strict=True):
        np.testing.assert_allclose(a, np.stack([b] * 2), rtol=1e-6, err_msg=name)
    nothing = jax.tree.map(lambda a: jnp.stack([a, a]), padding)
    top = jax.vmap(lambda sums: combine(("v",), sums, columns=7), axis_name="v")(nothing)
    np.testing.assert_array_equal(top.exps, jnp.zeros((2, 5)))


def test_nothing_is_combined_without_a_mesh_axis():
    sums = columns(np.eye(3), np.arange(3), 0)
    assert combine((), sums, columns=3) is sums
    assert first_column((), 3) == 0
    x = jnp.ones(2)
    assert alike((), [x, None], split=(1,))[0] is x
