# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models.describing.abbreviation import abbreviate


@pytest.mark.parametrize(
    "indices, text",
    [
        ([0, 1, 2, 3], "layers.{0..3}.q"),
        ([7], "layers.7.q"),
        ([4, 5], "layers.{4..5}.q"),
        ([1, 3, 5], "layers.{1..5..2}.q"),
        ([0, 1, 3], "layers.{0,1,3}.q"),
    ],
)
def test_indices(indices, text):
    paths = [f"layers.{i}.q" for i in indices]
    assert abbreviate((path, None) for path in paths) == {text: paths}


def test_what_differs_stays_apart_and_in_order():
    found = abbreviate([("norm", 1), ("a.0.x", 1), ("a.1.x", 2), ("a.0.y", 1), ("a.1.y", 1)])
    assert list(found) == ["norm", "a.0.x", "a.1.x", "a.{0..1}.y"]


def test_the_first_index_alone_is_folded():
    paths = [f"a.{i}.b.{j}.c" for i in range(3) for j in range(2)]
    assert list(abbreviate((path, None) for path in paths)) == ["a.{0..2}.b.0.c", "a.{0..2}.b.1.c"]


def test_a_last_index_is_folded_too():
    assert list(abbreviate([("layers.0", None), ("layers.1", None)])) == ["layers.{0..1}"]
