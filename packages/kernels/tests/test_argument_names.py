# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of other libraries are answered with ours, for every operation."""

import inspect

import jax.numpy as jnp
import pytest

import dovetail_kernels
from dovetail_kernels.argument_names import NAMES, operation

OPERATIONS = {name: getattr(dovetail_kernels, name) for name in NAMES}


def test_every_operation_has_names():
    public = {
        name
        for name in dovetail_kernels.__all__
        if callable(value := getattr(dovetail_kernels, name)) and not inspect.isclass(value)
    }
    about = {"explain", "record_calls", "tune", "tuning", "tuning_digest"}
    assert public - set(NAMES) == {*about, "unpack_weights"}


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_an_argument_of_the_operation(name):
    parameters = inspect.signature(OPERATIONS[name]).parameters
    renamed = {here for here in NAMES[name].values() if here.isidentifier()}
    # Words name another operation at most.
    assert renamed - set(parameters) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_answered_before_the_checks(name):
    parameters = inspect.signature(OPERATIONS[name]).parameters
    for foreign in set(NAMES[name]) - set(parameters):
        with pytest.raises(TypeError, match="a name of another library") as error:
            OPERATIONS[name](**{foreign: 7})
        rule, advice = str(error.value).split(f", got {foreign}=7. ")
        assert rule == f"{name} has no argument {foreign}, a name of another library"
        assert advice.startswith(("Use ", "Leave it out: "))
        assert advice.endswith(".")


@pytest.mark.parametrize(
    "name, given, advice",
    [
        ("attention", {"is_causal": True}, "got is_causal=True. Use causal=True."),
        ("attention", {"logits_soft_cap": 30.0}, "Use soft_cap=30.0."),
        ("attention", {"dropout_p": 0.1}, "Leave it out: attention has no dropout."),
        ("linear_cross_entropy", {"ignore_index": -100}, "Use where=(labels != -100)."),
        ("route_tokens", {"top_k": 2}, "Use k=2."),
        ("sample", {"seed": 3}, "Use keys=jax.random.split(jax.random.key(3), B)."),
        ("rms_norm", {"epsilon": 1e-5}, "Use eps=1e-05."),
    ],
)
def test_the_answer_has_the_value(name, given, advice):
    with pytest.raises(TypeError) as error:
        OPERATIONS[name](**given)
    assert str(error.value).endswith(advice)


def test_an_array_is_answered_by_its_name_and_shape():
    with pytest.raises(TypeError, match=r"got block_tables=an array of shape \(2, 3\)\. Use page_"):
        OPERATIONS["paged_attention"](block_tables=jnp.zeros((2, 3)))


def test_an_unknown_name_is_left_to_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        OPERATIONS["rope"](jnp.zeros((2, 1, 4)), jnp.arange(2), theta=1.0, speed=9)


def test_an_operation_keeps_its_signature():
    def scaled(x: float, *, scale: float = 2.0) -> float:
        """Returns x times scale."""
        return x * scale

    wrapped = operation(scaled)
    assert wrapped(3.0) == 6.0
    assert inspect.signature(wrapped) == inspect.signature(scaled)
    assert (wrapped.__name__, wrapped.__doc__) == ("scaled", "Returns x times scale.")
