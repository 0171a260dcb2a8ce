# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import pytest

from dovetail_stack import settings
from dovetail_stack.recipes.options import Shape, Training
from dovetail_stack.recipes.record_options import Tuning
from dovetail_stack.settings import RECIPES, Continue, Distil, Pretrain


def test_options_come_back_from_disk_where_they_belong(tmp_path):
    given = {"text": "/t", "depth": 2, "seed": 7, "skip": ("a", "b"), "minutes": 1.5}
    made = settings.create(Pretrain, given)
    sizes = {"embed": 192, "depth": 2, "heads": 3, "kv_heads": 1, "mlp": 512}
    assert made.shape == Shape(family="llama", **sizes)  # the family's are said
    help = " ".join(item.metadata["help"] for item in dataclasses.fields(Shape))
    assert all(f"; 0: {size}" in help for size in (192, 4, 512, 8, 2))
    assert made.training == Training(seed=7)
    assert made.files.skip == ("a", "b")
    made.save(tmp_path)
    assert settings.load(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["recipe"] == "pretrain"
    assert content["settings"]["duration"] == {"steps": None, "minutes": 1.5}


def test_a_run_keeps_family_sizes_and_the_keys_of_its_file(tmp_path):
    given = {"text": "/t", "family": "mixtral", "experts": 4, "active_experts": 1}
    made = settings.create(Pretrain, given)
    assert (made.shape.expert_mlp, made.shape.mlp, made.shape.kv_heads) == (512, 0, 1)
    made.save(tmp_path / "a")
    assert settings.load(tmp_path / "a") == made
    # A 0 or an absent option stands for the family's, on a later command line too.
    assert settings.differences({**given, "expert_mlp": 0, "kv_heads": 1}, made) == {}
    assert settings.differences({"experts": 8, "family": "qwen3_moe"}, made) == {
        "experts": "--experts 8 (the run has 4)",
        "family": "--family qwen3_moe (the run has mixtral)",
    }
    assert not {"family", "config", "experts", "active_experts", "expert_mlp"} & settings.CHANGEABLE
    described = settings.create(Distil, {"text": "/t", "teacher": "/m", "config": "/c"})
    described = dataclasses.replace(described, keys={"model_type": "llama"})
    described.save(tmp_path / "b")
    assert settings.load(tmp_path / "b") == described
    assert settings.changed({"steps": 2}, described).keys == {"model_type": "llama"}
    assert settings.differences({"depth": 2}, described) == {"depth": "--depth 2 (the run has 0)"}


def test_a_run_from_before_families_is_a_llama(tmp_path):
    made = settings.create(Pretrain, {"text": "/t"})
    made.save(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    for name in ("config", "family", "experts", "active_experts", "expert_mlp"):
        del content["settings"]["shape"][name]
    del content["settings"]["keys"], content["settings"]["training"]["balance"]
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert settings.load(tmp_path) == made


def test_every_recipe_keeps_its_own_kind(tmp_path):
    tuned = settings.create(Continue, {"text": "/t", "model": "/m", "lora_rank": 4})
    assert tuned.training == Tuning(lora_rank=4)
    distilled = settings.create(Distil, {"text": "/t", "teacher": "/m", "alpha": 0.25})
    assert distilled.distillation.alpha == 0.25
    for name, made in {"c": tuned, "d": distilled}.items():
        made.save(tmp_path / name)
        assert settings.load(tmp_path / name) == made


def test_steps_are_set_once_they_are_known():
    made = settings.create(Distil, {"text": "/t", "teacher": "/m", "minutes": 2.0})
    assert made.with_steps(9).duration == type(made.duration)(steps=9, minutes=2.0)


@pytest.mark.parametrize("kind", RECIPES.values())
def test_no_field_is_in_two_parts_and_each_has_help(kind):
    fields = [f for part in settings.parts(kind).values() for f in dataclasses.fields(part)]
    names = [item.name for item in fields]
    assert len(names) == len(set(names))
    assert all(item.metadata["help"] for item in fields)


def test_differences_name_the_option_and_both_values():
    stored = settings.create(Pretrain, {"text": "/t", "depth": 2})
    assert settings.differences({"text": "/t", "depth": 2}, stored) == {}
    assert settings.differences({"depth": 3, "vocab_size": 900}, stored) == {
        "depth": "--depth 3 (the run has 2)",
        "vocab_size": "--vocab-size 900 (the run has 4096)",
    }


def test_changed_settings_keep_the_others_and_say_both_values():
    given = {"text": "/t", "steps": 9, "skip": ("a",), "learning_rate": 0.1}
    stored = dataclasses.replace(settings.create(Pretrain, given), skipped=("z",))
    made = settings.changed({"steps": 12, "ema": 0.5}, stored)
    assert settings.changes(stored, made) == {"steps": [9, 12], "ema": [0.0, 0.5]}
    assert (made.skipped, made.files.skip, made.training.learning_rate) == (("z",), ("a",), 0.1)
    assert settings.changes(made, made) == {}
    with pytest.raises(ValueError, match=r"ema must lie in .*got ema=2: try"):
        settings.changed({"ema": 2}, stored)


def test_what_a_launch_may_change_are_settings_of_some_recipe():
    known = {
        item.name
        for kind in settings.RECIPES.values()
        for part in settings.parts(kind).values()
        for item in dataclasses.fields(part)
    }
    assert known >= settings.CHANGEABLE
    assert set(settings.CONVERTED) <= settings.CHANGEABLE


def test_a_zero_that_stands_for_a_default_is_no_difference():
    given = {"text": "/t", "model": "/m", "lora_rank": 2, "learning_rate": 0.0}
    stored = settings.create(Continue, given)
    assert settings.flat(stored)["learning_rate"] == 2e-4
    assert settings.differences(given, stored) == {}
    assert settings.differences({"learning_rate": 0.1}, stored) == {
        "learning_rate": "--learning-rate 0.1 (the run has 0.0002)"
    }


@pytest.mark.parametrize(
    "kind, given, option",
    [
        (Pretrain, {}, "--text DIR"),
        (Continue, {"text": "/t"}, "--model MODEL"),
        (Distil, {}, "--text DIR"),
    ],
)
def test_what_a_new_run_needs_is_named(kind, given, option):
    with pytest.raises(ValueError, match=f"a new run of {kind.recipe} needs .* pass {option}"):
        settings.create(kind, given)


PART = {"text": "x", "pattern": "*", "skip": [], "held_out": 0.1}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        "[]",
        '{"recipe": "bake", "settings": {}}',
        '{"recipe": "pretrain", "settings": {}}',
        '{"recipe": "pretrain", "settings": []}',
        json.dumps({"recipe": "pretrain", "settings": {"files": {**PART, "unknown": 1}}}),
        '{"text": "x", "shape": {}}',
        b"\xff\xfe",
    ],
)
def test_a_file_of_another_version_says_to_start_a_new_run(tmp_path, content):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match="start a new run with another --out"):
        settings.load(tmp_path)


def test_an_unknown_field_of_a_whole_file_is_refused(tmp_path):
    made = settings.create(Pretrain, {"text": "/t"})
    made.save(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    content["settings"]["shape"]["wings"] = 2
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="wings"):
        settings.load(tmp_path)
