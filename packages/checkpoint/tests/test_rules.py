# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_checkpoint import (
    cast,
    drop,
    fuse,
    keep_init,
    only,
    rename,
    split,
    stack,
    transpose,
    unstack,
)
from dovetail_checkpoint.layout import pieces
from dovetail_checkpoint.layout.pieces import whole

pytestmark = pytest.mark.capability("other layouts by rules")

_RNG = np.random.default_rng(0)
ARRAYS = {
    "embed": _RNG.normal(size=(7, 4)),
    "layers.0.q": _RNG.normal(size=(4, 6)),
    "layers.0.k": _RNG.normal(size=(4, 2)),
    "layers.1.q": _RNG.normal(size=(4, 6)),
    "layers.1.k": _RNG.normal(size=(4, 2)),
    "step": np.array(3.0),
}
LEAVES = {name: whole(name, x.shape, str(x.dtype)) for name, x in ARRAYS.items()}
LEAVES["n"] = whole("n", (), "python int")
LEAVES["key"] = whole("key", (2,), "key<fry>")


def applied(*rules, leaves=LEAVES):
    for rule in rules:
        leaves = rule.apply(leaves)
    return leaves


def value(built):
    result = np.empty(built.shape, built.dtype)
    for piece in built.pieces:
        result[piece.place] = pieces.block(ARRAYS[piece.source], piece)
    return result


def test_rename_keeps_order_and_values():
    found = applied(rename("layers.*.**", "blocks_*.attn.**"), rename("embed", "wte"))
    assert list(found)[:3] == ["wte", "blocks_0.attn.q", "blocks_0.attn.k"]
    assert found["blocks_1.attn.q"] == LEAVES["layers.1.q"]


def test_stack_and_unstack_are_inverse():
    stacked = applied(stack("layers.#.**", "layers.**", axis=1))
    assert list(stacked) == ["embed", "layers.q", "layers.k", "step", "n", "key"]
    want = np.stack([ARRAYS["layers.0.q"], ARRAYS["layers.1.q"]], 1)
    assert np.array_equal(value(stacked["layers.q"]), want)
    apart = applied(unstack("layers.**", "layers.#.**", axis=1), leaves=stacked)
    assert apart == LEAVES


def test_ten_layers_are_stacked_by_number():
    leaves = {f"l.{i}": whole(f"l.{i}", (2,), "float32") for i in sorted(map(str, range(11)))}
    (stacked,) = applied(stack("l.#", "l"), leaves=leaves).values()
    assert [piece.source for piece in stacked.pieces] == [f"l.{i}" for i in range(11)]


def test_fuse_and_split_are_inverse():
    fused = applied(fuse(("layers.*.q", "layers.*.k"), "layers.*.qk", axis=-1))
    want = np.concatenate([ARRAYS["layers.1.q"], ARRAYS["layers.1.k"]], 1)
    assert np.array_equal(value(fused["layers.1.qk"]), want)
    parts = split("layers.*.qk", ("layers.*.q", "layers.*.k"), axis=1, sizes=(6, 2))
    assert applied(parts, leaves=fused) == LEAVES


def test_split_without_sizes_makes_equal_parts():
    found = applied(split("layers.*.q", ("layers.*.a", "layers.*.b", "layers.*.c"), axis=-1))
    assert np.array_equal(value(found["layers.0.b"]), ARRAYS["layers.0.q"][:, 2:4])
    assert "layers.0.q" not in found


def test_transpose_and_cast_change_what_matches():
    found = applied(transpose("layers.**", (1, 0)), cast("layers.0.q", "float16"))
    assert np.array_equal(value(found["layers.0.q"]), ARRAYS["layers.0.q"].T.astype("float16"))
    assert found["embed"] == LEAVES["embed"]


def test_drop_only_and_keep_init_let_leaves_go():
    assert list(applied(drop("layers.0.**", "step"))) == [
        "embed",
        "layers.1.q",
        "layers.1.k",
        "n",
        "key",
    ]
    assert list(applied(only("embed", "layers.*.q"))) == ["embed", "layers.0.q", "layers.1.q"]
    assert "embed" not in applied(keep_init("embed"))
    assert applied(keep_init("head")) == LEAVES
    assert all(rule.drops for rule in (drop("a"), only("a"), keep_init("a")))


