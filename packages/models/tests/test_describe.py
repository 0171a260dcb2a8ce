# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import html
import re

import jax
import jax.numpy as jnp
import pytest
import treescope
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from dovetail_models import Experts, abstract, bert, describe, llama, lora, shardings, size

CONFIG = llama(vocab_size=30, embed=12, depth=3, heads=6, kv_heads=2, head_dim=4, mlp=20)
MESH = AbstractMesh((3, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(CONFIG)


def rows(model, **options):
    return {row.path: row for row in describe(model, **options).rows}


def routed(config, *which):
    """The configuration with experts in some of its layers."""
    moe = Experts(count=4, top_k=2, hidden=10, selection_bias=True)
    layers = [
        dataclasses.replace(la, mlp=moe) if i in which else la for i, la in enumerate(config.layers)
    ]
    return dataclasses.replace(config, layers=tuple(layers))


def test_equal_layers_are_one_row():
    row = rows(abstract(CONFIG), mesh=MESH)["layers.{0..2}.attn.q.kernel"]
    assert (row.shape, row.dtype, row.kind, row.count) == ((12, 24), "float32", "Param", 3)
    assert row.spec == PartitionSpec("fsdp", "tensor")
    assert row.parameters == 3 * 12 * 24
    assert row.bytes == 4 * row.parameters
    # A sixth of each on a device: rows in three, heads in two.
    assert row.device_bytes == 3 * 4 * 4 * 12


def test_every_leaf_has_a_row_when_unfolded(model, leaves):
    found = rows(model, fold=False)
    assert {path: row.shape for path, row in found.items()} == {
        path: leaf.shape for path, leaf in leaves(model).items()
    }
    assert all(row.count == 1 for row in found.values())
    assert describe(model).total == describe(model, fold=False).total


@pytest.mark.parametrize(
    "depth, which, gate",
    [
        (4, (0, 1, 2), "layers.3.mlp.gate.kernel"),
        (4, (0,), "layers.{1..3}.mlp.gate.kernel"),
        (5, (1, 3), "layers.{0..4..2}.mlp.gate.kernel"),
        (5, (2,), "layers.{0,1,3,4}.mlp.gate.kernel"),
    ],
)
def test_unequal_layers_keep_their_numbers(depth, which, gate):
    config = dataclasses.replace(CONFIG, layers=CONFIG.layers[:1] * depth)
    dense = [p for p, r in rows(abstract(routed(config, *which))).items() if r.shape == (12, 20)]
    assert dense == [gate, gate.replace("gate", "up")]


def test_totals_are_those_of_the_configuration():
    config = routed(CONFIG, 1)
    found = describe(jax.tree.map(lambda x: x, abstract(config)))
    assert found.total.parameters == size(config)
    assert found.total.bytes == found.total.device_bytes == 4 * size(config)
    modules = {total.name: total.parameters for total in found.by_module()}
    assert sum(modules.values()) == size(config)
    # q and o of 6 heads, k and v of 2; the router and its bias are part of the block.
    assert modules["layers.*.attn"] == 3 * 12 * 4 * (6 + 2 + 2 + 6)
    assert modules["layers.*.mlp"] == 2 * 3 * 12 * 20 + 4 * 3 * 12 * 10 + 12 * 4 + 4
    assert modules["embed"] == modules["lm_head"] == 30 * 12
    assert rows(abstract(config))["layers.1.mlp.router.selection_bias"].kind == "Buffer"


def test_totals_by_dtype(model):
    model = nnx.clone(model)
    small = model.lm_head.kernel
    small.set_value(small[...].astype(jnp.bfloat16))
    totals = {t.name: (t.parameters, t.bytes) for t in describe(model).by_dtype()}
    assert totals == {
        "float32": (size(CONFIG) - 360, 4 * (size(CONFIG) - 360)),
        "bfloat16": (360, 720),
    }


def test_arrays_lie_where_they_lie(model):
    assert rows(model)["embed.embedding"].spec is None
    mesh = jax.make_mesh((1,), ("tensor",), axis_types=(AxisType.Auto,))
    placed = nnx.clone(model)
    nnx.update(placed, jax.device_put(nnx.state(placed), shardings(placed, mesh)))
    assert rows(placed)["embed.embedding"].spec == PartitionSpec("tensor", None)
    assert rows(placed, mesh=MESH)["embed.embedding"].spec == PartitionSpec("tensor", "fsdp")


def test_any_module():
    model = nnx.Sequential(nnx.Linear(3, 5, rngs=nnx.Rngs(0)), nnx.BatchNorm(5, rngs=nnx.Rngs(0)))
    assert rows(model)["layers.0.kernel"].parameters == 15
    assert describe(model, only=nnx.BatchStat).total.parameters == 10
    with pytest.raises(ValueError, match="must have logical names") as error:
        describe(model, mesh=MESH)
    assert "got none on ['layers.0.bias', 'layers.0.kernel'" in str(error.value)
    assert "Leave mesh out" in str(error.value)


def test_adapters():
    model = lora.insert(
        abstract(CONFIG), "layers.1.attn.q", rank=2, alpha=4, rngs=nnx.Rngs(0), dtype=jnp.bfloat16
    )
    found = rows(model, mesh=MESH)
    assert found["layers.{0..2}.attn.q.kernel"].kind == "Param"
    row = found["layers.1.attn.q.lora_b"]
    assert (row.kind, row.shape, row.dtype) == ("LoRAParam", (2, 24), "bfloat16")
    assert row.spec == PartitionSpec(None, "tensor")
    assert row.device_bytes == row.bytes / 2 == 48


def test_an_encoder():
    config = bert(vocab_size=30, embed=12, depth=2, heads=6, mlp=20, max_length=16)
    model = abstract(config)
    total = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
    assert describe(model).total.parameters == total
    assert rows(model, mesh=MESH)["layers.{0..1}.mlp.up.kernel"].device_bytes == 2 * 4 * 4 * 10


def test_a_parameter_that_is_a_tree():
    model = nnx.Linear(3, 5, rngs=nnx.Rngs(0))
    model.kernel = nnx.Param({"scale": jnp.ones(5), "value": jnp.ones((3, 5), jnp.int8)})
    found = rows(model)
    assert found["kernel['value']"].bytes == 15
    assert found["kernel['scale']"].bytes == 20


def test_the_table():
    config = dataclasses.replace(CONFIG, vocab_size=32)
    description = describe(abstract(config), mesh=MESH)
    rows, parameters = len(description.rows), description.total.parameters
    assert re.fullmatch(
        rf"Description\({rows} rows, {parameters:,} parameters, .* kB; print it\)",
        repr(description),
    )
    shown = description._repr_html_()
    assert "overflow-x: auto" in shown  # a notebook scrolls it, and cuts no column
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in shown.split("</tr>")[:-1]]
    words = [" ".join(map(html.unescape, row)).split() for row in cells]
    assert words == [line.split() for line in str(description).splitlines()]
    text = str(description).splitlines()
    assert text[0].split("  ")[0] == "path"
    columns = [re.split("  +", line) for line in text]
    embed = ["embed.embedding", "Param", "[32, 12]", "float32", "(tensor, fsdp)", "384", "1.54 kB"]
    assert [*embed, "256 B"] in columns
    norm = ["layers.{0..2}.mlp_norm.scale", "Param", "3 x [12]", "float32", "(-)", "36", "144 B"]
    assert [*norm, "144 B"] in columns
    for title in ("by module", "by dtype", "by sharding"):
        assert title in text
    total = size(config)
    assert columns[-1][:2] == ["total", f"{total:,}"]
    # Numbers end below each other.
    assert len({len(line) for line in text if line.endswith("B")}) == 1


@pytest.mark.parametrize(
    "count, text",
    [(999, "999 B"), (1000, "1 kB"), (1536, "1.54 kB"), (2_500_000, "2.5 MB"), (1.2e12, "1.2 TB")],
)
def test_sizes_are_read_in_three_digits(count, text):
    model = nnx.Module()
    model.x = nnx.Param(jax.ShapeDtypeStruct((int(count),), jnp.int8))
    assert text in str(describe(model)).splitlines()[1]


# treescope looks at every name of NumPy, also at one that NumPy 2.5 is about to drop.
_CHARARRAY = pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")


@pytest.mark.thorough
@_CHARARRAY
def test_treescope_shows_the_totals():
    found = describe(abstract(CONFIG))
    total = f"{size(CONFIG):,} parameters"
    assert total in treescope.render_to_text(found)
    html = treescope.render_to_html(found, compressed=False)
    assert total in html
    assert "layers.{0..2}.attn.q.kernel" in html


@pytest.mark.thorough
@_CHARARRAY
def test_treescope_shows_a_model():
    text = treescope.render_to_text(abstract(CONFIG))
    assert text.startswith("Decoder(")
    assert "embed=Embed(" in text


def test_a_model_shows_itself_in_twenty_lines(model):
    lines = repr(model).splitlines()
    total = describe(model).total.parameters
    assert lines[0].startswith(f"Decoder(llama): {total:,} parameters, ")
    assert len(lines) <= 20
    assert str(model) == repr(model)
    assert any("layers.{" in line and "attn.q.kernel" in line for line in lines)


@pytest.mark.thorough
def test_a_long_table_says_how_many_rows_are_missing(model):
    many = lora.insert(model, "layers.*.{attn,mlp}.*", rank=1, alpha=1, rngs=nnx.Rngs(0))
    rows, lines = len(describe(many).rows), repr(many).splitlines()
    assert rows > 17
    assert len(lines) == 20
    assert lines[-1] == f"... {rows - 17} more: describe(model)"


def test_a_model_shows_itself_while_it_is_traced(model):
    shown = []

    @nnx.jit
    def trace(model):
        shown.append(repr(model))

    trace(model)
    assert shown[0].splitlines()[0] == repr(model).splitlines()[0]
