# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_models import abstract, llama, qwen3
from dovetail_models.families import FAMILIES
from dovetail_models.tables.config_json import ConfigJson
from dovetail_models.tables.ops import Identity
from dovetail_models.tables.table import (
    Family,
    Row,
    candidates,
    listed,
    matches,
    sources,
)

SIZES = {"vocab_size": 7, "embed": 4, "depth": 12, "heads": 2, "mlp": 6, "attention_bias": True}


@pytest.mark.parametrize("config", [llama(**SIZES, mlp_bias=True), qwen3(**SIZES, tie=True)])
def test_a_family_names_every_leaf_once(config):
    from flax import nnx

    state = nnx.to_flat_state(nnx.state(abstract(config), nnx.Param))
    leaves = [".".join(map(str, path)) for path, _ in state]
    table = FAMILIES[config.family].table
    names = [name for name, _ in sources(table, leaves).values()]
    assert len(set(names)) == len(leaves)
    assert "model.layers.11.self_attn.q_proj.bias" in names
    for field in ("ours", "theirs"):
        patterns = [getattr(row, field) for row in table]
        assert len(set(patterns)) == len(patterns)


TABLES = {
    f"{name} {i}": table
    for name, family in FAMILIES.items()
    for i, table in enumerate((family.table, *family.layouts))
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_rows_of_a_tensor_tile_it(table):
    rows_of = {}
    for row in table:
        rows_of.setdefault(row.theirs, []).append(row)
    for theirs, rows in rows_of.items():
        # One size per axis, so that a swapped one fails.
        tensor = np.zeros(rows[0].op.shape((2, 3, 4, 5)), np.int64)
        for row in rows:
            view = row.op.view(tensor)
            assert view.shape == (2, 3, 4, 5), theirs
            view += 1
        np.testing.assert_array_equal(tensor, 1, err_msg=theirs)


SCALE = Row("scale", "norm.scale", Identity())
BIASED = (SCALE, Row("bias", "norm.bias", Identity()))


def family(**options):
    unread = ConfigJson(builder=llama, fixed={})
    given = {"table": (SCALE,), "inert": frozenset(), "tied": None} | options
    return Family(config_json=unread, **given)


def test_candidates_are_the_tables_that_name_every_leaf():
    both = family(layouts=(BIASED,))
    scale, bias = ("scale", Identity()), ("bias", Identity())
    assert candidates(both, ["norm.scale"]) == [{"norm.scale": scale}] * 2
    leaves = ["norm.scale", "norm.bias"]
    assert candidates(both, leaves) == [{"norm.scale": scale, "norm.bias": bias}]
    with pytest.raises(ValueError, match="one that the family's files name") as error:
        candidates(both, [*leaves, "norm.lora"])
    assert "got norm.bias, norm.lora. Merge adapters" in str(error.value)


def test_every_tensor_but_the_head_has_the_prefix():
    named = family(prefix="t.", tied=("head", "embed"))
    assert [named.on_disk(name) for name in ("head", "embed")] == ["head", "t.embed"]
    assert family(prefix="t.").on_disk("head") == "t.head"


def test_the_number_of_an_expert_stays_open():
    table = (Row("h.{i}.w.{e}.x", "layers.{i}.w", Identity()),)
    assert sources(table, ["layers.7.w"])["layers.7.w"][0] == "h.7.w.{e}.x"


def test_a_star_is_anything():
    assert matches("a.61.b.c", ("x", "a.61.*"))
    assert not matches("a.6.b", ("a.61.*",))


def test_long_lists_are_cut():
    assert listed("abc") == "a, b, c"
    assert listed(map(str, range(22)), limit=2) == "0, 1, and 20 more"


def test_a_dot_is_a_dot_and_a_layer_a_number():
    table = (Row("a.{i}.b", "x.{i}.y", Identity()),)
    assert sources(table, ["x.10.y"])["x.10.y"][0] == "a.10.b"
    assert matches("a.3.b", ("a.{i}.b",))
    assert not matches("a.3.bc", ("a.{i}.b",))
    assert not matches("aX3.b", ("a.{i}.b",))
