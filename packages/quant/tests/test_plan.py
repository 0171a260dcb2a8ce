# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from flax import nnx

from dovetail_quant import Plan, Spec, plan


def model():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Linear(24, 16, rngs=rngs),
        nnx.relu,
        nnx.Linear(16, 8, rngs=rngs),
        nnx.BatchNorm(8, rngs=rngs),
    )


INT4 = Spec(weight="int4", group=8)


def test_the_first_rule_that_matches_the_whole_path_decides():
    chosen = plan(model(), [("**.2", INT4), ("layers.#", Spec(act="int8"))])
    assert chosen.specs == {"layers.2": INT4, "layers.0": Spec(act="int8")}
    assert chosen.left_alone == {}


def test_a_rule_may_be_a_function_of_the_site():
    def halves(site):
        return Spec(weight="int4", group=site.axes.sizes[1] // 2)

    chosen = plan(model(), [("layers.2", None), ("**", halves)])
    assert chosen.specs == {"layers.0": Spec(weight="int4", group=12)}
    assert not chosen.calibrates
    assert plan(model(), [("**", Spec(method="gptq"))]).calibrates


def test_what_is_left_alone_says_why():
    chosen = plan(model(), [("layers.0", None), ("**", INT4)])
    assert chosen.left_alone == {"layers.0": "as its rule says"}
    chosen = plan(model(), [("layers.0", INT4)])
    assert chosen.left_alone == {"layers.2": "no rule matches"}


def decoder(*, head=True):
    rngs = nnx.Rngs(0)
    layers = {"embed": nnx.Embed(40, 8, rngs=rngs), "layer": nnx.Linear(8, 8, rngs=rngs)}
    return nnx.Dict(**layers, **({"lm_head": nnx.Linear(8, 40, rngs=rngs)} if head else {}))


@pytest.mark.thorough
def test_embedding_and_head_are_quantized_by_name_alone():
    chosen = plan(decoder(), [("**", INT4)])
    assert set(chosen.specs) == {"layer"}
    assert str(chosen).splitlines()[1:] == [
        "embed    left alone: embedding: named alone; write ('embed', Spec()) to quantize it",
        "lm_head  left alone: head: named alone; write ('lm_head', Spec()) to quantize it",
    ]
    # A rule that does not select them does not decide for them either, whatever its place.
    named = plan(decoder(), [("**", INT4), ("{embed,lm_head}", Spec())])
    assert named.specs == {"embed": Spec(), "layer": INT4, "lm_head": Spec()}
    assert plan(decoder(), [("**", None), ("embed", Spec())]).specs == {"embed": Spec()}
    apart = plan(decoder(), [("embed", None), ("layer", INT4)]).left_alone
    assert apart == {"embed": "as its rule says", "lm_head": "no rule matches"}


def test_a_plan_is_written_down_and_read_back():
    chosen = plan(model(), [("layers.0", INT4), ("**", Spec(weight="nf4", group=4))])
    assert Plan.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


def test_it_is_printed_as_a_table():
    spec = Spec(weight="int4", group=8, symmetric=False, method="gptq")
    text = str(plan(model(), [("layers.0", spec), ("layers.2", None)]))
    assert text == (
        "layers.0  int4 by groups of 8, gptq, zero points\nlayers.2  left alone: as its rule says"
    )


def test_a_plan_of_many_sites_has_a_short_repr():
    chosen = plan(model(), [("layers.0", INT4), ("layers.2", None)])
    assert repr(chosen) == "Plan(1 sites, 1 left alone; print it)"


@pytest.mark.parametrize(
    "rules, message",
    [
        (
            [("**", INT4), ("layers.2", None)],
            r"first for some site, got pattern='layers.2', whose sites .* before it; put it first",
        ),
        ([("layer.0", INT4)], r"got 'layer.0', which matches none of 2 .*nearest: 'layers.0'"),
        ([(r".*\.0", INT4)], r"a glob, not a regular expression, .*write a name like 'layers\.\*"),
        (
            [("**", None)],
            r"must quantize something, got rules for 2 sites.*as its rule says.*; write .*Spec",
        ),
        (
            [("**", Spec(group=16))],
            r"got group=16 for 'layers.0' with 24 inputs; write group=8",
        ),
        (
            [("layers.0", INT4), ("layers.#.**", INT4), ("layers.2", INT4)],
            r"first for some site, got pattern='layers.2', whose sites .* before it",
        ),
    ],
)
def test_rules_that_do_nothing_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        plan(model(), rules)


def test_a_rule_of_wildcards_for_embedding_and_head_alone_is_refused():
    message = (
        r"by name alone, got pattern='\*\*', which matches only such sites; write \('embed', Sp"
    )
    with pytest.raises(ValueError, match=message):
        plan(nnx.Dict(embed=nnx.Embed(40, 8, rngs=nnx.Rngs(0))), [("**", Spec())])
