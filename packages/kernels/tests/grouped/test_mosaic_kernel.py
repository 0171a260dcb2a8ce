# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels executed on a CPU by Pallas's interpreter, which simulates a GPU's shared memory,
barriers and copies, and reports races between them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# JAX 0.10 imports absl here, which it does not declare.
plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")

from dovetail_kernels.grouped import _mosaic_tiles  # noqa: E402
from dovetail_kernels.grouped._mosaic_kernel import matrices, rows  # noqa: E402
from dovetail_kernels.grouped._mosaic_tiles import DEPTH, HEIGHT  # noqa: E402

_interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "force_gpu_interpret_mode"),
    reason="needs jax >= 0.12, whose interpreter of GPU kernels is public",
)


def _random(*shapes, dtype=jnp.bfloat16):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def _run(function, *arrays, **options):
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        return jax.jit(lambda *a: function(*a, **options))(*arrays)


def _check(got, left, right):
    left, right = np.float64(left), np.float64(right)
    # Sums in float32 of exact products, then one rounding to the dtype.
    bound = left.shape[1] * np.finfo(np.float32).eps * (abs(left) @ abs(right))
    kind = jnp.finfo(got.dtype)
    bound += float(kind.eps) * abs(left @ right) + float(kind.smallest_subnormal)
    assert (abs(np.float64(got) - left @ right) <= bound).all()


@_interpreted
@pytest.mark.parametrize(
    "transposed, depth, columns, blocks",
    [
        # Five steps in four slots, so that each barrier is waited for in both its phases; tiles of
        # 256 columns that overlap; a thread block that computes several tiles.
        pytest.param(False, 5 * DEPTH, 384, 2, id="overlap"),
        pytest.param(True, 2 * DEPTH, 256, 132, id="transposed"),
        pytest.param(True, 3 * DEPTH, 128, 1, id="narrow"),
    ],
)
def test_rows_are_the_products_of_their_matrix(monkeypatch, transposed, depth, columns, blocks):
    monkeypatch.setattr(_mosaic_tiles, "BLOCKS", blocks)
    x, w = _random((3 * HEIGHT, depth), (3, depth, columns))
    # Matrix 2 has a tile, matrix 1 a panel of two that overlap. The last tile is not computed.
    tiles = np.array([[2, 0, 0, 1], [1, 104, 1, 2], [1, 136, 1, 2], [0, 256, 3, 1]], np.int32)
    given = w.swapaxes(1, 2) if transposed else w
    total = np.array([3], np.int32)
    out = _run(rows, x, given, tiles, total, transposed=transposed)
    assert out.shape == (4 * HEIGHT, columns)
    for t, (matrix, row, _, _) in enumerate(tiles[:3]):
        _check(out[t * HEIGHT :][:HEIGHT], x[row : row + HEIGHT], w[matrix])


@_interpreted
@pytest.mark.parametrize(
    "inner, columns, blocks, dtype",
    [(HEIGHT, 384, 2, jnp.bfloat16), (2 * HEIGHT, 128, 132, jnp.float16)],
)
def test_matrices_are_the_sums_over_their_rows(monkeypatch, inner, columns, blocks, dtype):
    monkeypatch.setattr(_mosaic_tiles, "BLOCKS", blocks)
    x, g = _random((456, inner), (456, columns), dtype=dtype)
    # Empty; one row; seven steps in four slots; one block; the last row of x.
    starts = np.array([0, 0, 1, 399, 455], np.int32)
    ends = np.array([0, 1, 397, 450, 456], np.int32)
    out = _run(matrices, x, g, starts, ends)
    for e, (start, end) in enumerate(zip(starts, ends, strict=True)):
        _check(out[e], x[start:end].T, g[start:end])


@_interpreted
def test_matrices_do_not_read_the_rows_of_others():
    x, g = _random((152, HEIGHT), (152, 256))
    starts, ends = np.array([10, 80], np.int32), np.array([80, 145], np.int32)
    out = _run(
        matrices, *(a.at[145:].set(jnp.nan).at[:10].set(jnp.inf) for a in (x, g)), starts, ends
    )
    for e, (start, end) in enumerate(zip(starts, ends, strict=True)):
        _check(out[e], x[start:end].T, g[start:end])


def test_what_the_tensor_cores_read_is_committed_first():
    """The interpreter does not need it: masked operands, and each part of the result."""
    x, g = _random((152, HEIGHT), (152, 256))
    ends = np.array([150], np.int32)
    jaxpr = str(jax.make_jaxpr(matrices)(x, g, ends - 150, ends))
    assert jaxpr.count("commit_smem") == 2 + 256 // 64
