# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from flax import nnx

from dovetail_quant import largest_group, plan_bits, sites


def decoder(*sizes):
    """An abstract model of an embedding, layers of so many inputs, and a head."""

    def make():
        rngs = nnx.Rngs(0)
        layers = {f"layer{n}": nnx.Linear(n, 8, rngs=rngs) for n in sizes}
        ends = {"embed": nnx.Embed(40, 96, rngs=rngs), "lm_head": nnx.Linear(96, 40, rngs=rngs)}
        return nnx.Dict(**layers, **ends)

    return nnx.eval_shape(make)


def test_four_bits_take_the_largest_group_that_divides_each_matrix():
    model = decoder(96, 256, 16)
    specs = plan_bits(model, bits=4).specs
    assert {path: spec.group for path, spec in specs.items()} == {
        "layer96": 32,
        "layer256": 128,
        "layer16": 16,
    }
    assert {(spec.weight, spec.method) for spec in specs.values()} == {("int4", "gptq")}
    every = plan_bits(model, bits=4, method="absmax", also=["{embed,lm_head}"])
    assert every.specs.keys() - specs.keys() == {"embed", "lm_head"}
    assert {spec.method for spec in every.specs.values()} == {"absmax"}
    given = plan_bits(model, bits=4, group=8, skip=["layer256"])
    assert {spec.group for spec in given.specs.values()} == {8}
    assert given.left_alone["layer256"] == "as its rule says"
    assert "named alone" in given.left_alone["embed"]


def test_eight_bits_share_a_scale_among_all_inputs():
    specs = plan_bits(decoder(24), bits=8).specs
    assert {(spec.weight, spec.method, spec.group) for spec in specs.values()} == {
        ("int8", "absmax", None)
    }


def test_inputs_that_no_group_divides_are_refused():
    model = decoder(96, 24)
    assert largest_group(sites(model)["layer24"]) is None
    words = "among 16 inputs or more, and 'layer24' has 24, which none of (128, 64, 32, 16) divides"
    with pytest.raises(ValueError, match=re.escape(words) + ".* group=, .* with skip=layer24"):
        plan_bits(model, bits=4)
    assert "layer24" not in plan_bits(model, bits=4, skip=["layer24"]).specs


def test_other_numbers_of_bits_are_refused():
    with pytest.raises(ValueError, match="bits must be 4 or 8, got bits=3: pass bits=8"):
        plan_bits(decoder(96), bits=3)
