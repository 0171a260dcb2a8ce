# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_models import Llama3Scaling, Rope
from dovetail_models.hf.rope import read_rope, write_rope
from dovetail_models.hf.table import Keys

NUMBERS = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALING = Llama3Scaling(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192
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
    ],
)
def test_both_conventions_are_read(keys, rope):
    taken = Keys(keys)
    assert read_rope(taken) == rope
    assert taken.extra(frozenset(), ()) == ()


@pytest.mark.parametrize("rope", [PLAIN, SCALED])
def test_both_conventions_are_written(rope):
    keys = write_rope(rope)
    new = {"rope_parameters": keys["rope_parameters"]}
    old = {name: keys[name] for name in ("rope_theta", "rope_scaling")}
    assert keys == old | new
    for part in (old, new, keys):
        assert read_rope(Keys(part)) == rope


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
        read_rope(Keys(keys))
    assert f"rope_theta={old['rope_theta']}" in str(error.value)
    assert "Remove the one that is wrong" in str(error.value)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
    ],
)
def test_another_rope_is_refused(scaling):
    with pytest.raises(ValueError, match="must be of type 'default'") as error:
        read_rope(Keys({"rope_theta": 1e4, "rope_scaling": scaling}))
    kind = scaling.get("rope_type", scaling.get("type"))
    assert f"rope_type={kind!r}" in str(error.value)
    assert "use the library that wrote the file" in str(error.value)
