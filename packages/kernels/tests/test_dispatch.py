# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice among implementations, on an operation made for it, and the device of a call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from dovetail_kernels.dispatch import Device, Implementation, Plan, Work, device


def implementation(name, refusal, flops=1):
    return Implementation(
        name=name,
        refuse=lambda call: refusal if call == "hard" else None,
        work=lambda call: Work(flops=flops, bytes=2 * flops),
        run=lambda: name,
    )


QUICK = implementation("quick", "cannot do hard calls", 1)
SURE = implementation("sure", None, 3)
NEVER = implementation("odd", "is odd", 5)


def plan(call="easy", impl=None, implementations=(QUICK, NEVER, SURE)):
    here = Device(platform="cpu", kind="toy")
    return Plan(operation="toy", call=call, device=here, implementations=implementations, impl=impl)


def test_the_first_that_can_runs():
    assert plan().choose() is QUICK
    assert plan("hard").choose() is SURE


@pytest.mark.parametrize("impl", ["sure", ["sure"], ["odd", "sure"]])
def test_impl_names_whom_to_ask_in_order(impl):
    assert plan("hard", impl).choose() is SURE


def test_the_order_of_impl_counts_not_that_of_the_operation():
    assert plan(impl=("sure", "quick")).choose() is SURE


def test_choices_tell_what_became_of_each():
    told = [(c.name, c.selected, c.refusal, c.work) for c in plan("hard").choices()]
    assert told == [
        ("quick", False, "cannot do hard calls", None),
        ("odd", False, "is odd", None),
        ("sure", True, None, Work(flops=3, bytes=6)),
    ]


def test_choices_say_who_was_not_asked():
    told = [(c.name, c.selected, c.refusal) for c in plan(impl="odd").choices()]
    assert told == [
        ("quick", False, "not among impl='odd'"),
        ("odd", True, None),
        ("sure", False, "not among impl='odd'"),
    ]


def test_a_refused_impl_gives_every_reason_and_who_could():
    with pytest.raises(ValueError, match="toy needs") as error:
        plan("hard", ["odd", "quick"]).choose()
    assert str(error.value) == (
        "toy needs an implementation that supports every option of the call, got "
        "impl=['odd', 'quick'] on cpu: odd: is odd; quick: cannot do hard calls. To go on, use "
        "impl='sure' or leave impl out."
    )
    assert [c.name for c in plan("hard", ["odd", "quick"]).choices() if c.selected] == []


def test_where_nobody_can_the_request_must_change():
    with pytest.raises(ValueError, match=r"quick: cannot .* To go on, change what is refused\."):
        plan("hard", implementations=(QUICK, NEVER)).choose()


@pytest.mark.parametrize("impl", ["fast", ["quick", "fast"], []])
def test_an_unknown_impl_is_refused(impl):
    with pytest.raises(ValueError, match="impl must name") as error:
        plan(impl=impl).choose()
    assert str(error.value) == (
        f"impl must name implementations of toy, ['quick', 'odd', 'sure'], got impl={impl!r}. Use "
        "one of them, or leave it out."
    )


def test_the_device_of_an_array_is_where_it_lies():
    here = Device(platform="cpu", kind=jax.devices()[0].device_kind)
    assert device(None, np.ones(3), jnp.ones(3)) == here
    assert device(jax.ShapeDtypeStruct((3,), jnp.float32)) == here
    assert device() == here


@pytest.mark.parametrize("platform, name", [("gpu", "gpu"), ("cuda", "gpu"), ("tpu", "tpu")])
def test_a_mesh_in_scope_says_for_which_device_a_trace_is(platform, name):
    told = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform=platform)
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=told)
    found = []
    captured = jnp.ones(3)  # on a CPU
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(lambda x: found.append(device(x)) or x, jnp.ones(3))
        jax.eval_shape(lambda x: found.append(device(captured, x)) or x, jnp.ones(3))
        assert device(captured).platform == "cpu"
    assert found == [Device(platform=name, kind="NVIDIA H100")] * 2


def test_the_default_device_counts_where_nothing_else_does():
    with jax.default_device(jax.devices("cpu")[0]):
        assert device().platform == "cpu"
    with jax.default_device("cpu"):
        assert device().platform == "cpu"
