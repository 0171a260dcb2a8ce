# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import itertools
from types import SimpleNamespace

import optax
import pytest
from flax import nnx

from dovetail_data import Pretrained
from dovetail_optim import Guard
from dovetail_stack import training
from dovetail_stack.recipes import fitting
from dovetail_stack.recipes.families import config_for
from dovetail_stack.recipes.language_model import pretraining
from dovetail_stack.recipes.options import Batching, Shape, Training
from dovetail_train import lm_loss

# Of a step that compiles, and of 8 more, whose median is 3.5.
STEPS_S = (50.0, 3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)


@pytest.mark.thorough
@pytest.mark.parametrize("seconds, steps", [(38.0, 10), (0.1, 1)])
def test_the_steps_of_a_time_are_those_of_the_median_step(
    rows, source, monkeypatch, seconds, steps
):
    tokenizer = Pretrained(source)
    shape = Shape(embed=8, depth=1, heads=1, kv_heads=1, mlp=8)
    config = config_for(shape, tokenizer, length=24)
    recipe = pretraining(config, Training(length=24, global_batch=2))
    # Time stands still but within a step.
    told = itertools.accumulate(s for step_s in STEPS_S for s in (0.0, step_s))
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=told.__next__))
    assert fitting.steps_in(seconds, recipe, rows) == steps


def test_the_option_of_the_guard_is_its_sigma_and_0_is_no_guard():
    def guard(**settings):
        of_step = {"tx": lambda steps: optax.sgd(0.1), "loss": lm_loss()}
        of_model = {"model": nnx.Module, "outline": nnx.Module}
        recipe = fitting.Recipe(batching=Batching(**settings), **of_step, **of_model)
        return recipe.trainer(1).guard

    assert guard() == Guard(sigma=6.0)
    assert guard(guard_sigma=4.5) == Guard(sigma=4.5)
    assert guard(guard_sigma=0.0) is None


def test_minutes_are_planned_in_seconds_and_end_with_the_fourth_pass(monkeypatch):
    asked = []
    plan = inspect.unwrap(training._plan)  # without the check of types: stand-ins have its fields
    monkeypatch.setattr(fitting, "steps_in", lambda seconds, *_: asked.append(seconds) or 13)
    rows = type("Rows", (), {"unit": 1, "__len__": lambda self: 6})()
    run = SimpleNamespace(training=Training(length=24, global_batch=2))
    run.duration = SimpleNamespace(minutes=2.5)
    assert (plan(run, None, rows), asked) == (12, [150.0])
    run.duration = SimpleNamespace(minutes=None)
    assert plan(run, None, rows) == 3