DO_NOT_FIT = [
    (rename("layer.*", "x.*"), r"rename\('layer.\*', 'x.\*'\) must match .* nearest: 'layers"),
    (rename("layers.0.q", "embed"), "must give new names, got 'embed' twice; rename or drop"),
    (stack("#", "x"), "must match a leaf, got '#', which matches none"),
    (unstack("n", "n.#"), r"works on arrays, got n: python int; .* narrow the pattern"),
    (unstack("step", "step.#"), r"axis must be one of 0 of step, got unstack\('step'"),
    (unstack("layers.0.q", "layers.#.k"), "new names, got 'layers.0.k' twice"),
    (cast("**", "float16"), r"works on arrays, got n: python int"),
    (transpose("key", (0,)), "works on arrays, got key: key<fry>"),
    (transpose("embed", (0, 0)), "each axis of embed once, got a leaf of shape .7, 4.; narrow"),
    (
        split("embed", ("a", "b", "c"), axis=0),
        r"add up to the axis of embed, got \[2, 2, 2\] for 7",
    ),
    (split("embed", ("a", "b"), axis=0, sizes=(8, -1)), r"got \[8, -1\] for 7 in split"),
    (fuse(("layers.*.q", "layers.*.k"), "layers.*.x", axis=0), "alike in dtype and shape, got"),
    (fuse(("layers.*.q", "layers.*.v"), "layers.*.x", axis=1), "must match a leaf, got 'layers"),
]


@pytest.mark.parametrize(("rule", "match"), DO_NOT_FIT, ids=str)
def test_a_rule_that_does_not_fit_says_why(rule, match):
    with pytest.raises(ValueError, match=match):
        rule.apply(LEAVES)


def test_fuse_needs_all_parts():
    leaves = {name: leaf for name, leaf in LEAVES.items() if name != "layers.1.k"}
    rule = fuse(("layers.*.q", "layers.*.k"), "layers.*.x", axis=1)
    with pytest.raises(ValueError, match=r"2 leaves for layers.1.x, got \['layers.1.q'\]; narrow"):
        rule.apply(leaves)


def test_stack_needs_all_indices():
    leaves = {name: leaf for name, leaf in LEAVES.items() if ".0." not in name}
    with pytest.raises(ValueError, match=r"indices from 0 to 1 for layers.q, got none for \[0\]"):
        stack("layers.#.**", "layers.**").apply(leaves)


@pytest.mark.parametrize(
    ("rule", "names", "new"),
    [
        (rename("x*.*", "y*_*"), ("xa.b_c", "xa_b.c"), "ya_b_c"),
        (stack("x*.*.#", "y*_*"), ("xa.b_c.0", "xa_b.c.0"), "ya_b_c, index 0"),
    ],
)
def test_two_leaves_that_would_become_one_are_refused(rule, names, new):
    leaves = dict.fromkeys(names, LEAVES["embed"])
    with pytest.raises(ValueError, match=f"must give new names, got '{new}' twice"):
        rule.apply(leaves)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rename("a.*", "b"), "same wildcards in the same order, got rename.*; write \\*"),
        (lambda: rename("a", "b.*"), "write no wildcard on the other side"),
        (lambda: stack("a.*", "a"), "must have one # for the index .* got stack"),
        (lambda: stack("a.#.#", "a.#"), "must have one #"),
        (lambda: stack("a.#.#", "a"), "must have one #"),
        (lambda: stack("a.#.*", "a"), "else the same wildcards, got stack"),
        (lambda: unstack("a.#", "a"), "must have one # for the index"),
        (lambda: split("a", ("b",), axis=0), "two patterns or more, got split"),
        (lambda: split("a", "bc", axis=0), "two patterns or more"),
        (lambda: split("a", ("b", "c"), axis=0, sizes=(1,)), "one size for each part.*; give 2"),
        (lambda: fuse(("a",), "b", axis=0), "two patterns or more, got fuse"),
        (lambda: drop(), r'drop needs at least one pattern, got none; drop\("opt.\*\*"\)'),
        (lambda: only(), "only needs at least one pattern"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_at_once(make, match, unchecked):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_dtype_that_does_not_exist_is_refused_at_once():
    with pytest.raises(TypeError):
        cast("a", "float99")
