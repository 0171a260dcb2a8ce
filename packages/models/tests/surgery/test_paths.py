# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from flax import nnx

from dovetail_models import abstract, llama
from dovetail_models.surgery.paths import matches, select, trainable

CONFIG = llama(vocab_size=31, embed=12, depth=11, heads=2, kv_heads=1, mlp=20)


@pytest.fixture(scope="module")
def model():
    return abstract(CONFIG)


@pytest.mark.parametrize(
    "pattern, path, matched",
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.c", "a.c", True),
        ("a.l*_b", "a.lora_b", True),
        ("a.l*", "a.l", True),
        ("a.l*", "a.l.m", False),
        ("**.c", "c", True),
        ("**.c", "a.b.c", True),
        ("**.c", "a.bc", False),
        ("a.**", "a", True),
        ("a.**", "a.b.c", True),
        ("a.**", "ab", False),
        ("a.**.c", "a.c", True),
        ("a.**.c", "a.b.b.c", True),
        ("{a,b}.{c,d}", "b.c", True),
        ("{a,b}.{c,d}", "c.b", False),
        ("x.{a.b,c}", "x.a.b", True),
        ("x.{a*,c}d", "x.add", True),
        ("x.{a*,c}d", "x.d", False),
        ("a+.b", "aa.b", False),  # nothing else has a meaning
        (("a", "b"), "b", True),
    ],
)
def test_matches(pattern, path, matched):
    assert matches(pattern, path) == matched


def test_modules_come_by_path_in_the_order_of_the_layers(model):
    found = select(model, "layers.*.attn.{v,q}")
    assert list(found) == [f"layers.{i}.attn.{name}" for i in range(11) for name in "qv"]
    assert found["layers.10.attn.q"] is model.layers[10].attn.q
    assert list(select(model, ("norm", "layers.3"))) == ["layers.3", "norm"]
    assert "" not in select(model, "**")


def test_a_filter_takes_parameters_by_path(model):
    chosen, rest = nnx.state(model, trainable("layers.{0,10}.attn.**", model=model), ...)
    paths = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(chosen)}
    assert paths == {f"layers.{i}.attn.{name}.kernel" for i in (0, 10) for name in "qkvo"}
    total = len(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    assert len(nnx.to_flat_state(rest)) == total - len(paths)


def test_a_filter_is_a_value_that_says_what_it_takes():
    assert trainable("a.*") == trainable("a.*") != trainable("a.b")
    assert hash(trainable(("a", "b"))) == hash(trainable(("a", "b")))
    assert "a.*" in repr(trainable("a.*"))


def test_a_filter_takes_parameters_only():
    assert trainable("**")(("a",), nnx.Param(0.0))
    assert not trainable("**")(("a",), nnx.BatchStat(0.0))


@pytest.mark.parametrize(
    "call, parts",
    [
        (
            lambda model: select(model, "layers.*.atn.q"),
            ["must match a module", "pattern='layers.*.atn.q'", ".attn.q)", "** for any number"],
        ),
        (
            lambda model: select(model, ("norm", "nrom")),
            ["must match a module", "pattern='nrom'", "(near: norm)", "Write paths as"],
        ),
        (
            # The path of a module, where parameters are meant.
            lambda model: trainable("layers.0.attn", model=model),
            ["must match a parameter", "pattern='layers.0.attn'", "'embed.embedding'"],
        ),
        (
            lambda model: trainable("layers.{0,1.attn"),
            ["closed braces", "pattern='layers.{0,1.attn'", "Write it as"],
        ),
        (
            lambda model: select(model, ()),
            ["must be a pattern", "pattern=()", "Use '**'"],
        ),
        (
            lambda model: select(model, "layers..attn"),
            ["single dots", "pattern='layers..attn'", "Write it as"],
        ),
    ],
)
def test_what_matches_nothing_is_refused(model, call, parts):
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        call(model)
    for part in parts:
        assert part in str(error.value)
