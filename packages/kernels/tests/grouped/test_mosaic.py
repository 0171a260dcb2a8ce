# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped import api, mosaic
from dovetail_kernels.grouped.api import grouped_matmul, plan_grouped_matmul
from dovetail_kernels.grouped.call import GroupedMatmulCall
from dovetail_kernels.grouped.mosaic import MOSAIC
from dovetail_kernels.testing import grouped as suite

# JAX 0.10 imports absl here, which it does not declare.
plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
H200 = Device(platform="gpu", kind="NVIDIA H200")
RUN = functools.partial(grouped_matmul, impl="mosaic")
_interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "force_gpu_interpret_mode"),
    reason="needs jax >= 0.12, whose interpreter of GPU kernels is public",
)


def _call(device=H200, dtype="bfloat16", **sizes):
    sizes = {"rows": 300, "inner": 128, "outer": 256, "count": 3} | sizes
    return GroupedMatmulCall(**sizes, dtype=dtype, device=device)


def _shapes(rows=300, inner=128, outer=256, count=3):
    return (
        jax.ShapeDtypeStruct((rows, inner), jnp.bfloat16),
        jax.ShapeDtypeStruct((count, inner, outer), jnp.bfloat16),
        jax.ShapeDtypeStruct((count,), jnp.int32),
    )


@contextlib.contextmanager
def _on_hopper(**axes):
    """As for `jax.export`: what is traced is for a GPU that is not here."""
    device = AbstractDevice(device_kind=H200.kind, num_cores=None, platform="cuda")
    kinds = (AxisType.Explicit,) * len(axes)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), kinds, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(api, "device", lambda *arrays: H200)
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        yield


def _both(x, w, sizes, g):
    out, pull = jax.vjp(lambda x, w: RUN(x, w, sizes), x, w)
    return out, *pull(g)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"device": Device(platform="cpu", kind="cpu")}, "needs a Hopper GPU .* platform='cpu'"),
        ({"device": Device(platform="gpu", kind="NVIDIA A100-SXM4-40GB")}, "kind='NVIDIA A100"),
        ({"dtype": "float32"}, "takes bfloat16 and float16, got dtype=float32"),
        ({"rows": 0}, "needs rows, got rows=0"),
        ({"inner": 64}, "multiples of 128 columns, got inner=64, outer=256"),
        ({"outer": 200}, "multiples of 128 columns, got inner=128, outer=200"),
        ({"rows": jax.export.symbolic_shape("m")[0]}, "needs known shapes, got rows=m"),
    ],
)
def test_refuses(change, reason):
    assert re.search(reason, MOSAIC.refuse(_call(**change)) or "")


@pytest.mark.parametrize("kind", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB"])
def test_comes_first_on_hopper(kind):
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="cuda")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        names = []

        def look(*arrays):
            names.extend(choice.name for choice in plan_grouped_matmul(*arrays).choices())
            assert plan_grouped_matmul(*arrays).choose().name == "mosaic"
            return arrays

        jax.eval_shape(look, *_shapes())
    assert names == ["mosaic", "batched", "tiles", "ragged_dot", "reference"]


@pytest.mark.capability("grouped products on the tensor cores of Hopper", on="cuda")
@pytest.mark.parametrize("wide", [False, True])
def test_lowers_for_hopper(wide):
    def gradients(x, w, sizes):
        return jax.grad(lambda x, w: RUN(x, w, sizes).astype(jnp.float32).sum(), (0, 1))(x, w)

    with _on_hopper(), jax.enable_x64(wide):
        traced = jax.jit(gradients).trace(*_shapes())
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # dx and dw. The result itself has no reader.
    assert text.count("custom_call @mosaic_gpu") >= 2
    assert "stablehlo.while" not in text


