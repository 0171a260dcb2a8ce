# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed rows are lowered for absent GPUs with cuDNN's own calls, also on shards and for export."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
    use_abstract_mesh,
)

from dovetail_kernels import attention, explain

H200 = AbstractDevice("NVIDIA H200", None, "cuda")
ALONE = AbstractMesh((), (), abstract_device=H200)
B, T, N, K, H = 4, 512, 4, 2, 64
# A head_dim of 64 needs mosaic's modules; 32 does not, and "blocked" is the next one.
WIDTH = 32


def arrays(sharding=None):
    shapes = [(B, T, n, WIDTH) for n in (N, K, K)]
    floats = [jax.ShapeDtypeStruct(x, jnp.bfloat16, sharding=sharding) for x in shapes]
    ids = None if sharding is None else NamedSharding(sharding.mesh, PartitionSpec("x"))
    return *floats, jax.ShapeDtypeStruct((B, T), jnp.int32, sharding=ids)


def loss(q, k, v, ids):
    out = attention(q, k, v, causal=True, segment_ids=ids)
    return out.astype(jnp.float32).sum()


gradients = jax.grad(loss, (0, 1, 2))


def lowered(function, mesh, *args):
    with use_abstract_mesh(mesh):
        assert explain(attention, *args[:3], segment_ids=args[3]).selected == "cudnn_packed"
        return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    return re.findall(r"@__cudnn\$(\w+)\((.*?)\) .*max_seg_per_batch\\22: (\d+)", text)


def test_two_calls_and_two_switches():
    text = lowered(gradients, ALONE, *arrays())
    assert [(name, runs) for name, _, runs in calls(text)] == [
        ("fmhaSoftmax", "8"),
        ("fmhaSoftmaxBackward", "8"),
    ]
    assert text.count('"stablehlo.case"') == 2


def test_the_forward_alone_keeps_no_statistics():
    text = lowered(loss, ALONE, *arrays())
    assert len(calls(text)) == 1
    assert "f32" not in re.search(r"@__cudnn.* -> (.*)", text)[1]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Manual])
def test_on_shards(kind):
    """Each shard finds the runs of its rows. A user's map checks what varies over devices."""
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Explicit,), abstract_device=H200)
    spec = PartitionSpec("x")
    function = gradients
    if kind == AxisType.Manual:
        function = jax.shard_map(gradients, mesh=mesh, in_specs=spec, out_specs=spec)
    with use_abstract_mesh(mesh):
        args = arrays(NamedSharding(mesh, spec))
        text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    names = [name for name, _, _ in calls(text)]
    assert names == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    assert re.search(rf"@__cudnn\$fmhaSoftmax\(.*\(tensor<1x{T}x{N}x{WIDTH}xbf16>", text)


@pytest.mark.thorough
def test_export_names_the_calls_that_jax_does_not_promise():
    args = arrays()
    export = functools.partial(jax.export.export, jax.jit(gradients), platforms=["cuda"])
    with use_abstract_mesh(ALONE):
        with pytest.raises(ValueError, match="fmhaSoftmax"):
            export()(*args)
        names = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
        checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
        program = export(disabled_checks=checks)(*args)
    assert [x.shape for x in program.out_avals] == [x.shape for x in args[:3]]
