# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import DynamicScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling
from dovetail_models.tables.config_json import Keys
from dovetail_models.tables.rope import read_rope, write_rope

NUMBERS = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALING = Llama3Scaling(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192
)
OUTER = {"max_length": 64, "width": 4}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
LONG = LongRopeScaling(
    short_factor=(1.0, 1.5), long_factor=(2.0, 5.0), original_length=16, factor=4.0
)
PLAIN, SCALED = Rope(theta=5e5), Rope(theta=5e5, scaling=SCALING)


@pytest.mark.parametrize(
    "keys, rope",
    [
        ({}, Rope(theta=10_000.0)),
        ({"rope_theta": 500_000}, PLAIN),
        ({"rope_theta": 5e5, "rope_scaling": None}, PLAIN),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "default"}}, PLAIN),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **NUMBERS}}, SCALED),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, PLAIN),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **NUMBERS}}, SCALED),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **NUMBERS}}, SCALED),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            Rope(theta=5e5, scaling=YarnScaling(factor=4.0, original_length=64)),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "dynamic", "factor": 2}},
            Rope(theta=5e5, scaling=DynamicScaling(factor=2.0, original_length=64)),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "longrope", **FACTORS}}
            | {"original_max_position_embeddings": 16},
            Rope(theta=5e5, scaling=LONG),
        ),
        ({"rope_theta": 5e5, "partial_rotary_factor": 0.5}, PLAIN),
    ],
)
def test_both_conventions_are_read(keys, rope):
    taken = Keys(keys)
    assert read_rope(taken, **OUTER) == rope
    assert taken.extra(frozenset(), ()) == ()


@pytest.mark.parametrize("rope", [PLAIN, SCALED, Rope(theta=5e5, scaling=LONG)])
def test_both_conventions_are_written(rope):
    keys = write_rope(rope)
    new = {"rope_parameters": keys["rope_parameters"]}
    old = {name: keys[name] for name in ("rope_theta", "rope_scaling")}
    assert keys == old | new
    for part in (old, new, keys):
        assert read_rope(Keys(part), **OUTER) == rope


@pytest.mark.parametrize(
    "old",
    [
        {"rope_theta": 1e4},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **NUMBERS, "factor": 8.0}},
    ],
)
def test_conventions_that_disagree_are_refused(old):
    keys = {**old, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **NUMBERS}}
    with pytest.raises(ValueError, match="must say the same as rope_parameters") as error:
        read_rope(Keys(keys), **OUTER)
    assert f"rope_theta={old['rope_theta']}" in str(error.value)
    assert "Remove the one that is wrong" in str(error.value)


@pytest.mark.parametrize(
    "scaling, got",
    [
        ({"rope_type": "llama3", "factor": 8.0}, "rope_type='llama3'"),
        ({"type": "su", **FACTORS}, "rope_type='su'"),
        ({"rope_type": "default", "factor": 2.0}, "rope_type='default'"),
        ({"factor": 2.0}, "rope_type='default'"),
        ({"type": "yarn", "factor": 4.0, "extrapolation_factor": 2}, "'extrapolation_factor': 2"),
        (
            {"type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.5},
            "partial_rotary_factor=0.5",
        ),
        ({"type": "linear", "factor": "4"}, "factor='4'"),
        ({"type": "yarn", "factor": 4.0, "truncate": 0}, "truncate=0"),
        ({"type": "longrope", **FACTORS, "long_factor": [1.0, 2.0, 3.0]}, "long_factor=(1.0,"),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "head, got 1."),
        ("linear", "rope_scaling='linear'"),
    ],
)
def test_another_rope_is_refused(scaling, got):
    with pytest.raises(ValueError, match="must") as error:
        read_rope(Keys({"rope_theta": 1e4, "rope_scaling": scaling}), **OUTER)
    assert got in str(error.value)
    assert any(words in str(error.value) for words in ("use the library", "Correct", "Pass"))


def test_what_transformers_does_not_read_is_logged(caplog):
    read_rope(Keys({"partial_rotary_factor": 0.5}), **OUTER)
    scaling = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}
    read_rope(Keys({"rope_scaling": scaling}), **OUTER)
    yarn = {"type": "yarn", "factor": 4.0}
    plain, other = (
        read_rope(Keys({"rope_scaling": yarn | more}), **OUTER)
        for more in ({}, {"attn_factor": 0.878})
    )
    assert other == plain
    assert "does not depend on attn_factor=0.878" in caplog.text
    assert "Whole heads are rotated in spite of partial_rotary_factor=0.5" in caplog.text
    assert "does not depend on original_max_position_embeddings=32" in caplog.text
