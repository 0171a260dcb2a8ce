# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest

from dovetail_runs import DamagedRun
from dovetail_runs.settings import changes, flat, from_json, short, to_json


@dataclass(frozen=True, kw_only=True)
class Adam:
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    widths: tuple[int, ...] = (8, 16)
    weights: Path | None = None
    groups: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str
    adam: Adam = Adam()
    model: Model = Model()
    adams: tuple[Adam, ...] = ()
    text: Path = Path("/t")
    precision: Literal["float32", "bfloat16"] = "float32"
    shuffle: bool = True
    names: list[str] = field(default_factory=list)
    either: int | str = 3
    bound: float = math.inf
    extra: Any = None
    derived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        object.__setattr__(self, "derived", len(self.name))


FULL = Settings(
    name="größe",
    adam=Adam(rate=2, betas=(0.5, 1.0), clip=1.0),
    model=Model(widths=(1, 2, 3), weights=Path("w"), groups=((1, 2), (3, 4))),
    adams=(Adam(), Adam(clip=0.5)),
    text=Path("/d/text"),
    precision="bfloat16",
    shuffle=False,
    names=["a", "b"],
    either="x",
    bound=-math.inf,
    extra={"a": [1, None]},
)


@pytest.mark.parametrize("settings", [Settings(name="x"), FULL], ids=["defaults", "all"])
def test_settings_come_back_through_json(settings):
    text = json.dumps(to_json(settings), allow_nan=False)
    restored = from_json(Settings, json.loads(text))
    assert restored == settings
    assert repr(restored) == repr(settings).replace("rate=2,", "rate=2.0,")  # types too
    assert "derived" not in text


def test_a_float_that_json_wrote_as_a_whole_number_is_a_float_again():
    assert repr(from_json(Adam, {"rate": 1, "clip": 0, "betas": [0, 1]})) == (
        "Adam(rate=1.0, betas=(0.0, 1.0), clip=0.0)"
    )
    assert math.isnan(from_json(Adam, {"rate": "nan"}).rate)


def test_a_field_that_was_not_stored_has_its_default():
    assert from_json(Settings, {"name": "x", "adam": {}}) == Settings(name="x")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"name": "x", "old": 1, "gone": 2}, "place must have the fields of Settings, got gone, "),
        ({"name": "x", "adam": {"mu": 1}}, "place.adam must have the fields of Adam, got mu: read"),
        ({}, "place must fit Settings, got .*missing .* 'name'"),
        ({"name": ""}, "place must fit Settings, got name must not be empty"),
        ({"name": 5}, "place.name must be of type str, got 5"),
        ({"name": "x", "shuffle": 1}, "place.shuffle must be of type bool, got 1"),
        ({"name": "x", "adam": {"rate": True}}, "place.adam.rate must be of type float, got True"),
        ({"name": "x", "adam": {"rate": "low"}}, "place.adam.rate must be of type float, got 'lo"),
        ({"name": "x", "adam": 3}, "place.adam must be a group of settings, got 3"),
        ({"name": "x", "model": {"widths": [1.5]}}, r"model.widths\[0\] must be of type int, got"),
        ({"name": "x", "model": {"widths": "12"}}, "model.widths must be a list for .*, got '12'"),
        ({"name": "x", "model": {"widths": None}}, "model.widths must be a list for .*, got None"),
        ({"name": "x", "adam": {"betas": [1, 2, 3]}}, "betas must be a list for .*, got .1, 2, 3"),
        ({"name": "x", "adam": {"betas": [1]}}, r"adam.betas must be a list for .*, got \[1\]"),
    ],
)
def test_what_does_not_fit_the_class_is_named(values, message):
    with pytest.raises(DamagedRun, match=message):
        from_json(Settings, values, place="place")


def test_mappings_are_settings_too():
    settings = MappingProxyType({"a": {"b": (1, 2.5)}, "path": Path("x"), "none": None})
    assert to_json(settings) == {"a": {"b": [1, 2.5]}, "path": "x", "none": None}
    assert to_json({"rates": [math.nan, math.inf, -math.inf]}) == {"rates": ["nan", "inf", "-inf"]}
    assert to_json({}) == {}


@pytest.mark.parametrize(
    "settings", [3, "text", [("a", 1)], Settings, None, np.zeros(2)], ids=lambda v: repr(v)[:20]
)
def test_what_is_no_group_is_refused(settings):
    refused = r"settings must be a dataclass or a mapping, got .* of type \w+: pass vars\(settings"
    with pytest.raises(TypeError, match=refused):
        to_json(settings)


@pytest.mark.parametrize(
    "value",
    [object(), {1}, b"x", np.zeros(2), np.float32(1.5), np.int64(1), len, 1j],
    ids=lambda v: repr(v)[:20],
)
def test_a_value_without_a_form_in_json_is_named(value):
    refused = r"a setting must be .*, got settings.model.sizes\[1\]=.* of type .*: write its name"
    with pytest.raises(TypeError, match=refused):
        to_json({"model": {"sizes": [1, value]}})


def test_a_name_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match=r"names in settings.a must be strings, got 1: write str"):
        to_json({"a": {1: 2}})


def test_flat_names_groups_with_a_dot():
    values = {"a": {"b": {"c": 1}, "d": []}, "e": {}, "f": None}
    assert flat(values) == {"a.b.c": 1, "a.d": [], "e": {}, "f": None}


def test_changes_have_both_values():
    before = {"a": {"b": 1, "c": 2}, "gone": 5, "same": [1, {"x": None}]}
    after = {"a": {"b": 1.0, "c": 3}, "new": 0, "same": [1, {"x": None}]}
    assert changes(before, after) == {"a.c": [2, 3], "gone": [5, None], "new": [None, 0]}
    assert changes(before, before) == {}


def test_a_short_name_stands_for_one_field_only():
    tables = [{"adam.rate": 1, "adam.clip": 2, "steps": 3}, {"muon.rate": 4, "steps": 5}]
    assert short(tables) == [
        {"adam.rate": 1, "clip": 2, "steps": 3},
        {"muon.rate": 4, "steps": 5},
    ]
    assert short([{"a.steps": 1}, {"steps": 2}]) == [{"a.steps": 1}, {"steps": 2}]


def test_every_row_of_a_table_keeps_a_name_of_its_own():
    names = ["x", "a.x", "b.x", "a.b.x", "y", "a.z"]
    (table,) = short([dict.fromkeys(names, 0)])
    assert list(table) == ["x", "a.x", "b.x", "a.b.x", "y", "z"]


def test_frozen_settings_stay_as_they_were():
    before = dataclasses.asdict(FULL)
    to_json(FULL)
    assert dataclasses.asdict(FULL) == before
