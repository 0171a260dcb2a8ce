# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_optim import compress, explain, muon, route, soap, wsd

RULES = [
    ("**.bias", optax.sgd(0.1)),
    ("head.*", optax.adamw(1e-3)),
    ("layers.0.kernel", muon(0.02)),
    ("**", soap(1e-3)),
]


def params():
    return {
        "head": {"kernel": jnp.zeros((6, 3), jnp.bfloat16), "bias": jnp.zeros(3)},
        "layers": [{"kernel": jnp.zeros((4, 6))}, {"kernel": jnp.zeros((6, 4))}],
    }


def bytes_of(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_one_transformation_is_a_rule_for_all():
    tx = optax.adamw(1e-3)
    assert explain(tx, params()) == explain([("**", tx)], params())
    assert {row.pattern for row in explain(route(RULES), params()).rows} == {"**"}


def test_every_parameter_has_its_rule_and_its_state():
    report = explain(RULES, params())
    found = {row.path: row for row in report.rows}
    assert {path: row.pattern for path, row in found.items()} == {
        "head.bias": "**.bias",
        "head.kernel": "head.*",
        "layers.0.kernel": "layers.0.kernel",
        "layers.1.kernel": "**",
    }
    assert found["head.bias"].state == ()
    assert found["head.kernel"].state == ("mu bfloat16[6,3]", "nu bfloat16[6,3]")
    assert found["layers.0.kernel"].state == ("momentum float32[4,6]",)
    sides = 2 * (6 * 6 + 4 * 4)
    assert found["layers.1.kernel"].state_bytes == 4 * (2 * 24 + sides)
    assert found["layers.1.kernel"].shape == (6, 4)


def test_all_bytes_are_counted_before_there_are_any():
    shapes = jax.eval_shape(params)
    report = explain(RULES, shapes)
    assert report.state_bytes == bytes_of(route(RULES).init(params()))
    assert report.parameter_bytes == bytes_of(params())


def test_codes_belong_to_their_parameter():
    rules = [("**", compress(optax.adam(1e-3)))]
    report = explain(rules, {"w": jnp.zeros((8, 512))})
    assert report.state_bytes == bytes_of(route(rules).init({"w": jnp.zeros((8, 512))}))
    assert report.rows[0].state_bytes > 0.99 * report.state_bytes


def test_nnx_state_reads_like_its_paths():
    state = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Param)
    report = explain([("**", optax.adam(1e-3))], state)
    assert [row.path for row in report.rows] == ["bias", "kernel"]
    assert [row.state_bytes for row in report.rows] == [2 * 2 * 4, 2 * 6 * 4]


def test_it_prints_a_table():
    mesh = jax.make_mesh((1,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    params = {"w": jax.device_put(jnp.zeros((2, 3)), sharding)}
    explanation = explain([("**", optax.adam(1.0))], params)
    head, row, total = str(explanation).splitlines()
    assert repr(explanation) == f"Explanation(1 parameters, {total}; print it)"
    assert html.unescape(explanation._repr_html_()) == f"<pre>{explanation}</pre>"
    columns = ["parameter", "shape", "dtype", "rule", "learning rate", "weight decay"]
    assert re.split("  +", head) == [*columns, "state", "bytes", "sharding"]
    assert row.split()[:6] == ["w", "2x3", "float32", "**", "1", "-"]
    assert "mu float32[2,3], nu float32[2,3]" in row
    assert "'data'" in row
    assert total == "24 bytes of parameters, 52 of state"


def test_each_group_has_its_rate_and_its_decay():
    rules = [
        ("**.bias", optax.sgd(0.1)),
        ("head.*", optax.adamw(1e-3, weight_decay=0.25), "AdamW"),
        ("layers.0.kernel", muon(wsd(0.02, warmup=2, total=9, cooldown=3), weight_decay=0.5)),
        ("**", _hidden(), "three times the gradient"),
    ]
    rows = {row.path: row for row in explain(rules, params()).rows}
    assert {path: (row.learning_rate, row.weight_decay) for path, row in rows.items()} == {
        "head.bias": ("0.1", "-"),
        "head.kernel": ("0.001", "0.25"),
        "layers.0.kernel": ("0 to 0.02 to 0 in 9 steps", "0.5"),
        "layers.1.kernel": ("unknown", "unknown"),
    }
    assert [rows[path].label for path in ("head.bias", "head.kernel")] == ["", "AdamW"]
    text = str(explain(rules, params()))
    assert re.search(r"head\.\* \(AdamW\) +0\.001 +0\.25 ", text)
    assert "** (three times the gradient)" in text
    assert "hidden in a closure" not in text
    without = explain([("**", _hidden())], params())
    assert {(row.learning_rate, row.weight_decay) for row in without.rows} == {("unknown",) * 2}
    assert "unknown: hidden in a closure; pass a label, as in (pattern, tx, " in str(without)


def _hidden():
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u: -3 * u, updates))


def test_a_rule_that_moves_nothing_is_an_error_here_too():
    with pytest.raises(ValueError, match="nearest"):
        explain([("layer.**", optax.sgd(1.0)), ("**", optax.sgd(1.0))], params())


def test_a_name_that_ends_another_takes_nothing_of_it():
    tree = {"a": {"b": jnp.zeros(7)}, "b": jnp.zeros(3)}
    report = explain([("**", optax.adam(1e-3))], tree)
    assert {row.path: row.state_bytes for row in report.rows} == {"a.b": 56, "b": 24}
