# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings in a TOML file: written, read back, mixed with typed options, refused."""

import dataclasses
import tomllib

import pytest

from dovetail_runs.settings import help_of
from dovetail_stack import settings, settings_file
from dovetail_stack.recipes.options import Devices
from dovetail_stack.settings import RECIPES, Chat, Continue, Distil, Pretrain

GIVEN = {
    "pretrain": {
        "text": "/t",
        "family": "mixtral",
        "experts": 4,
        "skip": ("a", 'b"\\\n'),
        "fsdp": 2,
    },
    "continue": {"text": "/t", "model": "/m", "lora_rank": 4, "precision": "bfloat16"},
    "distil": {"text": "/é", "teacher": "/m", "alpha": 0.25, "minutes": 1.5, "config": "/c"},
    "chat": {"records": ("/a.jsonl", "/b.jsonl"), "model": "/m", "train_on": "last", "prompts": 0},
    "prefer": {
        "records": ("/p",),
        "model": "/m",
        "lora_rank": 2,
        "quantize": "int8",
        "beta": 0.5,
        "directory_sampling": True,
    },
    "reward": {"records": ("/p",), "model": "/m", "center": 0.25, "margin": "gap"},
    "embed": {"records": ("/p",), "model": "/m", "negative": "other", "chunks": 2},
}


def _file(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_a_written_file_is_complete_and_gives_equal_settings(tmp_path, name, given):
    kind, values = RECIPES[name], GIVEN[name] if given else {}
    text = settings_file.written(kind, values)
    again = settings_file.read(_file(tmp_path, text), kind)
    assert values.items() <= again.items()
    # What is not in it is in a comment: it has no default, or None, which TOML lacks.
    groups = [*settings.parts(kind).values(), Devices]
    items = [item for group in groups for item in dataclasses.fields(group)]
    for item in items:
        if item.name not in again:
            assert item.default in (None, dataclasses.MISSING)
            assert f"\n# {item.name} = ...\n" in text
        elif item.name not in values:
            assert again[item.name] == item.default
    comments = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    assert all(help_of(item, in_words=False) in comments for item in items)
    assert settings_file.recipe_of(_file(tmp_path, text)) == name
    needed = {"text": "/t", "records": ("/r",), "model": "/m", "teacher": "/m"}
    groups = {f.name for g in settings.parts(kind).values() for f in dataclasses.fields(g)}

    def made(options):
        return settings.create(kind, {k: v for k, v in options.items() if k in groups})

    assert made({**needed, **again}) == made({**needed, **values})
    assert settings_file.written(kind, again) == text


def test_types_are_those_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[files]\ntext = "x"\nskip = []\n[training]\nema = 0\n[duration]\nminutes = 3\n'
    given = settings_file.read(_file(tmp_path, text), Pretrain)
    assert given == {"text": str(tmp_path / "x"), "skip": (), "ema": 0.0, "minutes": 3.0}
    assert [type(given[k]) for k in ("ema", "minutes")] == [float, float]


def test_typed_options_replace_those_of_the_file(tmp_path):
    path = _file(tmp_path, "[shape]\ndepth = 3\nembed = 8\n[duration]\nsteps = 5\n")
    assert settings_file.merged(path, Pretrain, {"depth": 2, "minutes": 1.0}) == {
        "depth": 2,
        "embed": 8,
        "minutes": 1.0,
    }


def test_every_axis_of_the_mesh_has_a_default():
    assert settings.AXES == ("data", "fsdp", "tensor", "context", "expert")
    assert set(dataclasses.asdict(Devices()).values()) == {1}


@pytest.mark.parametrize(
    "text, parts",
    [
        (None, ["'{file}'", "No such file", "write one"]),
        (b"\xff", ["must be TOML", "can't decode"]),
        ("a = =", ["must be TOML", "line 1, column"]),
        ("depth = 3", ["in its section", "depth at the top", "below a line [shape]"]),
        ("[shap]\ndepth = 3", ["recipe, [files], [duration]", "got [shap]", "did you mean shape?"]),
        ("shape = 3", ["'shape' must be a section", "write [shape] on a line"]),
        ("[shape]\ndept = 3", ["section [shape]", "'dept'", "did you mean depth?", "write one of"]),
        ("[files]\ndepth = 3", ["in its section", "'depth' in section [files]", "a line [shape]"]),
        ("[training]\nglobal-batch = 3", ["'global-batch'", "did you mean global_batch?"]),
        (
            "[shape]\ndepth = 'x'",
            ["must be a whole number", "got 'x'", "shape.depth = 8"],
        ),
        ("[shape]\ndepth = true", ["shape.depth must be a whole number", "got True"]),
        ("[shape]\ndepth = 2.0", ["shape.depth must be a whole number", "got 2.0"]),
        ("[training]\nema = '0'", ["training.ema must be a number", "training.ema = 0.5"]),
        ("[files]\ntext = 3", ["files.text must be a string", 'files.text = "..."']),
        ("[files]\nskip = 'x'", ["files.skip must be a list, each item a string", '= ["..."]']),
        ("[files]\nskip = [1]", ["files.skip must be a list, each item a string", "got [1]"]),
        (
            "[training]\nprecision = 'float3'",
            ["one of float32, bfloat16", "'float3'", "mean float32?", '= "float32"'],
        ),
        ("[duration]\nsteps = 1\nminutes = 1.0", ["steps or minutes", "section [duration]"]),
        (
            "recipe = 'distil'",
            ["the recipe pretrain", "recipe = 'distil'", "train distil"],
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, text, parts):
    path = tmp_path / "s.toml" if text is None else _file(tmp_path, text)
    with pytest.raises(ValueError, match=r"s\.toml") as raised:
        settings_file.read(path, Pretrain)
    for part in parts:
        assert part.format(file=path) in str(raised.value)


def test_true_and_false_are_no_numbers(tmp_path):
    given = settings_file.read(_file(tmp_path, "[monitoring]\ndirectory_sampling = true"), Chat)
    assert given == {"directory_sampling": True}
    with pytest.raises(ValueError, match=r"must be true or false, got 1 .*_sampling = true"):
        settings_file.read(_file(tmp_path, "[monitoring]\ndirectory_sampling = 1"), Chat)


def test_an_unknown_recipe_of_a_file_names_a_near_one(tmp_path):
    path = _file(tmp_path, "recipe = 'pretain'")
    with pytest.raises(ValueError, match=r"pretrain, continue, distil, .* got .* mean pretrain\?"):
        settings_file.recipe_of(path)
    assert settings_file.recipe_of(_file(tmp_path, "")) is None


def test_values_that_do_not_fit_are_not_written():
    with pytest.raises(ValueError, match="heads must divide"):
        settings_file.written(Pretrain, {"heads": 5})
    with pytest.raises(ValueError, match="did you mean mixtral"):
        settings_file.written(Distil, {"family": "mixtrl"})
    with pytest.raises(ValueError, match="ema must lie"):
        settings_file.written(Continue, {"ema": 2.0})


def test_a_file_is_plain_toml():
    content = tomllib.loads(settings_file.written(Pretrain, {"depth": 2}))
    assert content.keys() == {"recipe", *settings.parts(Pretrain), "devices"}
    assert content["shape"]["depth"] == 2
