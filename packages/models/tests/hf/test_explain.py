# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html
import json

import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from dovetail_models import explain, gpt2, mixtral, save

MIXTRAL = mixtral(vocab_size=16, embed=8, depth=2, heads=4, kv_heads=2, mlp=12, experts=4)
UP = "layers.0.mlp.experts.up.kernel"


def mesh(**axes):
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


@pytest.fixture(scope="module")
def directory(random_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "m"
    save(random_model(MIXTRAL), path)
    return path


def test_a_line_tells_where_a_leaf_comes_from_and_goes(directory):
    # A mesh of eight devices that nobody has.
    plan = explain(directory, mesh=mesh(expert=2, fsdp=2, tensor=2))
    lines = {line.leaf: line for line in plan.rows}
    up = lines[UP]
    assert up.tensors == "model.layers.0.block_sparse_moe.experts.{0..3}.w3.weight"
    assert (up.shape, up.dtype, up.stored, up.op) == ((4, 8, 12), "float32", "F32", "transpose")
    assert up.spec == PartitionSpec("expert", "fsdp", "tensor")
    assert up.bytes_per_device == 2 * 4 * 6 * 4
    assert lines["norm.scale"].bytes_per_device == 8 * 4


@pytest.mark.thorough
def test_totals_are_those_of_the_file(directory):
    plan = explain(directory)
    tensors = sum(line.bytes_per_device for line in plan.rows)
    # All of the file but its header.
    size = (directory / "model.safetensors").stat().st_size
    header = int.from_bytes((directory / "model.safetensors").read_bytes()[:8], "little")
    assert plan.bytes_per_device == tensors == size - 8 - header
    assert plan.parameters == tensors // 4
    assert {line.spec for line in plan.rows} == {None}


def test_the_table_is_aligned_and_equal_layers_share_a_row(directory):
    plan = explain(directory, mesh=mesh(expert=2, fsdp=2, tensor=2))
    title, *rows, totals = str(plan).splitlines()
    assert repr(plan) == f"Explanation(23 leaves, {totals}; print it)"
    assert html.unescape(plan._repr_html_()) == f"<pre>{plan}</pre>"
    # Two layers of the same ten leaves, and the three around them.
    assert (len(plan.rows), len(rows)) == (2 * 10 + 3, 10 + 3)
    assert len({len(row) for row in [title, *rows]}) == 1
    start = title.index("bytes per device")
    assert all(row[start - 2 : start] == "  " for row in rows)
    (row,) = (row for row in rows if "experts.up" in row)
    assert row.split() == [
        "layers.{0..1}.mlp.experts.up.kernel",
        "model.layers.{0..1}.block_sparse_moe.experts.{0..3}.w3.weight",
        *("4x8x12", "float32", "F32", "transpose", "(expert,", "fsdp,", "tensor)", "384"),
    ]
    assert sum(int(row[start:].replace(",", "")) for row in rows) == plan.bytes_per_device
    want = f"{plan.parameters:,} parameters, {plan.bytes_per_device:,} bytes per device"
    assert totals == want


def test_parts_are_told(random_model, tmp_path):
    save(random_model(gpt2(vocab_size=11, embed=6, depth=1, heads=2)), tmp_path / "m")
    found = {line.leaf: line for line in explain(tmp_path / "m").rows}
    key = found["layers.0.attn.k.kernel"]
    assert key.tensors == "transformer.h.0.attn.c_attn.weight"
    assert key.op == "block 1 of 3 on axis -1"


def test_how_quantised_tensors_are_stored(directory, tmp_path, write_raw):
    tensors = {}
    for name, array in safetensors.numpy.load_file(directory / "model.safetensors").items():
        tensors[name] = ("F32", array)
        if ".experts." in name:
            tensors[name] = ("F8_E4M3", np.zeros(array.shape, np.uint8))
            grid = [-(-n // 5) for n in array.shape]
            tensors[f"{name}_scale_inv"] = ("F32", np.ones(grid, np.float32))
    (tmp_path / "m").mkdir()
    write_raw(tmp_path / "m" / "model.safetensors", tensors)
    keys = json.loads((directory / "config.json").read_text())
    keys["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [5, 5]}
    (tmp_path / "m" / "config.json").write_text(json.dumps(keys))
    found = {line.leaf: line for line in explain(tmp_path / "m").rows}
    assert (found[UP].stored, found[UP].dtype) == ("F8_E4M3 in blocks of 5x5", "bfloat16")
