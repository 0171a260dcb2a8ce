# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint import cast, drop, keep_init, rename, split, stack, transpose
from dovetail_checkpoint.layout.mapping import compiled, leaf_bytes
from dovetail_checkpoint.layout.source import SourceLeaf


def leaf(name, shape=(3, 4), dtype="float32"):
    return SourceLeaf(name=name, shape=shape, dtype=dtype)


LEAVES = {
    x.name: x
    for x in (
        leaf("embed", (7, 4)),
        leaf("layers.0.w"),
        leaf("layers.1.w"),
        leaf("n", (), "python int"),
        leaf("key", (2,), "key<fry>"),
    )
}


def abstract(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_plan_names_each_origin_and_counts_what_is_read():
    wanted = {
        "emb": abstract(4, 7, dtype=jnp.bfloat16),
        "layers": {"w": abstract(2, 3, 4)},
        "head": jnp.ones((2, 2)),
        "n": 0,
    }
    rules = [
        rename("embed", "emb"),
        transpose("emb", (1, 0)),
        cast("emb", jnp.bfloat16),
        stack("layers.#.w", "layers.w"),
        keep_init("head"),
        drop("key"),
    ]
    plan = compiled(LEAVES, rules, target=wanted)
    assert str(plan) == (
        "emb bfloat16[4, 7] <- embed transposed (1, 0) as bfloat16\n"
        "layers.w float32[2, 3, 4] <- layers.0.w + layers.1.w\n"
        "n python int[]\n"
        "head keeps its initial value\n"
        "key is dropped\n"
        "reads 4 leaves, 216 bytes"
    )
    assert repr(plan) == "Explanation(3 leaves, 1 keep their initial values, 1 dropped; print it)"
    assert html.unescape(plan._repr_html_()) == f"<pre>{plan}</pre>"
    assert plan.read_bytes == 4 * (7 * 4 + 2 * 3 * 4) + 8
    assert list(plan.uses()) == ["embed", "layers.0.w", "layers.1.w", "n"]


def test_regions_and_new_names_are_shown():
    rules = [
        split("embed", ("a", "b"), axis=0, sizes=(2, 5)),
        rename("layers.*.w", "*"),
        drop("n", "key"),
    ]
    assert str(compiled(LEAVES, rules)).splitlines() == [
        "a float32[2, 4] <- embed[0:2, 0:4]",
        "b float32[5, 4] <- embed[2:7, 0:4]",
        "0 float32[3, 4] <- layers.0.w",
        "1 float32[3, 4] <- layers.1.w",
        "n is dropped",
        "key is dropped",
        "reads 3 leaves, 208 bytes",
    ]


def test_a_long_list_of_pieces_is_cut_short():
    leaves = {f"l.{i}": leaf(f"l.{i}") for i in range(6)}
    (line, _) = str(compiled(leaves, [stack("l.#", "l")])).splitlines()
    assert line == "l float32[6, 3, 4] <- l.0 + l.1 + ... 3 more + l.5"


def test_a_dropped_part_of_a_leaf_is_not_a_plan_to_read_all_of_it_for_nothing():
    rules = [split("embed", ("a", "b"), axis=1), drop("a", "b", "n", "key")]
    assert "embed" not in compiled(LEAVES, rules).sources


def test_names_of_a_target_match_those_of_other_writers():
    leaves = {"layers.0.w": leaf("layers.0.w"), "b": leaf("b")}
    wanted = {"layers": [{"w": {"value": abstract(3, 4)}}], "b": np.zeros((3, 4), np.float32)}
    assert list(compiled(leaves, [], target=wanted).built) == ["b", "layers.0.w"]


def test_differences_list_both_sides_and_the_rules_to_write():
    wanted = {
        "embed": abstract(4, 7),
        "layer": [{"w": abstract(3, 4)}],
        "layers": {"1": {"w": abstract(3, 4, dtype=jnp.bfloat16)}},
        "n": 0,
        "head": abstract(2),
    }
    with pytest.raises(ValueError, match="after the rules") as raised:
        compiled(LEAVES, [], target=wanted)
    assert str(raised.value).splitlines()[1:-1] == [
        '  embed: saved float32[7, 4], wanted float32[4, 7]; perhaps transpose("embed", (1, 0))',
        '  head: wanted, not saved; perhaps keep_init("head")',
        '  layer.0.w: wanted, not saved; perhaps rename("layers.0.w", "layer.0.w")',
        '  layers.1.w: saved float32[3, 4], wanted bfloat16[3, 4]; perhaps cast("layers.1.w", '
        '"bfloat16")',
        '  layers.0.w: saved, not wanted; perhaps drop("layers.0.w")',
        '  key: saved, not wanted; perhaps drop("key")',
    ]


def test_a_hundred_differences_are_cut_short():
    wanted = {f"x{i}": abstract(2) for i in range(100)}
    with pytest.raises(ValueError, match="and 95 more\nadd rules, or build the target"):
        compiled(LEAVES, [], target=wanted)


def test_an_initial_value_must_be_one():
    wanted = {"embed": abstract(7, 4)}
    with pytest.raises(ValueError, match=r"must be arrays .* got abstract \['embed'\]; init"):
        compiled(LEAVES, [keep_init("embed"), drop("layers.**", "n", "key")], target=wanted)
    with pytest.raises(ValueError, match=r"keep_init\('x'\) must match a leaf of the target, got"):
        compiled(LEAVES, [keep_init("x")], target=wanted)


@pytest.mark.parametrize(
    ("saved", "size"),
    [
        (leaf("a", (3, 5), "bfloat16"), 30),
        (leaf("a", (), "python int"), 8),
        (leaf("a", (0, 5), "float32"), 0),
        (leaf("a", (2,), "key<fry>"), 16),
    ],
)
def test_bytes_of_a_leaf(saved, size):
    assert leaf_bytes(saved) == size
