# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_models import abstract, llama, qwen3
from dovetail_models.families import FAMILIES
from dovetail_models.hf.ops import Identity
from dovetail_models.hf.table import (
    Family,
    Keys,
    Row,
    candidates,
    listed,
    matches,
    near,
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
    def unread(_):
        raise NotImplementedError

    given = {"table": (SCALE,), "inert": frozenset(), "tied": None} | options
    return Family(read=unread, write=unread, **given)


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


def test_near_names():
    assert near("hiden_size", ["hidden_size", "vocab_size"]) == " (near: hidden_size)"
    assert near("xyz", ["hidden_size"]) == ""


def test_a_missing_key_is_refused():
    with pytest.raises(ValueError, match="must hold 'hidden_size'") as error:
        Keys({"hiden_size": 3}).take("hidden_size", required=True)
    assert "keys=['hiden_size'] (near: hiden_size)" in str(error.value)
    assert "Add 'hidden_size'" in str(error.value)


def test_a_value_that_no_module_computes_is_refused():
    keys = Keys({"hidden_act": "gelu"})
    with pytest.raises(ValueError, match=r"must be one of \('silu',\)") as error:
        keys.expect("hidden_act", "silu")
    assert "hidden_act='gelu'" in str(error.value)
    assert "use the library that wrote the file" in str(error.value)


def test_an_unknown_key_is_refused_unless_allowed():
    values = {"logit_scale": 0.5, "bos_token_id": [1, 2]}
    with pytest.raises(ValueError, match="must be known") as error:
        Keys(values).extra(frozenset({"bos_token_id"}), ())
    assert "got logit_scale=0.5" in str(error.value)
    assert "pass allow=('logit_scale',)" in str(error.value)
    kept = Keys(values).extra(frozenset({"bos_token_id"}), ("logit_scale",))
    assert kept == (("bos_token_id", "[1, 2]"), ("logit_scale", "0.5"))
