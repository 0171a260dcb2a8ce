# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice among implementations, on an operation made for it, and the device of a call."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from dovetail_kernels import dispatch
from dovetail_kernels.dispatch import Device, Implementation, Plan, Work, device, run


def implementation(name, refusal, flops=1):
    return Implementation(
        name=name,
        refuse=lambda call: refusal if call == "hard" else None,
        work=lambda call: Work(flops=flops, bytes=2 * flops, peak_bytes=4 * flops),
        run=lambda call, inputs: (name, call, inputs),
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
        ("sure", True, None, Work(flops=3, bytes=6, peak_bytes=12)),
    ]


def reasons(plan):
    return {choice.name: choice.reason for choice in plan.choices()}


def test_each_choice_has_its_reason():
    assert reasons(plan()) == {
        "quick": "selected: first able, in order of preference",
        "odd": "able, after quick",
        "sure": "able, after quick",
    }
    assert reasons(plan("hard", impl=("odd", "sure"))) == {
        "quick": "cannot do hard calls",
        "odd": "is odd",
        "sure": "selected: first able of impl=('odd', 'sure')",
    }
    assert reasons(plan(implementations=(SURE,))) == {"sure": "selected: the only one"}


OWN, OWN_EASY = implementation("own", None), implementation("own", "cannot do hard calls")


@pytest.mark.parametrize(
    "impl, words",
    [(OWN, "'own'"), ([OWN], "['own']"), (("odd", OWN, "sure"), "('odd', 'own', 'sure')")],
)
def test_an_implementation_of_the_caller_is_asked_like_the_others(impl, words):
    asked = plan("hard", impl)
    assert asked.choose() is OWN
    assert [choice.name for choice in asked.choices()] == ["own", "quick", "odd", "sure"]
    assert reasons(asked)["own"] == f"selected: first able of impl={words}"


def test_refusals_of_the_caller_s_implementation_are_reported():
    assert plan("hard", [OWN_EASY, "sure"]).choose() is SURE
    assert reasons(plan("hard", OWN_EASY))["own"] == "cannot do hard calls"
    with pytest.raises(ValueError, match=r"got impl='own' on cpu: own: cannot .* impl='sure'"):
        plan("hard", OWN_EASY).choose()


@pytest.mark.parametrize("names", [["quick"], ["own", "own"]])
def test_two_implementations_of_one_name_are_refused(names):
    with pytest.raises(ValueError, match="must differ in name") as error:
        plan(impl=[implementation(name, None) for name in names]).choose()
    assert str(error.value).endswith(f"with name={names[0]!r}. Give it a name of its own.")
    assert plan(impl=[QUICK, "quick"]).choose() is QUICK  # one implementation, not two


def test_an_implementation_is_hashable():
    class Unhashable:
        __hash__ = None

        def __call__(self, call, inputs):
            return inputs

    with pytest.raises(TypeError, match=r"must be hashable, got name='mine' .* Use functions"):
        dataclasses.replace(QUICK, name="mine", run=Unhashable())


def test_a_run_has_the_names_in_the_program():
    def call(x):
        return run("toy", dataclasses.replace(QUICK, run=lambda call, inputs: inputs + 1), 7, x)

    assert "toy/quick/add" in jax.jit(call).lower(1.0).as_text(debug_info=True)
    assert run("toy", QUICK, 7, 8) == ("quick", 7, 8)


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


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA GH200 480GB"])
def test_takes_hopper(kind):
    pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    assert dispatch.refuse_beside_hopper(Device(platform="gpu", kind=kind)) is None


@pytest.mark.parametrize(
    "platform, kind",
    [("cpu", "cpu"), ("gpu", "NVIDIA A100-SXM4-40GB"), ("gpu", "NVIDIA B200"), ("gpu", "MI300X")],
)
def test_refuses_others(platform, kind):
    refusal = dispatch.refuse_beside_hopper(Device(platform=platform, kind=kind))
    assert refusal == (
        f"needs a Hopper GPU (H100, H200, GH200), got platform={platform!r}, kind={kind!r}"
    )


def test_a_module_that_jax_needs_and_lacks_is_named(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(f"No module named 'absl', wanted by {name}", name="absl")

    monkeypatch.setattr(dispatch.importlib, "import_module", fail)
    dispatch._missing.cache_clear()
    try:
        assert dispatch.refuse_beside_hopper(Device(platform="gpu", kind="NVIDIA H200")) == (
            "needs absl, which this JAX imports for GPU kernels: pip install absl-py"
        )
    finally:
        dispatch._missing.cache_clear()