@pytest.mark.thorough
def test_lowers_for_shards():
    def gradients(x, w, sizes):
        w = reshard(w, P(None, None, "tensor"))
        return jax.grad(lambda x, w: RUN(x, w, sizes).astype(jnp.float32).sum(), (0, 1))(x, w)

    with _on_hopper(tensor=2):
        traced = jax.jit(gradients).trace(*_shapes())
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        # Shards of 64 columns, which the kernel does not take.
        narrow = jax.jit(gradients).trace(*_shapes(outer=128))
        other = narrow.lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert "mosaic_gpu" not in other


def _fitted(case):
    """The case at a size and a dtype that the kernel takes, with sizes that no step divides."""
    sizes = tuple(
        tuple(7 * n for n in size) if isinstance(size, tuple) else 7 * size for size in case.sizes
    )
    return dataclasses.replace(
        case, rows=7 * case.rows, sizes=sizes, inner=128, outer=128, dtype="bfloat16"
    )


CASES = [
    *(case for case in map(_fitted, suite.cases()) if 0 < case.rows < 1000),
    next(case for case in suite.cases() if case.name == "wide"),
]


@pytest.mark.capability("grouped products on the tensor cores of Hopper")
@_interpreted
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conforms(interpreted, case):
    suite.check(RUN, case)


@pytest.mark.capability("grouped products on the tensor cores of Hopper")
@_interpreted
@pytest.mark.thorough
def test_gradients_with_rows_of_no_group(interpreted):
    suite.check(RUN, next(case for case in CASES if case.name == "beyond"))


@_interpreted
@pytest.mark.slow
def test_sizes_that_do_not_fit_are_not_read(interpreted):
    x, w, g = (jnp.ones(shape, jnp.bfloat16) for shape in ((200, 128), (3, 128, 128), (200, 128)))
    for sizes in ([2**30, 2**30, 2**30], [-500, 600, 0], [0, 0, 201]):
        out, dx, dw = jax.jit(_both)(x, w, jnp.array(sizes, jnp.int32), g)
        assert np.isnan(np.float32(out)).all()
        assert not np.float32(dx).any()
        assert not np.float32(dw).any()


@pytest.mark.parametrize(
    "rows, sizes", [(3000, (3, 2897, 1, 99)), (128, (1, 0, 127, 0)), (136, (1, 1, 0, 134))]
)
def test_the_list_of_tiles(rows, sizes):
    listed = jax.jit(mosaic._tiles, static_argnums=1)(np.array(sizes, np.int32), rows)
    tiles, total, place = map(np.asarray, listed)
    ends = np.cumsum(sizes)
    assert len(tiles) == mosaic.most_tiles(rows, len(sizes))
    assert total[0] <= len(tiles)
    tiles = tiles[: total[0]]
    assert not (tiles[:, 1] % 8).any()
    assert (tiles[:, 1] >= 0).all()
    assert (tiles[:, 1] <= rows - 128).all()
    # Each row has a place in a tile of its group.
    tile, within = np.divmod(place, 128)
    np.testing.assert_array_equal(tiles[tile, 1] + within, np.arange(rows))
    np.testing.assert_array_equal(tiles[tile, 0], np.searchsorted(ends, np.arange(rows), "right"))
    # Panels: at most 16 neighbours of one group.
    for t, (group, _, first, size) in enumerate(tiles):
        assert first <= t < first + size <= total[0]
        assert 1 <= size <= 16
        assert (tiles[first : first + size, [0, 2, 3]] == (group, first, size)).all()


@pytest.mark.parametrize("rows, padding", [(1000, 0), (999, 1000 * 128 * 2)])
def test_work_is_that_of_the_worst_sizes(rows, padding):
    work = MOSAIC.work(_call(rows=rows))
    # At most 3 + (1000 + 18) // 128.
    tiles = 10
    assert work.flops == 2 * tiles * 128 * 128 * 256
    # Rows of tiles, and of x padded to a multiple of 8.
    assert work.peak_bytes == tiles * 128 * 256 * 2 + padding
    known = 2 * (rows * 128 + 3 * 128 * 256 + rows * 256)
    assert work.bytes == known + 2 * work.peak_bytes
