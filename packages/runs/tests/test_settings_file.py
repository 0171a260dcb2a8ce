# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from dovetail_runs import options_text, read_options
from dovetail_runs.settings_file import option_values, read_toml


@dataclass(frozen=True, kw_only=True)
class Adam:
    """The optimizer."""

    learning_rate: float = field(default=1e-3, metadata={"help": "peak; 0.001: a thousandth"})
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True)
class Settings:
    text: Path = field(metadata={"help": "folder"})
    steps: int = 10
    shuffle: bool = True
    limit: int | None = None
    names: tuple[str, ...] = ()
    kept: tuple[str, ...] = field(default_factory=lambda: ("x",))
    precision: Literal["float32", "bfloat16"] = "float32"
    bits: Literal[4, 8] = 8
    adam: Adam = Adam()


GIVEN = {"text": Path("/é"), "steps": 3, "shuffle": False, "names": ("a", 'b"\\\n\t'), "bits": 4}
GIVEN |= {"learning_rate": 1e-05, "betas": (0.5, float("inf"))}


def _file(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("given", [GIVEN, {}])
def test_a_written_file_has_all_options_and_gives_them_back(tmp_path, given):
    text = options_text(Settings, given)
    again = read_options(_file(tmp_path, text), Settings)
    defaults = {f.name: f.default for c in (Settings, Adam) for f in dataclasses.fields(c)}
    del defaults["text"], defaults["limit"], defaults["adam"]
    assert again == {**defaults, "kept": ("x",), **given}
    assert {type(again[name]) for name in ("shuffle", "learning_rate")} == {bool, float}
    assert "\n# limit = ...\n" in text
    assert "# folder (needed)\n" in text
    assert "\n\n[adam]\n# peak; 0.001: a thousandth\n" in text
    names = tomllib.loads(text).keys()
    assert option_values(Settings, {}).keys() - names <= {"limit", "text"}


def test_values_have_defaults_and_none_without_one():
    values = option_values(Settings, {"steps": 3})
    assert (values["text"], values["steps"], values["kept"]) == (None, 3, ("x",))
    assert values["adam"] == {"learning_rate": 1e-3, "betas": (0.9, 0.999)}


@pytest.mark.parametrize(
    "text, parts",
    [
        (None, ["'{file}'", "No such file", "write one"]),
        (b"\xff", ["must be TOML", "can't decode"]),
        ("a = =", ["must be TOML", "line 1, column"]),
        ("stops = 3", ["text, steps, ", "[adam]", "got stops", "did you mean steps?"]),
        ("betas = 3", ["in its section", "betas at the top", "below a line [adam]"]),
        ("[adam]\nsteps = 3", ["'steps' in section [adam]", "write it above all sections"]),
        ("adam = 3", ["'adam' must be a section", "write [adam] on a line"]),
        ("[adam]\nbeta = 3", ["section [adam]", "'beta'", "did you mean betas?", "write one of"]),
        ("steps = 'x'", ["steps must be a whole number", "got 'x'", "steps = 8"]),
        ("steps = true", ["steps must be a whole number", "got True"]),
        ("shuffle = 1", ["shuffle must be true or false", "shuffle = true"]),
        ("[adam]\nlearning_rate = '0'", ["adam.learning_rate must be a number", "= 0.5"]),
        ("names = 'x'", ["names must be a list, each item a string", '= ["..."]']),
        ("precision = 'float3'", ["one of float32, bfloat16", "mean float32?", '= "float32"']),
        ("bits = 5", ["bits must be one of 4, 8, got 5", "bits = 4"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, text, parts):
    path = tmp_path / "s.toml" if text is None else _file(tmp_path, text)
    with pytest.raises(ValueError, match=r"s\.toml") as raised:
        read_options(path, Settings)
    for part in parts:
        assert part.format(file=path) in str(raised.value)


def test_the_content_is_plain(tmp_path):
    assert read_toml(_file(tmp_path, "a = 1\n[b]\nc = 'd'")) == {"a": 1, "b": {"c": "d"}}
