# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from dovetail_models.tables.config_json import ANY, ConfigJson, Key, Keys, near


def test_near_names():
    assert near("hiden_size", ["hidden_size", "vocab_size"]) == " (near: hidden_size)"
    assert near("xyz", ["hidden_size"]) == ""


def test_a_missing_key_is_refused():
    with pytest.raises(ValueError, match="must hold 'hidden_size'") as error:
        Keys({"hiden_size": 3}).take("hidden_size", required=True)
    assert "keys=['hiden_size'] (near: hiden_size)" in str(error.value)
    assert "Add 'hidden_size'" in str(error.value)


def test_a_value_that_no_module_computes_is_refused():
    keys = Keys({"hidden_act": "gelu"})
    with pytest.raises(ValueError, match=r"must be one of \('silu',\)") as error:
        keys.expect("hidden_act", "silu")
    assert "hidden_act='gelu'" in str(error.value)
    assert "use the library that wrote the file" in str(error.value)


def test_an_unknown_key_is_refused_unless_allowed():
    values = {"logit_scale": 0.5, "bos_token_id": [1, 2]}
    with pytest.raises(ValueError, match="must be known") as error:
        Keys(values).extra(frozenset({"bos_token_id"}), ())
    assert "got logit_scale=0.5" in str(error.value)
    assert "pass allow=('logit_scale',)" in str(error.value)
    kept = Keys(values).extra(frozenset({"bos_token_id"}), ("logit_scale",))
    assert kept == (("bos_token_id", "[1, 2]"), ("logit_scale", "0.5"))


def builder(*, embed, eps, window=None):
    return {"embed": embed, "eps": eps, "window": window}


FORMAT = ConfigJson(
    builder=builder,
    keys=(
        Key("hidden_size", "embed"),
        Key("eps", "eps", 0.5, ANY),
        Key("window", "window", 7, null=True),
        Key("depth", "depth"),
    ),
    own=(Key("width", "embed"),),
    absent={"eps": 0.25},
    fixed={"act": ("silu", "swish")},
    expected={"bias": (False,)},
    arguments=lambda config: config,
    also=lambda config: {"twice": 2 * config["embed"]},
)


@pytest.mark.parametrize(
    "values, eps, window",
    [({"act": "swish", "bias": None}, 0.25, 7), ({"eps": 2, "window": None}, 2, None)],
)
def test_the_keys_of_a_builder_are_read_and_written(values, eps, window):
    config = FORMAT.read(Keys({"width": 3, **values}))
    assert config == {"embed": 3, "eps": eps, "window": window}
    written = {"act": "silu", "width": 3, "eps": eps, "window": window, "twice": 6}
    assert FORMAT.write(config) == written


@pytest.mark.parametrize(
    "values, error",
    [
        ({"act": "gelu", "width": 3}, "'act' must be one of ('silu', 'swish'), got act='gelu'"),
        ({"bias": True, "width": 3}, "'bias' must be one of (False,), got bias=True"),
        ({"width": 0}, "'width' must be a whole number above 0, got width=0. Correct"),
        ({"hidden_size": 3}, "config.json must hold 'width'"),
    ],
)
def test_other_keys_are_refused(values, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        FORMAT.read(Keys(values))
