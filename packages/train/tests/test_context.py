# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from dovetail_train import balanced_order, context_parallel


@pytest.fixture(scope="module")
def found(on_eight_devices):
    return on_eight_devices("contexts.py")


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("attention over a context axis")
@pytest.mark.parametrize(
    "case",
    [
        "all_to_all",
        "gather",
        "tensor",
        "explicit",
        "tensor gather",
        "one key head",
        "odd key heads",
        "no context",
        "no context gather",
        "balanced",
    ],
)
def test_attention_on_eight_devices_is_that_of_one_with_its_gradients(found, case):
    # Values around 1, softmax over 16 scores of width 6, summed over 16 keys: float32 rounding.
    assert found[case] < 2e-5


def test_every_device_of_a_balanced_order_has_equal_work():
    order = balanced_order(24, shards=3)
    assert sorted(order.tolist()) == list(range(24))
    seen = (order + 1).reshape(3, -1).sum(1)  # a token at place p sees p + 1 keys
    assert len(set(seen.tolist())) == 1
    np.testing.assert_array_equal(balanced_order(8, shards=2), [0, 1, 6, 7, 2, 3, 4, 5])


@pytest.mark.usefixtures("unchecked")
def test_without_a_mesh_it_is_the_attention_itself():
    def attention(q, k, v, **options):
        return options

    options = context_parallel(attention)(*[np.zeros((1, 2, 3, 4))] * 3, scale=0.5)
    plain = {"causal": True, "positions": None, "segment_ids": None, "sinks": None}
    assert options == {"scale": 0.5, **plain}


def _call(*, rows=4, tokens=8, heads=4, method="all_to_all", **options):
    parallel = context_parallel(lambda q, k, v, **rest: q, method=method)
    x = np.zeros((rows, tokens, heads, 2), "f4")
    sizes = {"data": 2, "context": 2, "tensor": 2}
    kinds = (AxisType.Auto,) * 3
    with jax.sharding.use_abstract_mesh(
        AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
    ):
        return jax.eval_shape(lambda x: parallel(x, x, x, **options), x)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"rows": 3},
            r"must be divisible by the devices that share.*rows=3 over 2.*pass 2 rows of 8 tokens",
        ),
        ({"tokens": 9}, r"tokens=9 over 2; pass 4 rows of 10 tokens"),
        ({"heads": 6}, r"heads=6 over 4 with method='all_to_all'; use a smaller context axis, or"),
        ({"heads": 3, "method": "gather"}, r"heads=3 over 2 with method='gather'; use a mesh"),
        ({"kv": ()}, r"has no cache, got kv; generate with the attention itself"),
    ],
)
def test_what_cannot_be_split_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        _call(**options)
    assert _call().shape == (4, 8, 4, 2)


@pytest.mark.usefixtures("unchecked")
def test_unknown_methods_and_lengths_are_refused():
    with pytest.raises(ValueError, match=r'"all_to_all" or "gather", got method=.ring.; write'):
        context_parallel(lambda *args: None, method="ring")
    with pytest.raises(ValueError, match=r"by 2·shards, got length=10, shards=2; pad the rows to"):
        balanced_order(10, shards=2)
