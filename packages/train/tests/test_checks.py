# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments. The type checks of the suite answer first; some cases run in a subprocess."""

import pytest

from dovetail_train import Precision
from dovetail_train._checks import check_model, check_placement, check_run


class Batches(list):
    """An iterator's state is here; `check_run` reads nothing of it."""

    def get_state(self):
        return {}

    def set_state(self, state):
        del state


class NoHook:
    def __call__(self, trainer, state, step):
        return {}


GOOD = {"steps": 1, "save_every": None, "store": None, "sinks": (), "hooks": (), "resume": "exact"}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1 update, got steps=0; write steps="),
        (
            {"save_every": 0},
            ValueError,
            "save_every must .* got save_every=0; write save_every=",
        ),
        ({"save_every": 5}, ValueError, "needs a store, got save_every=5, store=None; pass store="),
        ({"resume": "force"}, ValueError, r'be "exact" or "convert", got resume=.force.; leave it'),
        ({"store": "runs"}, TypeError, r"got store='runs'; pass store=OrbaxStore\('runs'\)"),
        ({"sinks": ["a.jsonl"]}, TypeError, r"write\(step, scalars\), got 'a.jsonl'; pass for"),
        ({"sinks": print}, TypeError, r"sinks must be a list, got sinks=.*; write sinks=\[Console"),
        (
            {"hooks": [print]},
            TypeError,
            "a hook must have `every`, .* got .*print.*; set hook",
        ),
        ({"hooks": [NoHook()]}, TypeError, "a hook must have `every`, .* got .*NoHook.*; set hook"),
    ],
)
def test_an_argument_of_fit_is_refused_with_what_to_write(wrong, error, message):
    check_run(Batches(), **GOOD)
    with pytest.raises(error, match=message):
        check_run(Batches(), **GOOD | wrong)


def test_data_without_a_state_are_refused_with_a_store():
    with pytest.raises(ValueError, match=r"get_state and set_state .* list_iterator; pass such"):
        check_run(iter([]), **GOOD | {"store": object()})


def test_a_function_with_every_is_a_hook():
    def hook(trainer, state, step):
        return {}

    hook.every = 2
    check_run(Batches(), **GOOD | {"hooks": [hook]})


@pytest.mark.parametrize(
    ("mesh", "precision", "message"),
    [
        ("cpu", Precision(compute="float32"), "got mesh='cpu'; pass mesh=make_mesh()"),
        (None, "bfloat16", r"a Precision, got precision='bfloat16'; write precision=Precision\("),
    ],
)
def test_a_mesh_and_a_precision_are_refused_by_type(mesh, precision, message):
    with pytest.raises(TypeError, match=message):
        check_placement(mesh, precision)


def test_a_function_is_no_model():
    with pytest.raises(TypeError, match=r"must be a flax.nnx.Module, got <function .*; wrap"):
        check_model(lambda x: x)
