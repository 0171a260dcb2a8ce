# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Axis strings against einsum and loops over indices, and what each malformed one says."""

import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_optim.matrix.matrix import Matrices, assign, parse, parse_rules


def test_a_matrix_of_every_layer_and_head():
    x = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)
    matrices = parse("l i h d -> l h, i, d")
    folded = matrices.fold(jnp.asarray(x))
    assert matrices.sizes(x.shape) == folded.shape == (6, 4, 5)
    for count, (layer, head) in enumerate(itertools.product(range(2), range(3))):
        np.testing.assert_array_equal(folded[count], x[layer, :, head])
    np.testing.assert_array_equal(matrices.unfold(folded, x.shape), x)


def test_several_axes_make_one_side():
    x = np.arange(3 * 2 * 5, dtype=np.float32).reshape(3, 2, 5)  # heads, of 2, out 5
    folded = parse("h d o -> , h d, o").fold(jnp.asarray(x))
    np.testing.assert_array_equal(folded[0], x.reshape(6, 5))
    turned = parse("h d o -> , o, d h").fold(jnp.asarray(x))
    np.testing.assert_array_equal(turned[0], np.einsum("hdo->odh", x).reshape(5, 6))


@pytest.mark.thorough
@settings(deadline=None, max_examples=12, derandomize=True)
@given(st.permutations("abcde"), st.permutations("abcde"), st.integers(1, 4), st.data())
def test_unfold_undoes_fold(axes, used, split, data):
    at = data.draw(st.integers(0, split - 1))
    groups = [used[:at], used[at:split], used[split:]]
    text = f"{' '.join(axes)} -> {', '.join(' '.join(group) for group in groups)}"
    shape = [dict(zip("abcde", (2, 3, 1, 4, 2), strict=True))[axis] for axis in axes]
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    folded = parse(text).fold(jnp.asarray(x))
    moved = np.einsum(f"{''.join(axes)}->{''.join(used)}", x)
    np.testing.assert_array_equal(np.ravel(folded), np.ravel(moved))
    np.testing.assert_array_equal(parse(text).unfold(folded, shape), x)


@pytest.mark.parametrize(
    "text, got",
    [
        ("i o", "0 groups"),
        ("i o -> i, o", "2 groups"),
        ("l i o -> l, i, o, l", "4 groups"),
        ("i o -> , i i, o", "axis='i' twice"),
        ("i i o -> , i, o", "axis='i' twice"),
        ("l i o -> , i, o", "'l' on one side"),
        ("i o -> l, i, o", "'l' on one side"),
        ("i o -> i o, , ", "no in axis"),
        ("i o -> o, i, ", "no out axis"),
        ("i (o) -> , i, (o)", "axis='(o)'"),
        ("", "0 groups"),
    ],
)
def test_a_malformed_string(text, got):
    with pytest.raises(ValueError, match=re.escape(got)) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("a matrix string names every axis once")
    assert f"matrix={text!r}" in message
    assert message.endswith("as in 'l i h d -> l h, i, d'")


@pytest.mark.parametrize(
    "shape, instead",
    [
        ((3, 4, 5), "write matrix='l i o -> l, i, o' for a stack of layers"),
        ((3, 4, 5, 6), "write matrix='l i h d -> l h, i, d' for heads"),
        ((2, 2, 2, 2, 2), "write matrix=a string of 5 axes before the arrow"),
        ((7,), "give it another rule of route, such as ('**', optax.adamw(1e-3))"),
        ((), "give it another rule of route, such as ('**', optax.adamw(1e-3))"),
    ],
)
def test_another_rank_is_refused_by_name(shape, instead):
    tree = {"layers": [{"kernel": jnp.zeros(shape)}]}
    with pytest.raises(ValueError, match=r"matrix='i o -> , i, o' needs arrays of 2 axes") as error:
        assign(parse_rules("i o -> , i, o"), tree)
    assert f"got 'layers.0.kernel' of shape {shape}" in str(error.value)
    assert instead in str(error.value)


def test_every_proposed_string_is_one():
    for rank in (2, 3, 4):
        tree = {"w": jnp.zeros((1,) * rank)}
        with pytest.raises(ValueError, match=r"needs arrays of 5 axes") as error:
            assign(parse_rules("a b c d e -> a b c, d, e"), tree)
        proposed = re.findall(r"'(\S[^']*->[^']*)'", str(error.value).partition("write")[2])
        assert proposed
        for text in proposed:
            assign(parse_rules(text), tree)


def test_strings_by_pattern_the_first_that_matches():
    tree = {"q": {"kernel": jnp.zeros((4, 3, 2))}, "up": {"kernel": jnp.zeros((4, 5))}}
    chosen = assign(parse_rules([("q.*", "i h d -> h, i, d"), ("**", "i o -> , i, o")]), tree)
    assert [matrices.text for matrices in chosen] == ["i h d -> h, i, d", "i o -> , i, o"]
    with pytest.raises(ValueError, match=r"every parameter must match a rule; got 'up.kernel'"):
        assign(parse_rules([("q.*", "i h d -> h, i, d")]), tree)
    with pytest.raises(TypeError, match=r"pairs of a pattern and an axis string.*got rule="):
        inspect.unwrap(parse_rules)([("q.*", "i o -> , i, o", "more")])


def test_integers_are_refused_by_name():
    with pytest.raises(TypeError, match=r"real floating point; got 'n' of dtype=int32; route it"):
        assign(parse_rules("i o -> , i, o"), {"n": jnp.zeros((2, 2), jnp.int32)})


def test_nothing_to_assign():
    assert assign(parse_rules("i o -> , i, o"), {"none": None}) == []


def test_a_shape_is_enough():
    tree = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    assert isinstance(assign(parse_rules("i o -> , i, o"), tree)[0], Matrices)
