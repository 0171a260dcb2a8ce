# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from dovetail_runs import add_options, from_options


@dataclass(frozen=True, kw_only=True)
class Adam:
    """The optimizer."""

    learning_rate: float = field(default=1e-3, metadata={"help": "peak, 100% of the time"})
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True)
class Settings:
    text: Path
    steps: int = 10
    name: str = "run"
    shuffle: bool = True
    limit: int | None = None
    widths: tuple[int, ...] = ()
    files: tuple[Path, ...] = ()
    precision: Literal["float32", "bfloat16"] = "float32"
    bits: Literal[4, 8] = 8
    mode: Literal["a", "b"] | None = None
    family: str = field(default="llama", metadata={"choices": ("llama", "gemma3")})
    notes: tuple[str, ...] = field(default_factory=lambda: ("x",))
    adam: Adam = Adam()


def _parsed(*line, kind=Settings):
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    return from_options(kind, parser.parse_args(list(line)))


def test_options_that_were_not_typed_have_their_defaults():
    assert _parsed("--text", "t") == Settings(text=Path("t"))


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("--steps 3", "steps", 3),
        ("--name a-b", "name", "a-b"),
        ("--shuffle", "shuffle", True),
        ("--no-shuffle", "shuffle", False),
        ("--limit 0", "limit", 0),
        ("--widths 1 2 3", "widths", (1, 2, 3)),
        ("--files a b", "files", (Path("a"), Path("b"))),
        ("--precision bfloat16", "precision", "bfloat16"),
        ("--bits 4", "bits", 4),
        ("--mode b", "mode", "b"),
        ("--family gemma3", "family", "gemma3"),
        ("--notes y z", "notes", ("y", "z")),
        ("--learning-rate 1e-2", "adam", Adam(learning_rate=0.01)),
        ("--betas 0.5 1", "adam", Adam(betas=(0.5, 1.0))),
    ],
)
def test_each_type_has_an_option(line, name, value):
    settings = _parsed("--text", "t", *line.split())
    assert settings == Settings(**{"text": Path("t"), name: value})
    assert repr(getattr(settings, name)) == repr(value)


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "the following arguments are required: --text"),
        ("--text t --steps 1.5", "argument --steps: invalid int value: '1.5'"),
        ("--text t --precision half", "argument --precision: invalid choice: 'half'"),
        ("--text t --bits 3", "argument --bits: invalid choice: 3"),
        ("--text t --family bert", "argument --family: invalid choice: 'bert'"),
        ("--text t --betas 1", "argument --betas: expected 2 arguments"),
        ("--text t --widths", "argument --widths: expected at least one argument"),
    ],
)
def test_a_wrong_value_is_refused_as_typed(line, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        _parsed(*line.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_has_groups_texts_and_defaults(capsys):
    with pytest.raises(SystemExit):
        _parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "adam: The optimizer." in shown
    assert "peak, 100% of the time (0.001)" in shown
    assert "--steps STEPS (10)" in shown
    assert "--shuffle, --no-shuffle (True)" in shown
    assert "--limit LIMIT --" in shown  # without a default to tell


@dataclass(frozen=True)
class Muon:
    learning_rate: float = 0.02


@dataclass(frozen=True)
class Both:
    adam: Adam = Adam()
    muon: Muon = Muon()


def test_groups_with_a_field_of_the_same_name_are_refused():
    refused = "names of their own, got learning_rate in Adam and in Muon: rename one"
    with pytest.raises(ValueError, match=refused):
        _parsed(kind=Both)


@dataclass(frozen=True)
class Inner:
    seed: int


@dataclass(frozen=True)
class Outer:
    inner: Inner


def test_a_group_may_have_an_option_that_is_needed():
    assert _parsed("--seed", "3", kind=Outer) == Outer(Inner(3))
    with pytest.raises(SystemExit):
        _parsed(kind=Outer)


def _class(kind):
    return dataclass(type("Odd", (), {"__annotations__": {"x": kind}, "x": None}))


@pytest.mark.parametrize(
    "kind", [dict, list, list[int], tuple[int, str], tuple, int | str, complex, bytes], ids=str
)
def test_a_field_of_another_type_is_refused_by_name(kind):
    with pytest.raises(TypeError, match=r"a setting must be .*, got x: .*: declare it without"):
        _parsed(kind=_class(kind))


@dataclass(frozen=True)
class Declared:
    text: str = field(default="", metadata={"type": str.upper, "metavar": "TEXT", "help": "read"})
    allow: tuple[str, ...] = field(default=(), metadata={"action": "append", "metavar": "KEY"})
    dry: bool = field(default=False, metadata={"action": "store_true"})
    seconds: float | None = field(default=None, metadata={"nargs": "?", "const": 9.0})


def test_arguments_in_the_metadata_replace_those_of_the_type(capsys):
    line = ["--text", "a", "--allow", "k", "--allow", "l", "--dry", "--seconds"]
    wanted = Declared(text="A", allow=("k", "l"), dry=True, seconds=9.0)
    assert _parsed(*line, kind=Declared) == wanted
    with pytest.raises(SystemExit):
        _parsed("--help", kind=Declared)
    shown = " ".join(capsys.readouterr().out.split())
    assert "[--text TEXT] [--allow KEY] [--dry] [--seconds [SECONDS]] options" in shown


def test_an_option_beside_those_of_the_settings_is_left_alone():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    add_options(parser, Adam)
    args = parser.parse_args(["--out", "o", "--betas", "0", "1"])
    assert (from_options(Adam, args), args.out) == (Adam(betas=(0.0, 1.0)), "o")
