# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rewinding, against fresh runs and orders made by hand; the command is tested by integration."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx

from dovetail_checkpoint import rewind
from dovetail_data import Pretrained, batches
from dovetail_stack import rewinding, settings, training
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.fitting import fit, places_of
from dovetail_stack.recipes.language_model import pretraining
from dovetail_stack.recipes.options import Shape, Training
from dovetail_stack.settings import Rewind
from dovetail_train import BadStep

LENGTH, BATCH, STEPS = 24, 4, 10


@pytest.fixture(scope="module")
def recipe(source):
    shape = Shape(embed=8, depth=1, heads=1, kv_heads=1, mlp=8)
    config = config_for(shape, Pretrained(source), length=LENGTH)
    training = Training(length=LENGTH, global_batch=BATCH, save_every=3, seed=5)
    return pretraining(config, training)


def trained(recipe, rows, directory, **options):
    model, _ = fit(recipe, rows, directory, steps=STEPS, **options)
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))], losses


@pytest.fixture(scope="module")
def fresh(recipe, rows, tmp_path_factory):
    """A run that never had the batches of steps 7 and 8."""
    return trained(recipe, rows, tmp_path_factory.mktemp("fresh"), leave_out=[range(7, 9)])


@pytest.mark.thorough("several runs of the command")
@pytest.mark.capability("a run rewinds and leaves out batches, as if it had never had them")
def test_a_rewound_run_is_bit_equal_to_one_that_never_had_the_batches(
    recipe, rows, tmp_path, fresh
):
    whole, losses = trained(recipe, rows, tmp_path)
    rewind(tmp_path / "checkpoints", 6)
    after, after_losses = trained(recipe, rows, tmp_path, leave_out=[range(7, 9)])
    expected, expected_losses = fresh
    for one, other in zip(after, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert after_losses == expected_losses
    assert [after_losses[i] == losses[i] for i in range(STEPS)] == [True] * 7 + [False] * 3
    assert any((one != other).any() for one, other in zip(after, whole, strict=True))


@pytest.mark.thorough
def test_a_state_of_left_out_batches_is_refused_until_the_run_goes_back(recipe, rows, tmp_path):
    trained(recipe, rows, tmp_path)
    with pytest.raises(ValueError, match="of the same leave_out"):
        fit(recipe, rows, tmp_path, steps=STEPS, leave_out=[range(7, 9)])


def test_places_are_those_of_batches_numbered_after_earlier_ranges(rows):
    order = {"global_batch": BATCH, "seed": 5}
    places = places_of([range(3, 5), range(3, 4), range(1, 2)], rows, **order)
    kept = np.arange(80).reshape(20, BATCH)
    for span in (slice(3, 5), slice(3, 4), slice(1, 2)):
        kept = np.delete(kept, span, axis=0)
    it, plain = batches(rows, leave_out=places, **order), batches(rows, global_batch=1, seed=5)
    for step in range(6):
        assert [plain.explain(int(place))[0] for place in kept[step]] == it.explain(step)


def stored(**options):
    run = settings.create(settings.Pretrain, {"text": "/text", "steps": 40})
    return dataclasses.replace(run, **options)


def test_a_request_names_the_newest_checkpoint_at_or_before_the_step():
    asked = {"rewind": 33, "leave_out": ["32:34", "36:37"]}
    run = rewinding.requested(stored(leave_out=((1, 2),)), asked, [25, 30, 35, 40])
    assert run.rewind == Rewind(asked=33, to=30, leave_out=((32, 34), (36, 37)))
    assert run.leave_out == ((1, 2), (32, 34), (36, 37))
    assert rewinding.requested(run, asked, [25, 30]) == run  # typed again after a kill
    assert rewinding.requested(stored(), {"leave_out": ["35:36"]}, [30, 35]).rewind.to == 35
    assert rewinding.requested(stored(), {}, [30, 35]) == stored()


@pytest.mark.parametrize(
    "asked, saved, text",
    [
        ({"rewind": 9}, [10, 20], "at or before --rewind, got step 9: pass one of 10, 20"),
        ({"rewind": 9}, [], "got step 9: pass one of none, since nothing was saved"),
        ({"rewind": -1}, [10], "--rewind must be a step from 0 on, got -1: pass 10"),
        (
            {"leave_out": ["12:14"]},
            [10, 20],
            "got --leave-out 12:14 and the checkpoint of step 20: pass --rewind 12, or a smaller "
            "one; checkpoints: 10, 20",
        ),
        (
            {"rewind": 20, "leave_out": ["30:32", "38:41"]},
            [10, 20],
            "among the run's 40, got --leave-out 38:41: pass smaller ones",
        ),
        ({"leave_out": ["5"]}, [1], "must be A:B with A < B, the steps A to B - 1, got '5': type"),
        ({"leave_out": ["5:5"]}, [1], "with A < B, the steps A to B - 1, got '5:5'"),
        ({"leave_out": ["-3:5"]}, [1], "got '-3:5'"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(asked, saved, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        rewinding.requested(stored(), asked, saved)


def test_another_request_waits_until_a_pending_one_is_complete():
    pending = rewinding.requested(stored(), {"rewind": 30, "leave_out": ["32:34"]}, [30, 35])
    with pytest.raises(ValueError, match="while --rewind 30 --leave-out 32:34 is pending: type"):
        rewinding.requested(pending, {"rewind": 30}, [30, 35])


def test_settings_keep_what_is_left_out_and_old_files_have_none(tmp_path):
    run = stored(leave_out=((3, 5), (8, 9)), rewind=Rewind(asked=None, to=3, leave_out=((8, 9),)))
    run.save(tmp_path)
    assert settings.load(tmp_path) == run
    content = json.loads((tmp_path / "run.json").read_text())
    del content["settings"]["leave_out"], content["settings"]["rewind"]
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert settings.load(tmp_path) == stored()
    assert settings.changed({"steps": 50}, run).leave_out == run.leave_out


@pytest.mark.parametrize(
    "skipped, saved, typed",
    [
        # Each span is numbered as in the run without those before it.
        ([5, 6, 7, 9, 12], [3, 6], "type --rewind 5 --leave-out 5:8 6:7 8:9 to go on without the"),
        (
            [0],
            [],
            "type --leave-out 0:1 to go on without their .*, or a lower --learning-rate$",
        ),
        ([29], [10, 30], "type --rewind 29 --leave-out 29:30 to .* or --steps 31 or more$"),
        ([2, 29], [10, 30], "look at the batches of these steps, and type --steps 31 or more$"),
        ([2, 8], [5], "look at the batches of these steps, and type a lower --learning-rate$"),
    ],
)
def test_after_skipped_steps_the_options_to_type_are_told(skipped, saved, typed):
    told = rewinding.advice(skipped, saved, steps=30)
    assert re.match(typed, told)
    if "--leave-out" in told:  # the spans are those batches, counted as the command counts
        left = [*range(40)]
        for text in re.findall(r"\d+:\d+", told):
            first, end = rewinding.steps_of(text)
            del left[first:end]
        assert sorted({*range(40)} - {*left}) == skipped


def test_a_bad_step_of_the_command_names_its_options(tmp_path):
    facts = {"scalars": {}, "batch": {}, "grad_norms": {}, "skipped": [4]}
    message = r"^it must be finite, got nan; type --leave-out 4:5 to go"
    with pytest.raises(BadStep, match=message), training._typed_advice(tmp_path, steps=9):
        raise BadStep("it must be finite, got nan", "pass another guard=", step=4, **facts)
