# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from flax import nnx

from dovetail_models import abstract, llama
from dovetail_models.adapters.paths import select, trainable

CONFIG = llama(vocab_size=31, embed=12, depth=11, heads=2, kv_heads=1, mlp=20)


@pytest.fixture(scope="module")
def model():
    return abstract(CONFIG)


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
            ["must match a module", "'layers.*.atn.q'", "none of", "nearest: 'layers.", ".attn.q'"],
        ),
        (
            lambda model: select(model, ("norm", "nrom")),
            ["must match a module", "got 'nrom'", "the nearest: 'norm'"],
        ),
        (
            # The path of a module, where parameters are meant.
            lambda model: trainable("layers.0.attn", model=model),
            ["must match a parameter", "'layers.0.attn'", "write 'layers.0.attn.**'", "matches 4"],
        ),
        (
            lambda model: trainable("layers.{0,1.attn"),
            ["braces must be closed", "'layers.{0,1.attn'", "write a name like"],
        ),
        (
            lambda model: select(model, ()),
            ["must be a pattern", "got none", "write '**'"],
        ),
        (
            lambda model: select(model, "layers..attn"),
            ["single dots", "'layers..attn'", "write a name like"],
        ),
    ],
)
def test_what_matches_nothing_is_refused(model, call, parts):
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        call(model)
    for part in parts:
        assert part in str(error.value)
