# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import abstract, llama, qwen3
from dovetail_models.families import FAMILIES
from dovetail_models.hf.ops import Identity
from dovetail_models.hf.table import Keys, Row, matches, near, sources

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
