# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import copy
import hashlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint.proof.manifest import (
    DamagedManifestError,
    Items,
    ObjectItem,
    decode,
    describe,
    encode,
    json_sha256,
)


@pytest.fixture
def items():
    tree = {"b": [jnp.ones((2, 3)), 4], "a": np.zeros((0, 2))}
    return Items(
        trees={"item": describe(tree).digested(iter("xyz"))},
        objects={"data": ObjectItem(shared=False, sha256="s")},
        metrics={"loss": 0.25},
    )


def test_leaves_are_described_in_order(items):
    item = items.trees["item"]
    assert [(x.name, x.dtype, x.shape, x.digest) for x in item.leaves] == [
        ("a", "float64", (0, 2), "x"),
        ("b/0", "float32", (2, 3), "y"),
        ("b/1", "python int", (), "z"),
    ]
    assert item.tree == {"a": None, "b": [1, 2]}  # nothing of "a" lies on disk


def test_a_record_returns_through_json(items):
    assert decode(json.loads(json.dumps(encode(items)))) == items


def test_the_sum_is_over_canonical_json():
    want = hashlib.sha256(b'{"a":[1,2.5,null],"b":"\\u00e9"}').hexdigest()
    assert json_sha256({"b": "é", "a": [1, 2.5, None]}) == want


def test_any_changed_value_is_damage(items):
    good = encode(items)
    for path in (
        ("format",),
        ("trees", "item", "leaves", 1, 3),
        ("objects", "data", "shared"),
        ("metrics", "loss"),
    ):
        document = copy.deepcopy(good)
        at = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = 7
        with pytest.raises(DamagedManifestError):
            decode(document)


@pytest.mark.parametrize("document", [None, [], {}, {"sha256": "0"}])
def test_other_documents_are_damage(document):
    with pytest.raises(DamagedManifestError):
        decode(document)


def test_a_leaf_that_is_none_is_named():
    with pytest.raises(
        TypeError, match=r"a.1: a leaf must be an array.*got type=bytes; give other"
    ):
        describe({"a": [1, b"llama"]})


def test_a_record_from_before_there_were_metrics_has_none(items):
    body = {key: value for key, value in encode(items).items() if key not in ("metrics", "sha256")}
    assert decode({**body, "sha256": json_sha256(body)}).metrics == {}
